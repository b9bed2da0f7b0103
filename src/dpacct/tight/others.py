"""How far below zero all losses but a large one may add up to; the bounds are proven.

Derivation: docs/derivations/few-large-losses.md, the part A.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.moments import log_moment
from dpacct.tight.composition import Composition

# Further below zero than so many epsilons nothing is won.
_MOST = 3000.0
# Below this share of epsilon the least possible sum will do, and no moment is needed.
_LITTLE = 0.2
# Nothing that matters lies further out in the exponent.
_SURE = 28.0


class Others:
    """The sum of all losses under Q, in the remove direction.

    Args:
        composition: sampled pairs of the remove direction, and rounds of full participation.
        epsilon: about where delta will be asked for; influences the cost and the choice only.
    """

    def __init__(self, composition: Composition, epsilon: float) -> None:
        self._composition, self._epsilon = composition, epsilon
        self.floor = composition_floor(composition)

    def rest(self) -> float:
        """How far below zero they hardly ever are; a choice, of which nothing is proven.

        Raises:
            NotConverged: that is so far that nothing is won.
        """
        if self.floor <= _LITTLE * self._epsilon:
            return self.floor
        tilts, growth = self._growth
        found = min(float(np.min((growth + _SURE) / tilts)), self.floor)
        if not found <= _MOST * self._epsilon:
            raise NotConverged("all other rounds may make up for one large loss")
        return found

    def share_below(self, room: float) -> float:
        """Upper bound of what of the factors of Chernoff's bound is left at minus ``room``."""
        if room >= self.floor:
            return 0.0
        if not room > 0.0:
            return 1.0
        tilts, growth = self._growth
        return math.exp(min(float(np.min(growth - tilts * room)) + 1e-9, 0.0))

    @cached_property
    def _growth(self) -> tuple[Array, Array]:
        """Tilts b, and log of E_Q e^{-b L}, rounded up; shape (k,)."""
        some = self._composition
        tilts = np.geomspace(4.0, 1000.0, 8) / self._epsilon
        rates, noise = some.rates[:, None], some.noise[:, None]
        try:
            growth = some.counts @ log_moment(-tilts[None, :], rates, noise).upper
        except NotConverged:
            growth = np.full_like(tilts, math.inf)
        growth = growth + some.precision * tilts * (1 + tilts) / 2
        return tilts, growth * (1 + 1e-9)


def composition_floor(composition: Composition) -> float:
    """Minus the least loss that a composition of the remove direction can have, rounded up."""
    if composition.precision:
        return math.inf
    return float(-np.log1p(-composition.rates) @ composition.counts) * (1 + 1e-9)
