"""Audits of each shipped method at two budgets: ``python -m evidence.audits.play``.

Each run is that of `dpacct train METHOD --rounds 20` on the embedded digits, 100 clients; its
audit trains it again with 200 canaries. What is recorded is not played again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.audits import BUDGETS, SAMPLINGS, audited
from dpacct.display import down, up
from dpacct_cli.train.options import METHODS
from evidence.pages import add_into, home, markdown, put_tables
from evidence.records import Record, Records, Setting

PAGE, RUNS = "audits/README.md", "audits/runs.jsonl"
_CHARGED = ("method", "sampling", "proven", "achieved")
HEADER = (*_CHARGED, "shown", "if Gaussian", "noise", "faults", "time")


def settings() -> list[Setting]:
    """All runs."""
    return [
        {"method": method, "sampling": sampling, "epsilon": float(eps)}
        for method in METHODS
        for sampling in SAMPLINGS
        for eps in BUDGETS
    ]


def play(setting: Setting) -> dict[str, Any]:
    """One run, and its audit."""
    eps = f"{setting['epsilon']:g}"
    return audited(str(setting["method"]), eps, str(setting["sampling"]))


def tables(records: Records) -> dict[str, str]:
    """The tables of the page."""
    order = [dict(setting) for setting in settings()]
    found = sorted(records, key=lambda record: order.index(record.setting))
    return {
        "methods": markdown(HEADER, [_row(record) for record in found]),
        "times": markdown(("sampling", "median of methods", "largest"), _times(found)),
    }


def _row(record: Record) -> list[str]:
    own, result = record.setting, record.result
    return [
        f"`{own['method']}`",
        str(own["sampling"]),
        f"{result['epsilon']:.3f}",
        down(result["epsilon_achieved"], 3),
        down(result["shown"], 2),
        down(result["shown_if_gaussian"], 2),
        f"at most {up(result['noise_factor'], 2)} x",
        ", ".join(result["faults"]) or "none",
        _ratio(result),
    ]


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
    """Play what is missing; write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_into(parser)
    typed = parser.parse_args()
    place = home(typed.into, PAGE)
    records = Records(place / RUNS)
    records.need(settings(), play)
    put_tables(place / PAGE, tables(records))


if __name__ == "__main__":
    main()
