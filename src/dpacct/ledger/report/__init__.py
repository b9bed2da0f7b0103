"""Facts and reports of a ledger, for programs and people."""
