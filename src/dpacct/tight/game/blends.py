"""Many kinds of rounds between few: laws cost more than rounds do.

Rule 1: where one client is replaced, what a round is worth is convex in the sampling rate, and in
    s(z), ds = -e^(-1 / (2 z^2)) dz / z. So a round between others costs at most their mean.
Rule 2: shares are rounded such that less noise and larger rates weigh more.

Proof: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dpacct.rounds import Round, Schedule
from dpacct.tight.game.rounds import is_game, rate_bounds

MOST_KINDS = 64
# Panels of the sums that bound s; all that these are off by is their width.
_PANELS = 2048
_ROUNDING = 1 + 1e-12
# What an interval of some ratio costs of epsilon, about, over the square of the ratio's logarithm:
# of noise and of rates; and what is not worth more laws.
_COSTS, _ENOUGH = (1 / 2, 1 / 12), 2e-4


class Part(NamedTuple):
    """A kind of round, and the share with which it stands for another one."""

    round: Round
    share: float


Blend = tuple[Part, ...]


@lru_cache(maxsize=64)
def blends(schedule: Schedule) -> dict[Round, Blend]:
    """For each kind of round others, the mean of which costs no less; itself if kinds are few.

    Args:
        schedule: of rounds in which one client is replaced.
    Returns:
        Parts that number at most `MOST_KINDS` in all, beside rounds that have one pair. Shares of
        a kind add up to one within some roundings.
    """
    counts = schedule.distinct()
    played = [round_ for round_ in counts if is_game(round_)]
    found = {round_: (Part(round_, 1.0),) for round_ in counts}
    if len(played) <= MOST_KINDS:
        return found
    noises = [round_.noise_multiplier for round_ in played]
    rates = [rate_bounds(round_)[1] for round_ in played]
    samplings = dict(zip(rates, played, strict=True))
    # So many intervals of the noise and of the rate.
    wanted, best = [1, 1], ([min(noises), max(noises)], [min(rates), max(rates)])
    while True:
        nodes = _nodes(noises, wanted[0]), _nodes(rates, wanted[1])
        corners = {
            corner
            for noise, rate in set(zip(noises, rates, strict=True))
            for corner in product(_neighbors(nodes[0], noise), _neighbors(nodes[1], rate))
        }
        if len(corners) > MOST_KINDS:
            break
        best = nodes
        costs = [
            share * (math.log(max(axis) / min(axis)) / count) ** 2
            for share, axis, count in zip(_COSTS, nodes, wanted, strict=True)
        ]
        if max(costs) <= _ENOUGH:
            break
        wanted[int(costs[1] > costs[0])] += 1
    return found | {
        round_: _between(round_, *best, samplings, rate)
        for round_, rate in zip(played, rates, strict=True)
    }


def _nodes(values: list[float], count: int) -> list[float]:
    """Values near the ends of so many intervals of the same ratio."""
    least, ratio = min(values), max(values) / min(values)
    wanted = [least * ratio ** (k / count) for k in range(count + 1)]
    near = {min(values, key=lambda value: abs(math.log(value / at))) for at in wanted}
    return sorted(near | {least, max(values)})


def _between(
    round_: Round,
    noises: list[float],
    rates: list[float],
    samplings: dict[float, Round],
    rate: float,
) -> Blend:
    less, more = _neighbors(noises, round_.noise_multiplier)
    rare, often = _neighbors(rates, rate)
    by_noise = share_of_less_noise(less, round_.noise_multiplier, more)
    by_rate = min(1.0, (rate - rare) / (often - rare) * _ROUNDING) if often > rare else 1.0
    return tuple(
        Part(Round(noise, samplings[at].sampling, round_.adjacency), first * second)
        for noise, first in ((less, by_noise), (more, 1 - by_noise))
        for at, second in ((often, by_rate), (rare, 1 - by_rate))
        if first * second > 0.0
    )


def _neighbors(nodes: list[float], value: float) -> tuple[float, float]:
    return max(n for n in nodes if n <= value), min(n for n in nodes if n >= value)


def share_of_less_noise(less: float, noise: float, more: float) -> float:
    """The share of ``less``, at least the exact one, where s(noise) is the mean.

    Args:
        less, noise, more: noise multipliers, in this order.
    """
    if more <= less:
        return 1.0
    # -ds over d log z grows with z: sums over panels with their ends on either side bound it.
    above = math.log1p((more - noise) / noise) * float(_slopes(noise, more)[1:].mean())
    below = math.log1p((noise - less) / less) * float(_slopes(less, noise)[:-1].mean())
    return min(1.0, above / (above + below) * _ROUNDING)


def _slopes(low: float, high: float) -> np.ndarray:
    logs = np.linspace(math.log(low), math.log(high), _PANELS + 1)
    return np.exp(-0.5 * np.exp(-2 * logs))
