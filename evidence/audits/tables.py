"""The tables of `audits`, from its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.audits import SAMPLINGS
from dpacct.display import down, up
from dpacct.reproduce import Record, Records, spread
from dpacct_cli.train.options import METHODS
from evidence.pages import markdown

CASES = (("silent", 25), ("silent", 100), ("heard", 100))
_CHARGED = ("method", "sampling", "proven", "achieved")
HEADER = (*_CHARGED, "shown", "if Gaussian", "noise", "faults", "time")
_RANDOM = ("random directions: final model", "all rounds")
COMPARED = ("others", "canaries", *_RANDOM, "ours: bound", "bound if Gaussian")


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    audits = [record for record in records if "method" in record.setting]
    names = [*METHODS], [*SAMPLINGS]
    audits.sort(
        key=lambda one: (
            names[0].index(one.setting["method"]),
            names[1].index(one.setting["sampling"]),
            one.setting["epsilon"],
        )
    )
    return {
        "methods": markdown(HEADER, [_row(record) for record in audits]),
        "times": markdown(("sampling", "median of methods", "largest"), _times(audits)),
        "canaries": markdown(COMPARED, _compared(records)),
    }


def _row(record: Record) -> list[str]:
    own, result = record.setting, record.result
    factor = result["noise_factor"]
    return [
        f"`{own['method']}`",
        str(own["sampling"]),
        up(result["epsilon"], 4),
        down(result["epsilon_achieved"], 3),
        down(result["shown"], 2),
        down(result["shown_if_gaussian"], 2),
        "nothing" if factor is None else f"at most {up(factor, 2)} x",
        ", ".join(result["faults"]) or "none",
        _ratio(result),
    ]


def _compared(records: Records) -> list[list[str]]:
    """Compare the estimates from canaries in random directions with the proven lower bounds."""
    rows: list[list[str]] = []
    for others, canaries in CASES:

        def told(directions: str, name: str, count: int = canaries, others: str = others) -> str:
            own = {"directions": directions, "canaries": count, "others": others}
            return spread(records.values(name, **own))

        estimates = [told("gaussian", name) for name in ("final", "all_rounds")]
        bounds = [told("apart", name) for name in ("bound", "bound_if_gaussian")]
        rows.append([others, str(canaries), *estimates, *bounds])
    return rows


def _ratio(result: dict[str, Any]) -> str:
    return f"{result['audit_seconds'] / result['run_seconds']:.1f} x"


def _times(found: Sequence[Record]) -> list[list[str]]:
    rows: list[list[str]] = []
    for sampling in SAMPLINGS:
        own = [record.result for record in found if record.matches(sampling=sampling)]
        ratios = [result["audit_seconds"] / result["run_seconds"] for result in own]
        seconds = [result["audit_seconds"] for result in own]
        rows.append(
            [
                sampling,
                f"{statistics.median(ratios):.1f} x, {statistics.median(seconds):.1f} s",
                f"{max(ratios):.1f} x, {max(seconds):.1f} s",
            ]
        )
    return rows
