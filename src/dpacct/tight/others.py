"""How far below zero all losses but a large one may add up to; the bounds are proven.

Derivation: docs/derivations/few-large-losses.md, the part A.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import ReplacementPair
from dpacct.pairs.moments import log_moment
from dpacct.pairs.panels import LossFunction
from dpacct.tight.composition import Composition
from dpacct.tight.laws.truncated import TruncatedLosses, lost_mass

# Further below zero than so many epsilons nothing is won.
_MOST = 3000.0
# Below this share of epsilon the least possible sum will do, and no moment is needed.
_LITTLE = 0.2
# Nothing that matters lies further out in the exponent.
_SURE = 28.0
# What losses far below zero may make up for of what is faded out: e to this of delta. In units of
# epsilon the farthest place is looked at; one loss may be so much of it, or several.
_HARDLY, _FARTHEST_ROOM, _WITHIN = -17.0, 300.0, 0.7


class Others:
    """The sum of all losses under Q, in the remove direction or of replaced clients.

    Args:
        composition: sampled pairs, and rounds of full participation.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there; these
            influence the cost and the choice only.
    """

    def __init__(self, composition: Composition, epsilon: float, log_delta: float) -> None:
        self._composition, self._epsilon = composition, epsilon
        self._log_delta = log_delta
        self._replaced = [
            (LossFunction(pair), pair, count)
            for pair, count in composition.sampled_pairs()
            if isinstance(pair, ReplacementPair)
        ]
        self.floor = math.inf if self._replaced else composition_floor(composition)

    def rest(self) -> float:
        """How far below zero they hardly ever are; a choice, of which nothing is proven.

        Raises:
            NotConverged: that is so far that nothing is won.
        """
        if self._replaced:
            return self._rest_of_replaced()
        if self.floor <= _LITTLE * self._epsilon:
            return self.floor
        tilts, growth = self._growth
        found = min(float(np.min((growth + _SURE) / tilts)), self.floor)
        if not found <= _MOST * self._epsilon:
            raise NotConverged("all other rounds may make up for one large loss")
        return found

    def _rest_of_replaced(self) -> float:
        """As above: under Q losses far below zero are as frequent as far above under P.

        What is faded out has next to nothing of delta there, or hardly any that is made up for.
        """
        for room in (self._epsilon * np.geomspace(0.1, _FARTHEST_ROOM, 24)).tolist():
            faded = math.log(self._mass_above(room + self._epsilon)) - room
            allowed = math.exp(min(self._log_delta + _HARDLY - faded, 0.0))
            # One loss alone is looked at first, as that takes no integral.
            if self._mean_above(room) <= allowed and self.share_below(room) <= allowed:
                return room
        raise NotConverged("a large loss below zero may make up for one above")

    def _mass_above(self, loss: float) -> float:
        """Upper bound of the sum of P(L > loss), which is that of Q(L < -loss)."""
        return sum(
            count * lost_mass(pair.sampling_rate, pair.noise_std, law.inverse(loss) - 1e-9)
            for law, pair, count in self._replaced
        )

    def _mean_above(self, loss: float) -> float:
        """Upper bound of the sum of E_P[min(1, L), L > loss], at most about twice that."""
        mean, low = 0.0, 0.0
        while low < 1.0:
            high = min(1.0, 2 * loss)
            mean += (high - low) * self._mass_above(loss)
            low, loss = high, 2 * loss
        return mean * (1 + 1e-9)

    def share_below(self, room: float) -> float:
        """Upper bound of E_Q[min(1, (-room - R)_+)], R the sum of all losses but one."""
        if room >= self.floor:
            return 0.0
        if not room > 0.0:
            return 1.0
        if self._replaced:
            return self._share_of_replaced(room)
        tilts, growth = self._growth
        return math.exp(min(float(np.min(growth - tilts * room)) + 1e-9, 0.0))

    def _share_of_replaced(self, room: float) -> float:
        """The same: some loss is below -T, or all are above and Chernoff's bound holds for them.

        By the mirror image Q(L < -T) is P(L > T), and E_Q[e^{-bL}, L >= -T] is E_P[e^{bL}, L <= T].
        """
        some, within = self._composition, _WITHIN * room
        # Of others beside a loss below -T nothing is known but their mean below zero.
        usual = 1e-3 * room * some.sampled_rounds + self._mean_above(1e-3 * room)
        usual += 0.5 * some.precision + 0.4 * math.sqrt(some.precision)
        usual -= float(np.log1p(-some.rates) @ some.counts)
        beyond = self._mass_above(within)
        beyond = min(beyond, self._mean_above(within) + beyond * usual * (1 + 1e-9))
        least = 0.0
        for tilt in (np.geomspace(3.0, 1000.0, 8) / room).tolist():
            # y_+ is at most e^{b y} / (b e).
            exponent = some.precision * tilt * (1 + tilt) / 2 - tilt * room
            exponent -= max(1 + math.log(tilt), 0.0)
            try:
                plain = log_moment(-tilt, some.rates, some.noise).upper
                exponent += float(np.maximum(plain, 0.0) @ some.counts)
                for law, pair, count in self._replaced:
                    kept = TruncatedLosses(pair, 1.0, tilt, 0.0, law.inverse(within)).log_moment
                    # Where a factor is below one it may be that of what is faded out.
                    exponent += count * max(float(kept.upper), 0.0)
            except NotConverged:
                continue
            least = min(least, exponent + 1e-9 * (1 + abs(exponent)))
        return min(math.exp(least) + beyond, 1.0)

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
