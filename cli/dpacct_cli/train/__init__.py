"""`dpacct train`."""
