"""Work of other processes: forked, which takes a hundredth of what a fresh interpreter does."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


class Child:
    """A forked process; whatever it prints by `say` comes back from `end`."""

    def __init__(self, work: Callable[[Callable[[object], None]], object], user: int = 0) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                if user and os.getuid() == 0:
                    os.setuid(user)
                work(lambda words: os.write(write, f"{words}\n".encode()) and None)
                code = 0
            except BaseException:  # noqa: BLE001 - whatever it is, the parent fails with it
                os.write(write, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(write)

    def end(self) -> list[str]:
        """Wait for it, and return the lines that it said."""
        with os.fdopen(self._read, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "\n".join(lines)
        return lines
