"""Windows, simulated: with this folder in PYTHONPATH, Python has no fork, no flock and no modes.

What Python and pytest themselves need on this machine stays, and so do its paths.
"""

from __future__ import annotations

import os
import signal
import sys

MODULES = ("fcntl", "resource", "grp")
OF_OS = (
    "fork", "forkpty", "register_at_fork", "killpg", "mkfifo", "setsid", "fchmod", "fchown",
    "chown", "geteuid", "setuid", "getegid", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY",
)  # fmt: skip
OF_SIGNAL = ("SIGHUP", "SIGALRM", "SIGXFSZ")

sys.modules.update(dict.fromkeys(MODULES))  # pyright: ignore[reportArgumentType]
for holder, names in ((os, OF_OS), (signal, OF_SIGNAL)):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
