"""The command line of dpacct: one file per command, `render` for output, `options` for input."""
