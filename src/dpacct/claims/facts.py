"""A judged claim as JSON: for the command line, and for a report."""

from __future__ import annotations

from typing import Any

from dpacct.budget import Interval
from dpacct.claims.judge import Judged, Judgment


def facts_of(judged: Judgment) -> dict[str, Any]:
    """A claim with all its readings."""
    claim = judged.claim
    return {
        "id": claim.id,
        "source": claim.source.name,
        "place": claim.place,
        "data": claim.data,
        "stated": claim.epsilon,
        "delta": claim.delta,
        "stated_accountant": claim.accountant,
        "note": claim.note,
        "verdict": str(judged.verdict),
        "readings": [_reading(one) for one in judged.readings],
    }


def _reading(judged: Judged) -> dict[str, Any]:
    reading = judged.reading
    return {
        "words": reading.words,
        "role": str(reading.role),
        "verdict": str(judged.verdict),
        "epsilon": _both(judged.epsilon),
        "reason": judged.reason,
        "data_sets": judged.data_sets,
        "sufficient_noise": judged.noise,
        "noise_by": str(reading.noise_by),
        "clip_from": str(reading.clip_from),
        "divisor": str(reading.divisor),
        "rounds": reading.rounds,
        "sampling": reading.round.sampling.name,
        "sampling_rate": reading.round.sampling_rate,
        "adjacency": str(reading.round.adjacency),
        "noise_multiplier": reading.round.noise_multiplier,
    }


def _both(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"lower": found.lower, "upper": found.upper}
