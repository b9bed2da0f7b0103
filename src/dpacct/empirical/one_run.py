"""What the releases of one run show about canaries, each of which a coin put in or left out.

What is seen are the noisy sums, projected on the direction of each canary and divided by the clip
norm: x = shift + noise where the canary took part, noise alone where it did not, and for some
directions, which no canary has, noise alone always.

Three tests, of which each may err: guesses against the whole promise (sound for whatever runs), the
spread of the noise and the size of a contribution (sound for Gaussian noise, and what others send
can only hide a fault there). Source: docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import (  # pyright: ignore[reportMissingTypeStubs]
    gammaincinv,
    rel_entr,
    stdtrit,
)

from dpacct.empirical.guessing import Guesses, least_epsilon, smallest_tail
from dpacct.empirical.promises import Promise
from dpacct.numerics.rounding import Array
from dpacct.rounds import Adjacency

_FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_PLANNED_RUNS = 8
_TRIED = (0.1, 0.4, 1.0)
# Of the error of the test of noise, for its parts: what they find is far below what is promised.
_PARTS = 0.1
# Of what is left of confidence, for the spread of the noise, which many more numbers tell than
# the contribution.
_OF_NOISE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one run let an observer see.

    Attributes:
        projections: x of each round and canary, float64 [t, m]. shifts: norm of what a canary
            contributed / clip norm, float64 [t, m], as its bound leaves it.
        coins: whether the canary was in (under replace-one: held the first of its two), bool [m].
        empty: x along directions that no canary has, float64 [t, e]; NaN where a round carries no
            coordinate of one.
        noise_multipliers: charged, float64 [t]. sampling_rate: of the rounds.
        adjacency: what a coin decides.
        squares: of each part of the model (a tensor of weights), the sum over rounds, and over its
            coordinates in directions without a canary, of what was released, in clip norms and
            charged noise multipliers, squared; float64 [p]. terms: of each sum, int64 [p].
    """

    projections: Array
    shifts: Array
    coins: NDArray[np.bool_]
    empty: Array
    noise_multipliers: Array
    sampling_rate: float
    adjacency: Adjacency
    squares: Array = field(default_factory=lambda: np.zeros(0))
    terms: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def signs(self) -> Array:
        """What a canary sent, as a factor of its shift: 1 or 0, under replace-one 1 or -1."""
        return np.where(self.coins, 1.0, -1.0 if self.replaced else 0.0)

    @property
    def replaced(self) -> bool:
        """Whether a coin decides between two contributions, and not between one and none."""
        return self.adjacency is Adjacency.REPLACE_ONE


@dataclass(frozen=True, slots=True)
class Shown:
    """What was shown.

    Attributes:
        guesses: what the best attacker on the promised mechanism guessed.
        faults: what contradicts the promise: none, or some of "guesses", "noise", "contribution".
        error: probability that a run which keeps its promise has a fault.
        epsilon: the run exceeds it, whatever it is. delta: of that epsilon.
        noise_factor: if noise is Gaussian, it is at most this times what was promised, for each
            clip norm by which a contribution moves the sum.
        confidence: of ``epsilon`` and of ``noise_factor``, each.
    """

    guesses: Guesses
    faults: tuple[str, ...]
    error: float
    epsilon: float
    delta: float
    noise_factor: float
    confidence: float


def log_ratios(seen: Seen) -> Array:
    """Log-likelihood ratio of "in" against "out" of each canary, if all is as promised; [m]."""
    q, sigma = seen.sampling_rate, seen.noise_multipliers[:, np.newaxis]
    x, shift = seen.projections, seen.shifts

    def against_nothing(sign: float) -> Array:
        exponent = (2 * sign * shift * x - shift**2) / (2 * sigma**2)
        return np.logaddexp(math.log1p(-q), math.log(q) + exponent) if q < 1 else exponent

    rounds = against_nothing(1.0)
    if seen.replaced:
        rounds = rounds - against_nothing(-1.0)
    return rounds.sum(axis=0)


def guess(seen: Seen, made: int) -> Guesses:
    """Guess the coins of the canaries about which the releases say most."""
    ratios = log_ratios(seen)
    surest = np.argsort(-np.abs(ratios), kind="stable")[:made]
    right = int(np.sum((ratios[surest] > 0) == seen.coins[surest]))
    return Guesses(len(ratios), made, right)


def best_number(like: Seen, delta: float, error: float) -> int:
    """How many coins are worth guessing, from simulated runs of what is promised.

    Args:
        like: numbers of rounds and canaries, shifts, noise and sampling; nothing that was seen.
        delta: of the epsilon that the guesses are to show. error: that they may have.
    """
    rng, (rounds, m) = np.random.default_rng(0), like.shifts.shape
    numbers = sorted({max(1, math.ceil(m * fraction)) for fraction in _FRACTIONS})
    shown = np.zeros(len(numbers))
    for _ in range(_PLANNED_RUNS):
        sides: Array = rng.choice([0.0, 1.0], size=m)
        coins = sides > 0.5
        signs = np.where(coins, 1.0, -1.0 if like.replaced else 0.0)
        here = rng.random((rounds, m)) < like.sampling_rate
        noise = rng.normal(size=(rounds, m)) * like.noise_multipliers[:, np.newaxis]
        run = Seen(
            like.shifts * signs * here + noise,
            like.shifts,
            coins,
            np.zeros((rounds, 0)),
            like.noise_multipliers,
            like.sampling_rate,
            like.adjacency,
        )
        shown += [least_epsilon(guess(run, number), delta, error) for number in numbers]
    return numbers[int(np.argmax(shown))]


def judge(
    seen: Seen, promise: Promise, made: int, delta: float, error: float, confidence: float
) -> Shown:
    """Test what one run showed against what it promises.

    Args:
        seen: of the run. promise: of its schedule.
        made: how many coins are guessed for the epsilon that is shown, see `best_number`.
        delta: of that epsilon.
        error: probability, over the coins and the noise, that a run which keeps its promise has a
            fault; each of the three tests gets a third.
        confidence: of what is shown beside.
    """
    free = 1 - confidence
    guesses = guess(seen, made)
    found = {
        "guesses": _chance(seen, promise, error / 300) <= error / 3,
        "noise": _most_noise(seen, (1 - _PARTS) * error / 3) < 1.0
        or _quieter_part(seen, _PARTS * error / 3),
        # The bound of a long update is exact to some roundings.
        "contribution": _least_contribution(seen, error / 3) > 1 + 1e-6,
    }
    contribution = _least_contribution(seen, (1 - _OF_NOISE) * free)
    factor = _most_noise(seen, _OF_NOISE * free) / contribution if contribution > 0 else math.inf
    return Shown(
        guesses,
        tuple(name for name, wrong in found.items() if wrong),
        error,
        least_epsilon(guesses, delta, free),
        delta,
        factor,
        confidence,
    )


def _chance(seen: Seen, promise: Promise, least: float) -> float:
    """At most the probability of guesses as good as these, if the promise is kept.

    A few coins or all of them: that of the luckiest number, times how many are tried.
    """
    numbers = {max(1, math.ceil(len(seen.coins) * share)) for share in _TRIED}
    tails = [
        smallest_tail(guess(seen, number), promise.epsilons, promise.deltas, least=least)
        for number in numbers
    ]
    return min(1.0, len(tails) * min(tails))


def _most_noise(seen: Seen, error: float) -> float:
    """A bound of noise / promised noise, from directions without a canary.

    With x = noise + a term that is independent of it, the sum of squares is at least as large, in
    distribution, as that of the noise alone.
    """
    scaled = seen.empty / seen.noise_multipliers[:, np.newaxis]
    scaled = scaled[~np.isnan(scaled)]
    if scaled.size == 0:
        return math.inf
    # The quantile of the sum of squares of as many normal variables.
    quantile = 2 * float(gammaincinv(scaled.size / 2, error))
    return math.sqrt(float(np.sum(scaled**2)) / quantile)


def _quieter_part(seen: Seen, error: float) -> bool:
    """Whether a part of the model carries less noise than was charged, as in `_most_noise`.

    A part is too small to show in sums over the whole model.
    """
    there = seen.terms > 0
    if not there.any():
        return False
    least = 2 * gammaincinv(seen.terms[there] / 2, error / int(there.sum()))
    return bool(np.any(seen.squares[there] < least))


def _least_contribution(seen: Seen, error: float) -> float:
    """A bound from below of the mean shift of a canary in a round, in clip norms.

    Those that are in lie, by the share of rounds that they are in, above zero (replace-one: above
    those that are out, by the sum of both shares). Student's test of one mean (of two) holds
    whoever takes part, for different means only widen what it takes for noise; and the share is
    bounded by itself.
    """
    means = seen.projections.mean(axis=0)
    inside, outside = means[seen.coins], means[~seen.coins]
    fewest = min(len(inside), len(outside))
    if fewest < 2:
        return 0.0
    # Who is out has mean zero, as nothing that the run does follows from the signs of its
    # direction.
    base = float(outside.mean()) if seen.replaced else 0.0
    freedom = len(means) - (2 if seen.replaced else 1)
    squares = inside.var() * len(inside) + float(np.sum((outside - base) ** 2))
    weight = 1 / len(inside) + (1 / len(outside) if seen.replaced else 0.0)
    spread = math.sqrt(squares / freedom * weight)
    # The mean of both sides' shares has smaller moments than one of as many draws of the fewest.
    draws = len(seen.projections) * (2 * fewest if seen.replaced else len(inside))
    sampled = seen.sampling_rate < 1
    share = _largest_share(seen.sampling_rate, draws, error / 2) if sampled else 1.0
    quantile = -float(stdtrit(freedom, error / 2 if sampled else error))
    least = (float(inside.mean()) - base - quantile * spread) / share
    return least / (2.0 if seen.replaced else 1.0)


def _largest_share(rate: float, draws: int, error: float) -> float:
    """What the share of draws that take part exceeds with at most this probability.

    Chernoff's bound: it also holds where a round has a fixed number of clients.
    """
    near, far = rate, 1.0
    for _ in range(60):
        middle = (near + far) / 2
        divergence = float(rel_entr(middle, rate) + rel_entr(1 - middle, 1 - rate))
        if draws * divergence < -math.log(error):
            near = middle
        else:
            far = middle
    return far
