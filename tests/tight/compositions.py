"""Compositions of rounds (rate, noise, count) of one kind, and what holds their truth."""

from __future__ import annotations

from collections.abc import Iterable

from mpmath import mp, mpc, mpf

from dpacct.numerics.rounding import Array, ComplexArray
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
)
from dpacct.tight.composition import Composition

REMOVE, ADD = Direction.REMOVE, Direction.ADD
REPLACE, COHORT = "replace", "cohort"
Kind = Direction | str


def pair_of(rate: float, noise: float, kind: Kind = REMOVE) -> DominatingPair:
    """Return the pair of one round; a cohort's noise is in units of its shift of two clips."""
    if isinstance(kind, Direction):
        return SampledGaussianPair(rate, noise, kind)
    return ReplacementPair(rate, noise) if kind == REPLACE else SymmetrizedPair(rate, noise)


def compose(rounds: Iterable[tuple[float, float, int]], kind: Kind = REMOVE) -> Composition:
    """Return the composition; equal rounds add up."""
    pairs: dict[DominatingPair, int] = {}
    for rate, noise, count in rounds:
        pair = pair_of(rate, noise, kind)
        pairs[pair] = pairs.get(pair, 0) + count
    return Composition.of(pairs, kind if isinstance(kind, Direction) else REMOVE)


def check_waves(value: ComplexArray, error: Array, truth: dict[int, mpc]) -> None:
    """Check log phi at the frequencies of these indices: the truth is within each error."""
    for k, exact in truth.items():
        with mp.workdps(30):
            off = abs(exact / mp.exp(mpc(complex(value[k]))) - 1)
            assert off <= mp.expm1(mpf(float(error[k])))
