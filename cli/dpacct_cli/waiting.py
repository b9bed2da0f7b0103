"""Progress on the terminal while a command computes: one bar, in the style of all commands.

Rule 1: it appears after two seconds, and only if stderr is a terminal. It shows the time left if
the number of steps is known, else the time so far.
Rule 2: it is gone before anything else is written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0
WIDTH = 100

_progress: Any = None
_timer: threading.Timer | None = None
_state: dict[str, Any] = {}


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Show progress during the block if it takes long."""
    global _timer  # noqa: PLW0603 - there is one terminal
    if not sys.stderr.isatty():
        yield
        return
    _state.update(description=what, completed=0, total=None)
    _timer = threading.Timer(PATIENCE, _show)
    _timer.daemon = True
    _timer.start()
    try:
        yield
    finally:
        end()


def say(what: str, done: int = 0, total: int | None = None) -> None:
    """Change the description, and the number of steps that are done, of the total."""
    _state.update(description=what, completed=done, total=total)
    if _progress is not None:
        _progress.update(_progress.task_ids[0], **_state)


def end() -> None:
    """Remove the progress, because something else is about to be written."""
    global _progress, _timer  # noqa: PLW0603 - there is one terminal
    if _timer is not None:
        _timer.cancel()
        _timer.join()
        _timer = None
    if _progress is not None:
        _progress.stop()
        _progress = None


def _show() -> None:
    global _progress  # noqa: PLW0603 - there is one terminal
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console = Console(stderr=True)
    console.width = min(console.width, WIDTH)
    clock = TimeElapsedColumn() if _state["total"] is None else TimeRemainingColumn(compact=True)
    # The bar takes the place that the texts leave.
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(None, table_column=Column(ratio=1)), TaskProgressColumn(),
        clock, TextColumn("[dim]Ctrl-C stops[/]"), console=console, expand=True, transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    shown.add_task(**_state)
    shown.start()
    _progress = shown
