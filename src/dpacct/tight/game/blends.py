"""Many kinds of rounds between few: laws cost more than rounds do.

Rule 1: where one client is replaced, what a round is worth is convex in the sampling rate, and in
    s(z), ds = -e^(-1 / (2 z^2)) dz / z. So a round between others costs at most their mean.
Rule 2: shares are rounded such that less noise and larger rates weigh more.

Proof: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dpacct.rounds import Round, Schedule
from dpacct.tight.game.rounds import is_game, rate_bounds

# Laws are made for so many kinds of rounds; for more, up to the most, where few stand too far
# apart and rounds number at most so many: fewer cells of each cost less than larger distances.
FEW_KINDS, MOST_KINDS, _ROUNDS = 64, 256, 1000
# Panels of the sums that bound s; all that these are off by is their width.
_PANELS = 2048
_ROUNDING = 1 + 1e-12
# What an interval of some ratio costs of epsilon, about, over the square of the ratio's logarithm:
# of noise and of rates; what is not worth more laws, and not worth fewer cells of each.
_COSTS, _ENOUGH, _CLOSE = (1 / 2, 1 / 12), 2e-4, 2e-3


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
        Parts that number at most `most_kinds` in all, beside rounds that have one pair. Shares of
        a kind add up to one within some roundings.
    """
    counts = schedule.distinct()
    played = [round_ for round_ in counts if is_game(round_)]
    found = {round_: (Part(round_, 1.0),) for round_ in counts}
    most = most_kinds(schedule.rounds)
    allowed = min(FEW_KINDS, most)
    if len(played) <= allowed:
        return found
    noises = [round_.noise_multiplier for round_ in played]
    rates = [rate_bounds(round_)[1] for round_ in played]
    samplings = dict(zip(rates, played, strict=True))
    # So many intervals of the noise and of the rate.
    wanted, best = [1, 1], ([min(noises), max(noises)], [min(rates), max(rates)])
    kept, costs = 4, [math.inf]
    while True:
        nodes = _nodes(noises, wanted[0]), _nodes(rates, wanted[1])
        corners = len(_corners(noises, rates, nodes))
        if corners > allowed:
            if corners > most or max(costs) <= _CLOSE:
                break
            allowed = most
        best, kept = nodes, corners
        costs = [
            share * (math.log(max(axis) / min(axis)) / count) ** 2
            for share, axis, count in zip(_COSTS, nodes, wanted, strict=True)
        ]
        if max(costs) <= (_ENOUGH if kept <= FEW_KINDS else _CLOSE):
            break
        wanted[int(costs[1] > costs[0])] += 1
    if kept > FEW_KINDS and len(played) <= min(most, 2 * kept):
        return found
    return found | {
        round_: _between(round_, *best, samplings, rate)
        for round_, rate in zip(played, rates, strict=True)
    }


def most_kinds(rounds: int) -> int:
    """For how many kinds laws are made: where rounds are many, these take the time."""
    return min(MOST_KINDS, max(FEW_KINDS, MOST_KINDS * _ROUNDS // rounds))


def _corners(
    noises: list[float], rates: list[float], nodes: tuple[list[float], list[float]]
) -> set[tuple[float, float]]:
    """Noise and rate of all that rounds lie between."""
    return {
        corner
        for noise, rate in set(zip(noises, rates, strict=True))
        for corner in product(_neighbors(nodes[0], noise), _neighbors(nodes[1], rate))
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
    return nodes[bisect_right(nodes, value) - 1], nodes[bisect_left(nodes, value)]


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
