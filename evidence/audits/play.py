"""Audits of each shipped method at two budgets: ``python -m evidence.audits.play``.

Each run is that of `dpacct train METHOD --rounds 20` on the embedded digits, 100 clients. Its
audit trains it again with 200 canaries. Recorded runs are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.audits import BUDGETS, SAMPLINGS, audited
from dpacct.display import down, up
from dpacct_cli.train.options import METHODS
from evidence.audits.gaussian import estimated, shown
from evidence.pages import add_into, home, markdown, put_tables
from evidence.records import Record, Records, Setting, spread

CASES, REPEATS = (("silent", 25), ("silent", 100), ("heard", 100)), 4
PAGE, RUNS = "audits/README.md", "audits/runs.jsonl"
_CHARGED = ("method", "sampling", "proven", "achieved")
HEADER = (*_CHARGED, "shown", "if Gaussian", "noise", "faults", "time")

_RANDOM = ("random directions: final model", "all rounds")
COMPARED = ("others", "canaries", *_RANDOM, "ours: bound", "bound if Gaussian")


def settings() -> list[Setting]:
    """Return all runs."""
    audits: list[Setting] = [
        {"method": method, "sampling": sampling, "epsilon": float(eps)}
        for method in METHODS
        for sampling in SAMPLINGS
        for eps in BUDGETS
    ]
    compared: list[Setting] = [
        {"canaries": canaries, "directions": directions, "others": others, "run": run}
        for others, canaries in CASES
        for directions in ("gaussian", "apart")
        for run in range(REPEATS)
    ]
    return audits + compared


def play(setting: Setting) -> dict[str, Any]:
    """Return one run, and its audit."""
    if "canaries" in setting:
        tried = estimated if setting["directions"] == "gaussian" else shown
        return tried(int(setting["canaries"] or 0), str(setting["others"]))
    eps = f"{setting['epsilon']:g}"
    return audited(str(setting["method"]), eps, str(setting["sampling"]))


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    order = [dict(setting) for setting in settings()]
    found = sorted(records, key=lambda record: order.index(record.setting))
    audits = [record for record in found if "method" in record.setting]
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

        rows.append(
            [
                others,
                str(canaries),
                told("gaussian", "final"),
                told("gaussian", "all_rounds"),
                told("apart", "bound"),
                told("apart", "bound_if_gaussian"),
            ]
        )
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


def main() -> None:
    """Run the missing audits, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_into(parser)
    typed = parser.parse_args()
    place = home(typed.into, PAGE)
    records = Records(place / RUNS)
    records.need(settings(), play)
    put_tables(place / PAGE, tables(records))


if __name__ == "__main__":
    main()
