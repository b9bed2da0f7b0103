"""`dpacct explore`: costs over lists and ranges of settings."""
