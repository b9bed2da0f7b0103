"""All facts about a ledger as one JSON object: its summary, with the history of all rounds."""

from __future__ import annotations

import math
from typing import Any

from dpacct.budget import Interval
from dpacct.ledger.creation import software
from dpacct.ledger.readings import Readings
from dpacct.ledger.record.charged import Charged, achieved_epsilon, proven_epsilon
from dpacct.ledger.record.events import round_to_json
from dpacct.ledger.report.history import History, RunHistory, read_history
from dpacct.ledger.report.promise import promise_of
from dpacct.ledger.report.summary import both, finite, summarize
from dpacct.report.front import risk_to_json
from dpacct.report.words import LEDGER_ASSUMPTIONS
from dpacct.rounds import Phase, Schedule


def report_of(now: Readings) -> dict[str, Any]:
    """What `Ledger.report` returns, as of the entry that the readings are of."""
    found = with_history(summarize(now), read_history(now))
    return found | {
        "kind": "ledger",
        "risk": risk_to_json(promise_of(now, found)),
        "assumptions": list(LEDGER_ASSUMPTIONS),
        "reporter": software(),
    }


def with_history(summary: dict[str, Any], history: History) -> dict[str, Any]:
    """The summary with what only a reading of all entries tells."""
    found = dict(summary)
    found |= {
        "created": history.created,
        "latest": history.latest,
        "entries": history.entries,
        "software": history.software,
        "rounds_as_if_planned": as_if_planned(history, float(summary["delta"])),
        "points": [
            {
                "round": p.round,
                "upper": finite(p.upper),
                "lower": p.lower,
                "guarantee": "planned" if p.planned else "adaptive",
            }
            for p in history.points
        ],
        "marks": [{"round": mark.round, "words": mark.words} for mark in history.marks],
    }
    found["runs"] = [
        run | _history(history.runs.get(run["run"], RunHistory())) for run in summary["runs"]
    ]
    return found


def _history(run: RunHistory) -> dict[str, Any]:
    return {
        "started": run.started,
        "ended": run.ended,
        "resumed": run.resumed,
        "left_at": run.left_at or None,
        "abandonments": run.abandonments,
        "abandoned": [{"entry": number, "reason": reason} for number, reason in run.abandoned],
        "more_rounds": run.more_rounds,
        "phases": [
            {"rounds": stretch.rounds, "planned": stretch.planned}
            | round_to_json(stretch.round)
            | {
                "releases": [
                    {"name": name, "noise_multiplier": z, "sensitivity": sensitivity}
                    for name, z, sensitivity in stretch.releases
                ]
            }
            for stretch in run.stretches
            if stretch.rounds
        ],
    }


def as_if_planned(history: History, delta: float) -> dict[str, float | None] | None:
    """Epsilon that the released rounds would have, had they been fixed in advance."""
    if not history.released:
        return None
    schedule = Schedule(Phase(r, n) for r, n in history.released.items())
    spent = Interval.bracket(
        achieved_epsilon(schedule, delta), proven_epsilon(Charged(schedule), delta, math.inf)
    )
    return both(spent)
