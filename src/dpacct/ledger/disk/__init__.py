"""The file of a ledger, its lock, its witness, and the recovery from a crash."""
