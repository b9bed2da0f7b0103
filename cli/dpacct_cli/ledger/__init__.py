"""`dpacct ledger`."""
