"""The command line of dpacct: one file per command, `render` for output, `options` for input."""

# Exit codes; the last is what a shell reports for a process whose reader is gone.
FAILED, INTERRUPTED, UNREAD = 1, 130, 141
