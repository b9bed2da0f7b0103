"""Whose failure is whose: what goes wrong with one client's data costs that client's contribution.

Rule 1: whether a client fails must not show outside. A round goes on without it, its update counts
as one that is not finite, and so as zero. Rule 2: what is wrong with the program is no client's
failure; `dpacct.fl.engine.rehearsal` runs it on made-up clients before anything is charged. Rule
3: a client that reached further than itself (`dpacct.errors.Unsupported`) and a warning that was
made an error are never passed over.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dpacct.errors import Unsupported


class Trial:
    """A block that may fail: ``with Trial() as trial: ...``; then see ``trial.error``.

    Attributes:
        error: what was raised inside, None where nothing was.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Keep an exception, except where rule 3 forbids it; what is no `Exception` goes on."""
        del kind, trace
        if not isinstance(error, Exception) or isinstance(error, Unsupported | Warning):
            return False
        self.error = error
        return True


class Noted:
    """A block whose exception is kept as it passes, the first time: ``with noted: ...``.

    Attributes:
        error: what was raised inside, None where nothing was.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.error is None and isinstance(error, Exception):
            self.error = error

    def tell(self) -> None:
        """Raise what was kept.

        Raises:
            Exception: that one.
        """
        if self.error is not None:
            raise self.error
