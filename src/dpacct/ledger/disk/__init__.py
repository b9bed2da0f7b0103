"""The file of a ledger, its lock, its witness, and what a crash leaves."""
