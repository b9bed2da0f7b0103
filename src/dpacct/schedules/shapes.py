"""Shapes of schedules: how the noise multiplier develops over the rounds.

Every shape is an ordinary `Schedule`. If its noise changes in each round, it holds one phase a
round, so it ends at `MAX_PHASES` rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.rounds import (
    MAX_PHASES,
    Adjacency,
    AdjacencyName,
    Phase,
    Round,
    Sampling,
    Schedule,
    first_rounds,
)

Step = tuple[int, float] | tuple[int, float, Sampling | None]


def constant(
    rounds: int,
    noise_multiplier: float,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> Schedule:
    """Return the same round ``rounds`` times.

    Raises:
        InvalidParameter: a value out of range.
    """
    return Schedule([Phase(Round(noise_multiplier, sampling, adjacency), rounds)])


def steps(phases: Sequence[Step], adjacency: Adjacency | AdjacencyName | None = None) -> Schedule:
    """Return stretches of constant rounds, one after the other.

    Args:
        phases: ``(rounds, noise_multiplier)`` or ``(rounds, noise_multiplier, sampling)`` each.
        adjacency: the neighboring relation of all rounds. Default: that of each sampling scheme.
    Raises:
        InvalidParameter: a value out of range, or stretches of different adjacency.
    """
    built: list[Phase] = []
    for step in validate.several("phases", phases, "steps"):
        parts: list[Any] = [*cast("list[Any]", step)] if isinstance(step, tuple | list) else []
        if len(parts) not in {2, 3}:
            rule = "a step is (rounds, noise_multiplier) or (rounds, noise_multiplier, sampling)"
            raise InvalidParameter("phases", cast("object", step), rule)
        built.append(Phase(Round(*parts[1:], adjacency=adjacency), parts[0]))
    return Schedule(built)


def linear(
    rounds: int,
    start: float,
    end: float,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> Schedule:
    """Return rounds with a noise multiplier from ``start`` in the first to ``end`` in the last.

    Raises:
        InvalidParameter: a value out of range.
    """
    noises = _noises(rounds, start, end, lambda first, last, u: first + (last - first) * u)
    return steps([(n, noise, sampling) for n, noise in noises], adjacency)


def geometric(
    rounds: int,
    start: float,
    end: float,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> Schedule:
    """Return rounds whose noise multiplier changes by the same factor each time.

    The first round has ``start``, the last has ``end``. ``end`` below ``start`` is a decay.

    Raises:
        InvalidParameter: a value out of range.
    """
    noises = _noises(rounds, start, end, lambda first, last, u: first * (last / first) ** u)
    return steps([(n, noise, sampling) for n, noise in noises], adjacency)


def warm_up(
    rounds: int,
    warm_up_rounds: int,
    start: float,
    noise_multiplier: float,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> Schedule:
    """Return rounds whose noise multiplier goes from ``start`` to its final value and stays there.

    Round t (from 0) has ``start + (noise_multiplier - start) * t / warm_up_rounds`` while
    t < warm_up_rounds, and ``noise_multiplier`` afterwards.

    Raises:
        InvalidParameter: a value out of range, or a warm-up longer than the schedule.
    """
    total = validate.rounds(rounds)
    noun, most = "the number of warm-up rounds", min(total, MAX_PHASES - 1)
    ramp = validate.count("warm_up_rounds", warm_up_rounds, noun, most)
    final = Round(noise_multiplier, sampling, adjacency)
    rising = linear(ramp + 1, start, final.noise_multiplier, sampling, adjacency)
    changing = first_rounds(rising, ramp)
    return changing + (total - ramp) * final if total > ramp else changing


def _noises(
    rounds: int, start: float, end: float, noise_at: Callable[[float, float, float], float]
) -> list[tuple[int, float]]:
    """Return counts with noise multipliers, one per point u = 0, ..., 1, with exact ends."""
    first, last = validate.noise_multiplier(start, "start"), validate.noise_multiplier(end, "end")
    total = validate.rounds(rounds)
    if first == last:
        return [(total, first)]
    if total > MAX_PHASES:
        rule = f"noise that changes in each round does so for at most {MAX_PHASES} rounds"
        raise InvalidParameter("rounds", total, rule)
    # Rounding carries no noise past the ends, which were checked.
    low, high = min(first, last), max(first, last)
    points = (t / max(total - 1, 1) for t in range(total))
    noises = [(1, min(max(noise_at(first, last, u), low), high)) for u in points]
    return noises if total == 1 else [*noises[:-1], (1, last)]
