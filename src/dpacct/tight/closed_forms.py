"""Compositions that need no contour: one pair alone, equal releases on a grid, plain Gaussians.

`closed_form_delta` and `closed_form_epsilon` answer for them, and `most_at_zero` bounds delta(0) of
every composition. Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bracket_root
from dpacct.pairs.atoms import AtomicPair, convolved
from dpacct.pairs.dominating import AchievedPair, Direction, GeneralPair, SampledGaussianPair
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon, one_round_delta
from dpacct.tight.composition import Composition


def closed_form_delta(composition: Composition) -> Callable[[float], Interval] | None:
    """Return delta as a function of epsilon, if it takes no contour. Else None."""
    alone, low, high = only_pair(composition), *_precision_bounds(composition)
    if alone is not None:
        return lambda epsilon: one_round_delta(epsilon, alone)
    if is_repeated(composition):
        # Other schedules do not pay for this import.
        from dpacct.tight.self_composition import repeated_delta  # noqa: PLC0415

        return partial(repeated_delta, composition)
    if composition.sampled_rounds:
        return None

    def gaussian(epsilon: float) -> Interval:
        lower = gaussian_delta(epsilon, math.sqrt(low)).lower
        return Interval(lower, gaussian_delta(epsilon, math.sqrt(high)).upper)

    return gaussian


def closed_form_epsilon(composition: Composition, delta: float) -> Interval | None:
    """Return eps(delta) if it takes no contour, else None."""
    alone, low, high = only_pair(composition), *_precision_bounds(composition)
    if alone is not None:
        return alone_epsilon(alone, delta)
    if is_repeated(composition):
        from dpacct.tight.self_composition import repeated_epsilon  # noqa: PLC0415 - as above

        return repeated_epsilon(composition, delta)
    if composition.sampled_rounds:
        return None
    lower = gaussian_epsilon(delta, math.sqrt(low)).lower
    return Interval(lower, gaussian_epsilon(delta, math.sqrt(high)).upper)


def only_pair(composition: Composition) -> AchievedPair | GeneralPair | None:
    """Return the only pair of a composition, or all its atoms as one. Else None."""
    if composition.precision or not composition.sampled_rounds:
        return None
    pairs = pairs_alone(composition)
    if composition.sampled_rounds == 1.0:
        return pairs[0][0]
    atoms = tuple((p, n) for p, n in composition.general if isinstance(p, AtomicPair))
    return convolved(atoms) if len(atoms) == len(pairs) else None


def is_repeated(composition: Composition) -> bool:
    """Return True if all releases have their losses on grids of whole numbers."""
    if composition.precision or not composition.general:
        return False
    on_grids = sum(count for pair, count in composition.general if hasattr(pair, "law"))
    return composition.sampled_rounds == on_grids


def pairs_alone(composition: Composition) -> list[tuple[AchievedPair | GeneralPair, float]]:
    """Return all pairs but full rounds, with multiplicities, as one alone is for eps >= 0."""
    # For eps >= 0 the profile of C_q is that of the remove pair.
    symmetrized: list[tuple[AchievedPair, float]] = [
        (SampledGaussianPair(pair.sampling_rate, pair.noise_std, Direction.REMOVE), float(n))
        for pair, n in composition.symmetrized
    ]
    general = ((pair, float(n)) for pair, n in composition.general)
    return [*composition.sampled_pairs(), *symmetrized, *general]


def _precision_bounds(composition: Composition) -> tuple[float, float]:
    slack = UNIT * (2 * composition.kinds + 8)
    return composition.precision * (1 - slack), composition.precision * (1 + slack)


def most_at_zero(composition: Composition, enough: float = math.inf) -> float:
    """Return a bound of delta(0), rounded up, which no delta(eps) exceeds.

    That is the sum of delta(0) over the rounds, or a part of it above ``enough``. Many sampled
    rounds have less by `_total_variation`.
    """
    total = gaussian_delta(0.0, math.sqrt(_precision_bounds(composition)[1])).upper
    slack = 1 + UNIT * (2 * composition.kinds + 16)
    for pair, count in pairs_alone(composition):
        if total * slack > enough:
            break
        total += count * one_round_delta(0.0, pair).upper
    return min(total * slack, _total_variation(composition))


def _total_variation(composition: Composition) -> float:
    """Return a bound of the total variation of sampled rounds, infinite if they are not alone.

    It is at most sqrt(chi^2) / 2 (Cauchy-Schwarz). A round has chi^2 = q^2 (e^{1 / sigma^2} - 1),
    and 1 + chi^2 multiplies: with s the sum of all, chi^2 <= e^s - 1 <= s (1 + s) for s <= 1.
    """
    rates, noise, counts = composition.sampled
    # With less noise the chi-square of a round says nothing.
    if composition.kinds != len(rates) or not noise.size or noise.min() < 0.1:
        return math.inf
    # Relative to the highest rate, whose square may be too small for a float.
    most = float(rates.max())
    relative = float(counts @ ((rates / most) ** 2 * np.expm1(noise**-2)))
    total = most * most * relative
    if total > 1.0:
        return math.inf
    # Above all rounding of the sum.
    return most * math.sqrt(relative * (1 + total)) / 2 * (1 + 1e-11)


def alone_epsilon(pair: AchievedPair | GeneralPair, delta: float) -> Interval:
    """Return eps(delta) of one round: the roots of both bounds of its closed form."""
    known = pair.epsilon_at(delta) if isinstance(pair, GeneralPair) else None
    if known is not None:
        return known

    def above(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).upper - delta) / delta

    def below(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).lower - delta) / delta

    def root(function: Callable[[float], float]) -> tuple[float, float]:
        if function(0.0) <= 0:
            return 0.0, 0.0
        ends = bracket_root(lambda t: function(math.exp(t)), -2.0, (-40.0, 30.0), 1e-11)
        return math.exp(ends[0]), math.exp(ends[1])

    lower, upper = root(below)[0], root(above)[1]
    if isinstance(pair, GeneralPair) and pair.infinite_mass <= delta:
        upper = min(upper, pair.largest_loss)
    # The search may end at its edge without a root.
    return Interval.bracket(
        lower if below(lower) > 0 else 0.0, upper if above(upper) <= 0 else math.inf
    )
