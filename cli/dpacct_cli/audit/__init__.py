"""`dpacct audit`."""
