"""Audits by canaries: what guesses about them refute, in one run or in many.

**Guesses.** How often may an attacker guess right which of two contributions each client sent?

Each of m canaries holds one of two contributions, by a fair coin of its own. An attacker sees what
one run releases, guesses r of the coins, and is right W times. Whatever the other coins show, the
run is private in one canary's: TPR <= g(FPR) for every event, with g concave. Then for all c

    E[W; W >= c] / m  <=  g( E[r - W; W >= c - 1] / m ),

for a guess is right, and at least c - 1 of the others are, on an event of which the coin decides
nothing but the side. The largest P(W >= c) under all of these is found by a recursion from c down.

Source: the game is that of Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846), the constraints those
of Mahloujifar, Melis, Chaudhuri 2024 (arXiv:2410.22235); proofs, also of the rounding:
docs/derivations/auditing.md.

**One run.** What its releases show about canaries, each of which a coin put in or left out.

What is seen are the noisy sums, projected on the direction of each canary and divided by the clip
norm: x = shift + noise where the canary took part, noise alone where it did not, and for some
directions, which no canary has, noise alone always.

Three tests, of which each may err: guesses against the whole promise (sound for whatever runs), the
spread of the noise and the size of a contribution (sound for Gaussian noise, and what others send
can only hide a fault there). Source: docs/derivations/auditing.md.

**Many runs** on two neighboring data sets: a lower bound of epsilon that assumes nothing.

A number is read off each run. On half of the runs the set of numbers is chosen that separates the
two data sets best; on the other half its probability under each is bounded by Clopper and Pearson.
The second half knows nothing of the choice, so that the bounds hold as for a set fixed beforehand.
Source: Jagielski, Ullman, Oprea 2020 (arXiv:2006.07709); the Gaussian form Nasr et al. 2023
(arXiv:2302.07956); docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, ndtri, rel_entr, stdtrit  # pyright: ignore[reportMissingTypeStubs]

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.empirical.confidence import OUTWARD, Estimate, largest_probability, least_probability
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import PrivacyProfile
from dpacct.rounds import Adjacency, Schedule

# Where a promise is written down: from 0 to the epsilon at this delta.
_LEAST_DELTA = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """(eps, delta) pairs that a run keeps all together, whichever data set comes first.

    Attributes:
        epsilons, deltas: float64 [k].
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def of(cls, schedule: Schedule, accountant: str = "tight", points: int = 24) -> Promise:
        """The proven deltas of a schedule at evenly spaced epsilons.

        Args:
            schedule: what runs. accountant: that proves them.
            points: how many; fewer promise less, which no test against them gets wrong.
        Raises:
            Unsupported: the accountant knows no bound.
        """
        judge = find_accountant(accountant)
        largest = judge.epsilon(schedule, _LEAST_DELTA).upper
        epsilons = np.linspace(0.0, largest, points) if np.isfinite(largest) else np.zeros(1)
        profile = PrivacyProfile(schedule, judge)
        deltas = [max(profile.proven(way, eps).upper for way in Direction) for eps in epsilons]
        return cls(epsilons, np.minimum(deltas, 1.0))


_HYPOTHESES = 64
_LARGEST_EPSILON = 100.0


@dataclass(frozen=True, slots=True)
class Guesses:
    """What an attacker did.

    Attributes:
        canaries: how many coins were thrown, m. made: how many were guessed, r; decided before the
            run is seen. right: how many of them were right, W.
    """

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
    """A bound of the probability that so many guesses are right, of a run that keeps its promise.

    Args:
        guesses: what was seen.
        epsilons, deltas: float64 [k]; the run is (eps, delta)-private for each pair, for both
            choices of which data set comes first.
        least: smaller probabilities are not told apart.
    Returns:
        An upper bound of P(W >= right), within 1 % of the best that these constraints give; at
        least ``least``.
    """
    epsilons, deltas = epsilons[np.newaxis], deltas[np.newaxis]
    low, high = math.log(least), 0.0
    if refutes(guesses, epsilons, deltas, least)[0]:
        return least
    while high - low > 0.01:
        middle = (low + high) / 2
        if refutes(guesses, epsilons, deltas, math.exp(middle))[0]:
            high = middle
        else:
            low = middle
    return math.exp(high)


def least_epsilon(guesses: Guesses, delta: float, error: float) -> float:
    """An epsilon that the run exceeds, whatever it is, but for the probability of an error.

    Args:
        guesses: what was seen. delta: of the claim (eps, delta) that is tested.
        error: probability that what is returned is above the epsilon of the run.
    Returns:
        Rounded down by less than 0.1 % and 0.001; 0 where the guesses refute nothing.
    """
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > 1e-3 * max(1.0, low):
        tried = np.linspace(low, high, _HYPOTHESES)
        refuted = refutes(guesses, tried[:, np.newaxis], np.full((len(tried), 1), delta), error)
        # Claims of larger epsilon say less: those refuted come first.
        count = int(np.argmin(refuted)) if not refuted.all() else len(tried)
        if count == 0:
            return 0.0
        if count == len(tried):
            return float(tried[-1])
        low, high = float(tried[count - 1]), float(tried[count])
    return low


def refutes(guesses: Guesses, epsilons: Array, deltas: Array, error: float) -> np.ndarray:
    """Whether P(W >= right) < error for every run that keeps each of these promises.

    Args:
        guesses: what was seen.
        epsilons, deltas: float64 [h, k]; hypothesis h promises all (eps, delta) of its row.
        error: in (0, 1).
    Returns:
        bool [h]. All roundings go against True.
    """
    m, r, c = guesses.canaries, guesses.made, guesses.right
    # What is too large for a number promises nothing.
    with np.errstate(over="ignore"):
        growth = np.exp(epsilons) * (1 + FUNCTION_ERROR)
    # The mass on W = c: at most the error, and no less wrong for what is right.
    mass = np.full(len(epsilons), error / m)
    wrong = _down(mass * (r - c))
    right = _down(wrong * c / (r - c)) if c < r else _down(mass * r)
    refuted = np.zeros(len(epsilons), dtype=bool)
    for level in range(c, 0, -1):
        needed = np.maximum(wrong, _least_fpr(right, growth, deltas))
        gained = _down((needed - wrong) * (level - 1) / (r - level + 1))
        right, wrong = _down(right + gained), needed
        # Only ever more mass is needed.
        refuted |= _down(_down(right + wrong) * m / r) > 1.0
        right, wrong = np.where(refuted, 0.0, right), np.where(refuted, 0.0, wrong)
        if refuted.all():
            break
    return refuted


def _least_fpr(tpr: Array, growth: Array, deltas: Array) -> Array:
    """At most the FPR that a TPR costs under the promises of a row, [h] from [h] and [h, k]."""
    tpr = tpr[:, np.newaxis]
    plain = (tpr - deltas) / growth
    limited = np.isfinite(growth)
    factor = np.where(limited, growth, 0.0)
    turned = (1 - deltas) - factor * (1 - tpr) - 16 * UNIT * (1 + factor)
    turned = np.where(limited, turned, -np.inf)
    return _down(np.maximum(np.maximum(plain, turned).max(axis=1), 0.0))


def _down(value: Array) -> Array:
    """At most what a value >= 0 would be without its last three roundings."""
    return value * (1 - 4 * UNIT)


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


_CANDIDATES, _FEWEST = 100, 4
# Of sums and logarithms of a few doubles, where a limit of a million runs is subtracted from one.
_ROUNDING = 5e-10


@dataclass(frozen=True, slots=True)
class Separated:
    """How a test that was fixed beforehand separates runs with somebody from runs without.

    Attributes:
        found: runs with, in which the test says so. missed: the other ones.
        accused: runs without, in which it says so too. cleared: the other ones.
    """

    found: int
    missed: int
    accused: int
    cleared: int

    def tpr(self, error: float) -> Estimate:
        """The share of runs with somebody that are recognized; each limit errs with ``error``."""
        return _estimate(self.found, self.found + self.missed, error)

    def fpr(self, error: float) -> Estimate:
        """The share of runs without that are taken for runs with; likewise."""
        return _estimate(self.accused, self.accused + self.cleared, error)

    def epsilon(self, delta: float, error: float) -> float:
        """An epsilon that the runs exceed at ``delta``, but for the probability of an error."""
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        return max(_ratio(tpr - delta, fpr), _ratio(1 - fpr - delta, 1 - tpr), 0.0)

    def refutes(self, promise: Promise, error: float) -> bool:
        """Whether runs that keep a promise do so with at most the probability of an error."""
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        growth = np.exp(promise.epsilons)
        most = np.minimum(
            promise.deltas + growth * fpr, 1 - (1 - promise.deltas - fpr) / growth
        ).min()
        return tpr > float(most) + _ROUNDING

    def distance(self, sampling_rate: float, error: float) -> float:
        """About how far apart both are in standard deviations of a Gaussian, at least.

        For choosing a test; `noise` is what it proves.
        """
        fpr = self.fpr(error / 2).upper
        missed = (1 - self.tpr(error / 2).lower - (1 - sampling_rate) * (1 - fpr)) / sampling_rate
        return float(ndtri(1 - fpr) - ndtri(min(max(missed, 0.0), 1.0)))

    def noise(self, sampling_rate: float, error: float, *, replaced: bool) -> float:
        """A bound of noise / contribution, if the noise is Gaussian and sampled at this rate.

        Args:
            sampling_rate: chance of a contribution to be there.
            error: probability that what is returned is below the truth.
            replaced: runs without have the opposite contribution, and not none.
        Returns:
            Infinite where nothing is shown.
        """
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        low, high = 1e-6, 1e6
        if not _power(high, fpr, sampling_rate, replaced=replaced) < tpr:
            return math.inf
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            if _power(middle, fpr, sampling_rate, replaced=replaced) < tpr:
                high = middle
            else:
                low = middle
        return high * OUTWARD


def separate(inside: Array, outside: Array, worth: Callable[[Separated], float]) -> Separated:
    """Choose a threshold on the first half of the runs, and count on the second.

    Args:
        inside, outside: the number of each run with, and without; in the order of the runs,
            float64 [n] and [m]. Runs with have the larger ones.
        worth: what is to be large.
    Raises:
        InvalidParameter: fewer than four runs of a kind, or a number that is not one.
    """
    for name, values in (("inside", inside), ("outside", outside)):
        if len(values) < _FEWEST or bool(np.isnan(values).any()):
            rule = f"there are at least {_FEWEST} runs of each kind, and a number of each"
            raise InvalidParameter(name, len(values), rule)
    (seen, kept), (seen_out, kept_out) = (np.array_split(v, 2) for v in (inside, outside))
    values = np.unique(np.concatenate([seen, seen_out]))
    between = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values

    def best(places: range) -> int:
        return max(places, key=lambda place: worth(_counted(seen, seen_out, between[place])))

    step = -(-len(between) // _CANDIDATES)
    near = best(range(0, len(between), step))
    place = best(range(max(0, near - step), min(len(between), near + step + 1)))
    return _counted(kept, kept_out, between[place])


def _counted(inside: Array, outside: Array, threshold: float) -> Separated:
    found = int(np.count_nonzero(inside > threshold))
    accused = int(np.count_nonzero(outside > threshold))
    return Separated(found, len(inside) - found, accused, len(outside) - accused)


def _estimate(hits: int, runs: int, error: float) -> Estimate:
    lower, upper = least_probability(hits, runs, error), largest_probability(hits, runs, error)
    return Estimate(hits / runs, lower, upper)


def _ratio(more: float, less: float) -> float:
    """At most log(more / less)."""
    if more <= 0:
        return 0.0
    return math.inf if less <= 0 else math.log(more / less) - _ROUNDING


def _power(noise: float, fpr: float, rate: float, *, replaced: bool) -> float:
    """The largest TPR at an FPR, of a Gaussian with this noise for each contribution."""
    if not 0 < fpr < 1:
        return fpr
    other = -1.0 if replaced else 0.0
    low, high = other - 40 * noise, 1 + 40 * noise
    for _ in range(200):
        middle = (low + high) / 2
        accused = (1 - rate) * ndtr(-middle / noise) + rate * ndtr((other - middle) / noise)
        low, high = (middle, high) if accused > fpr else (low, middle)
    return float((1 - rate) * ndtr(-low / noise) + rate * ndtr((1 - low) / noise))
