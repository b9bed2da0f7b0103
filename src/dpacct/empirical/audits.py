"""Audits by canaries: lower bounds on epsilon from attackers' guesses in one run.

**Guesses.** Each of m canaries sends one of two contributions, chosen by its own fair coin. An
attacker sees the releases of one run, guesses r of the coins, and is right W times. Given any
outcome of the other coins, the run is private in one canary's contribution: TPR <= g(FPR) for any
event, with g concave. Take the event of a right guess, with at least c - 1 right guesses among the
others. The coin decides it by its side alone. Hence for all c

    E[W; W >= c] / m  <=  g( E[r - W; W >= c - 1] / m ).

The largest P(W >= c) under all these constraints follows by a recursion from c down.

Source: the game of Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846), with the constraints of
Mahloujifar, Melis, Chaudhuri 2024 (arXiv:2410.22235). The proofs, also of the rounding, are in
docs/derivations/auditing.md.

**One run.** A coin puts each canary in or leaves it out. The noisy sums are projected on the
direction of each canary and divided by the clip norm. The result x is shift + noise if the canary
took part, and noise alone if it did not, or along a direction that no canary has. Three tests may
err: guesses against the whole promise (sound for any mechanism), the noise in all parts of the
releases (`dpacct.empirical.confidence`), and the size of a contribution. The last two are sound for
Gaussian noise, and other clients can only hide a fault there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, stdtrit  # pyright: ignore[reportMissingTypeStubs]

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.empirical.confidence import coin_divergence, first_beyond
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import PrivacyProfile
from dpacct.rounds import AccountantName, Adjacency, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """(epsilon, delta) pairs that all hold at once, for both orders of the two data sets.

    Attributes:
        epsilons, deltas: float64 [k].
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def of(
        cls, schedule: Schedule, accountant: AccountantName = "tight", points: int = 24
    ) -> Promise:
        """Return the proven deltas of a schedule at evenly spaced epsilons.

        Args:
            schedule: the rounds. accountant: proves the deltas.
            points: their number. Fewer points promise less, which is safe for every test.
        Raises:
            Unsupported: the accountant has no bound.
        """
        engine = find_accountant(accountant)
        largest = engine.epsilon(schedule, 1e-9).upper
        epsilons = np.linspace(0.0, largest, points) if np.isfinite(largest) else np.zeros(1)
        profile = PrivacyProfile(schedule, engine)
        deltas = [max(profile.proven(way, eps).upper for way in Direction) for eps in epsilons]
        return cls(epsilons, np.minimum(deltas, 1.0))


# Guesses.

_HYPOTHESES = 64
_LARGEST_EPSILON = 100.0


@dataclass(frozen=True, slots=True)
class Guesses:
    """The numbers of coins (m), of guesses (r, fixed before the run is seen), of right ones (W)."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        validate.count("canaries", self.canaries, "contributions that a coin decided")
        validate.count("made", self.made, "guesses", self.canaries)
        if isinstance(self.right, bool) or self.right not in range(self.made + 1):
            rule = f"of {self.made} guesses a whole number from 0 to {self.made} is right"
            raise InvalidParameter("right", self.right, rule)


def smallest_tail(guesses: Guesses, epsilons: Array, deltas: Array, *, least: float) -> float:
    """Return an upper bound of P(W >= right) in a run that is (eps, delta)-private for each pair.

    It is within 1 % of the best that the constraints give, and at least ``least``. The pairs are
    float64 [k].
    """
    epsilons, deltas = epsilons[np.newaxis], deltas[np.newaxis]
    low, high = math.log(least), 0.0
    if refutes(guesses, epsilons, deltas, least)[0]:
        return least
    while high - low > 0.01:
        middle = (low + high) / 2
        refuted = refutes(guesses, epsilons, deltas, math.exp(middle))[0]
        low, high = (low, middle) if refuted else (middle, high)
    return math.exp(high)


def least_epsilon(guesses: Guesses, delta: float, error: float) -> float:
    """Return an epsilon that the run exceeds at ``delta``, except with probability ``error``.

    It is rounded down by less than 0.1 % and 0.001, and is 0 if the guesses refute nothing.
    """
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > 1e-3 * max(1.0, low):
        tried = np.linspace(low, high, _HYPOTHESES)
        refuted = refutes(guesses, tried[:, np.newaxis], np.full((len(tried), 1), delta), error)
        # A larger epsilon is harder to refute, so the refuted ones come first.
        count = int(np.argmin(refuted)) if not refuted.all() else len(tried)
        if count == 0:
            return 0.0
        if count == len(tried):
            return float(tried[-1])
        low, high = float(tried[count - 1]), float(tried[count])
    return low


def refutes(guesses: Guesses, epsilons: Array, deltas: Array, error: float) -> np.ndarray:
    """Return True if P(W >= right) < error for every run that keeps a row of promises, bool [h].

    Hypothesis h promises all (eps, delta) of its row, float64 [h, k]. All roundings go against
    True.
    """
    m, r, c = guesses.canaries, guesses.made, guesses.right
    # An epsilon with an infinite exponential promises nothing.
    with np.errstate(over="ignore"):
        growth = np.exp(epsilons) * (1 + FUNCTION_ERROR)
    # The mass on W = c is at most the error. `right` and `wrong` are E[W] and E[r - W] on it, / m.
    mass = np.full(len(epsilons), error / m)
    wrong = _down(mass * (r - c))
    right = _down(wrong * c / (r - c)) if c < r else _down(mass * r)
    refuted = np.zeros(len(epsilons), dtype=bool)
    for level in range(c, 0, -1):
        needed = np.maximum(wrong, _least_fpr(right, growth, deltas))
        gained = _down((needed - wrong) * (level - 1) / (r - level + 1))
        right, wrong = _down(right + gained), needed
        # The needed mass only grows. More than all of it is a contradiction.
        refuted |= _down(_down(right + wrong) * m / r) > 1.0
        right, wrong = np.where(refuted, 0.0, right), np.where(refuted, 0.0, wrong)
        if refuted.all():
            break
    return refuted


def _least_fpr(tpr: Array, growth: Array, deltas: Array) -> Array:
    """Return at most the FPR that a TPR costs under the promises of a row, [h] from [h], [h, k].

    Both orders of the data sets: tpr <= delta + e^eps fpr, and 1 - fpr <= delta + e^eps (1 - tpr).
    """
    tpr = tpr[:, np.newaxis]
    forward = (tpr - deltas) / growth
    limited = np.isfinite(growth)
    factor = np.where(limited, growth, 0.0)
    backward = (1 - deltas) - factor * (1 - tpr) - 16 * UNIT * (1 + factor)
    backward = np.where(limited, backward, -np.inf)
    return _down(np.maximum(np.maximum(forward, backward).max(axis=1), 0.0))


def _down(value: Array) -> Array:
    """Return at most the exact value of a number >= 0 that was rounded up to three times."""
    return value * (1 - 4 * UNIT)


# One run.

_GUESSED_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_PLANNED_RUNS = 8
_TESTED_SHARES = (0.1, 0.4, 1.0)
# The share of 1 - confidence that is spent on the noise, which many more numbers show than the
# contribution.
_OF_NOISE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The observations of one run.

    Attributes:
        projections: x of each round and canary, float64 [t, m].
        shifts: norm of the contribution of a canary / clip norm, float64 [t, m], after bounding.
        coins: True if the canary was in (under replace-one: sent the first of its two), bool [m].
        empty: x along directions without a canary, float64 [t, e]. NaN if a round carries no
            coordinate of a direction.
        noise_multipliers: as charged, float64 [t].
        sampling_rate: of the rounds.
        adjacency: decides the two sides of a coin.
        missing_noise: what `NoiseEvidence.conclude` returns for the released sums.
    """

    projections: Array
    shifts: Array
    coins: NDArray[np.bool_]
    empty: Array
    noise_multipliers: Array
    sampling_rate: float
    adjacency: Adjacency
    missing_noise: tuple[float, str] = (-math.inf, "")

    @property
    def replaced(self) -> bool:
        """True if a coin decides between two opposite contributions, not between one and none."""
        return self.adjacency is Adjacency.REPLACE_ONE

    def signs(self, coins: NDArray[np.bool_]) -> Array:
        """Return the factor of a canary's shift by its coin: 1 or 0, or -1 under replace-one."""
        return np.where(coins, 1.0, -1.0 if self.replaced else 0.0)


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of the tests of one run.

    Attributes:
        guesses: of the best attacker on the promised mechanism.
        faults: contradictions to the promise: some of "guesses", "noise", "contribution".
        quietest: the part of the releases with the most evidence of missing noise, e.g. "round 3,
            tensor 1".
        error: the probability that a run which keeps its promise has a fault.
        epsilon: a lower bound on the epsilon of any mechanism. delta: of that epsilon.
        noise_factor: if the noise is Gaussian, an upper bound on noise / promised noise, for each
            clip norm by which a contribution moves the sum.
        confidence: of ``epsilon`` and of ``noise_factor``, each.
    """

    guesses: Guesses
    faults: tuple[str, ...]
    quietest: str
    error: float
    epsilon: float
    delta: float
    noise_factor: float
    confidence: float


def log_ratios(seen: Seen) -> Array:
    """Return the log-likelihood ratio of the sides of each coin in a run as promised, [m]."""
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
    """Guess the coins with the largest likelihood ratios."""
    ratios = log_ratios(seen)
    surest = np.argsort(-np.abs(ratios), kind="stable")[:made]
    right = int(np.sum((ratios[surest] > 0) == seen.coins[surest]))
    return Guesses(len(ratios), made, right)


def best_number(like: Seen, delta: float, error: float) -> int:
    """Return the number of guesses that shows the largest epsilon in simulated sound runs.

    Of ``like`` only the settings are used: rounds, canaries, shifts, noise and sampling.
    """
    rng, (rounds, m) = np.random.default_rng(0), like.shifts.shape
    numbers = sorted({max(1, math.ceil(m * share)) for share in _GUESSED_SHARES})
    shown = np.zeros(len(numbers))
    for _ in range(_PLANNED_RUNS):
        sides: Array = rng.choice([0.0, 1.0], size=m)
        coins = sides > 0.5
        here = rng.random((rounds, m)) < like.sampling_rate
        noise = rng.normal(size=(rounds, m)) * like.noise_multipliers[:, np.newaxis]
        run = Seen(
            like.shifts * like.signs(coins) * here + noise, like.shifts, coins,
            np.zeros((rounds, 0)), like.noise_multipliers, like.sampling_rate, like.adjacency,
        )  # fmt: skip
        shown += [least_epsilon(guess(run, number), delta, error) for number in numbers]
    return numbers[int(np.argmax(shown))]


def judge(
    seen: Seen, promise: Promise, made: int, delta: float, error: float, confidence: float
) -> Shown:
    """Test the observations of one run against the promise of its schedule.

    Args:
        made: the number of guesses for the shown epsilon, see `best_number`.
        delta: of that epsilon.
        error: the probability, over coins and noise, that a run which keeps its promise has a
            fault. Each of the three tests gets a third.
        confidence: of the shown epsilon and noise factor.
    """
    free, third = 1 - confidence, error / 3
    # The luckiest of several numbers of guesses, so its probability counts that many times.
    numbers = {max(1, math.ceil(len(seen.coins) * share)) for share in _TESTED_SHARES}
    tails = [
        smallest_tail(guess(seen, n), promise.epsilons, promise.deltas, least=error / 300)
        for n in numbers
    ]
    faults: list[str] = []
    if min(1.0, len(tails) * min(tails)) <= third:
        faults.append("guesses")
    evidence, quietest = seen.missing_noise
    if evidence >= -math.log(third):
        faults.append("noise")
    # The norm of a clipped update is exact up to some roundings.
    if _least_contribution(seen, third) > 1 + 1e-6:
        faults.append("contribution")
    contribution = _least_contribution(seen, (1 - _OF_NOISE) * free)
    factor = _most_noise(seen, _OF_NOISE * free) / contribution if contribution > 0 else math.inf
    guesses = guess(seen, made)
    shown = least_epsilon(guesses, delta, free)
    return Shown(guesses, tuple(faults), quietest, error, shown, delta, factor, confidence)


def _most_noise(seen: Seen, error: float) -> float:
    """Bound noise / promised noise from above, by the directions without a canary.

    If x is noise + an independent term, the sum of its squares is at least as large, in
    distribution, as that of the noise alone.
    """
    scaled = seen.empty / seen.noise_multipliers[:, np.newaxis]
    if scaled.size == 0:
        return math.inf
    # The quantile of the sum of squares of as many normal variables.
    quantile = 2 * float(gammaincinv(scaled.size / 2, error))
    # How many values a mask leaves may depend on earlier noise. Fresh normal variables in the
    # places of the others make the number of squares a constant.
    missing = int(np.isnan(scaled).sum())
    if missing:
        quantile -= float(np.random.default_rng().chisquare(missing))
    return math.sqrt(float(np.nansum(scaled**2)) / quantile) if quantile > 0 else math.inf


def _least_contribution(seen: Seen, error: float) -> float:
    """Bound the mean shift of a canary in a round from below, in clip norms.

    The mean projection of a canary that is in lies above zero by its share of rounds. Under
    replace-one, it lies above that of a canary that is out by the sum of both shares. Student's
    test of one mean (of two) holds for any sampling, because means that differ only widen the
    spread. The share of rounds is bounded by Chernoff, which also covers cohorts of fixed size.
    """
    means = seen.projections.mean(axis=0)
    inside, outside = means[seen.coins], means[~seen.coins]
    fewest = min(len(inside), len(outside))
    if fewest < 2:
        return 0.0
    # A canary that is out has mean zero: nothing in the run depends on the sign of its direction.
    base = float(outside.mean()) if seen.replaced else 0.0
    freedom = len(means) - (2 if seen.replaced else 1)
    squares = inside.var() * len(inside) + float(np.sum((outside - base) ** 2))
    weight = 1 / len(inside) + (1 / len(outside) if seen.replaced else 0.0)
    spread = math.sqrt(squares / freedom * weight)
    rate, share, tail = seen.sampling_rate, 1.0, error
    if rate < 1:
        tail = error / 2
        # The mean of both sides' shares has smaller moments than as many draws of the fewest.
        draws = len(seen.projections) * (2 * fewest if seen.replaced else len(inside))

        def beyond(share: float) -> bool:
            return draws * coin_divergence(share, rate) >= -math.log(tail)

        share = first_beyond(rate, 1.0, beyond)
    quantile = -float(stdtrit(freedom, tail))
    least = (float(inside.mean()) - base - quantile * spread) / share
    return least / (2.0 if seen.replaced else 1.0)
