"""The command line of dpacct: one file per command, `render` for output, `options` for input."""

# Exit codes. A shell reports the last one for a process that writes to a closed pipe.
FAILED, INTERRUPTED, UNREAD = 1, 130, 141
