"""`dpacct explore`: what would be, over lists and ranges of settings."""
