"""The progress bar of a run, with its budget in it; nothing where nobody watches.

Rule: only released values are shown, and the accuracy on test data, which is called unprotected
unless those are public. Norms, cohort sizes and exact times of rounds are not shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpacct_cli import waiting
from dpacct_cli.options import Style
from dpacct_cli.render import plain, up

if TYPE_CHECKING:
    from dpacct.fl.report.reports import Report

Advance = Callable[["Report", float | None], None]


def describe(
    report: Report, target: float | None, accuracy: float | None, test_data: str = "public"
) -> str:
    """What stands behind the bar: budget and accuracy."""
    if report.not_private_because is not None:
        parts = ["not private"]
    else:
        limit = "" if target is None else f" of {plain(target)}"
        parts = [f"epsilon {up(report.epsilon.upper, 3)}{limit}"]
    if accuracy is not None:
        unprotected = "" if test_data == "public" else "unprotected "
        parts.append(f"{unprotected}accuracy {accuracy:.3f}")
    return "   ".join(parts)


def _lines(rounds: int, target: float | None, test_data: str) -> Advance:
    """A line for each tenth of the rounds, for terminals without escape codes."""

    def advance(report: Report, accuracy: float | None) -> None:
        if report.round % max(1, rounds // 10) == 0:
            told = (
                f"round {report.round}/{rounds}   {describe(report, target, accuracy, test_data)}"
            )
            print(told, file=sys.stderr, flush=True)

    return advance


@contextmanager
def bar(
    style: Style,
    done: int,
    rounds: int,
    target: float | None,
    console: Any = None,
    *,
    test_data: str = "public",
) -> Generator[Advance]:
    """A bar on a terminal, advanced by each report with the latest accuracy; else nothing.

    Args:
        style: of the output; only people watch.
        done: rounds that an earlier part of the run has done.
        rounds: planned.
        target: epsilon of the budget, if there is one.
        console: where to draw, default stderr. test_data: public or unprotected.
    """
    if style is not Style.HUMAN or (console is None and not sys.stderr.isatty()):
        yield lambda _report, _accuracy: None
        return
    if console is None and not waiting.knows_codes():
        yield _lines(rounds, target, test_data)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("round {task.completed}/{task.total}"),
        BarColumn(bar_width=32),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rounds, completed=done)

        def advance(report: Report, accuracy: float | None) -> None:
            text = describe(report, target, accuracy, test_data)
            progress.update(task, completed=report.round, description=text)

        yield advance
