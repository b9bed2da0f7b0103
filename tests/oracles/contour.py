"""delta(eps) of composed sampled Gaussian rounds, in 50-digit arithmetic.

Two independent ways. `deltas` inverts the moments on a vertical line, trapezoid in x and in t, as
the package does, but with its own steps, windows and cut and in 60-digit fixed point;
`checked_deltas` repeats everything with twice the resolution. `two_rounds` integrates
delta_1(eps - L) in x space, where delta_1 is the closed form of one round.

A schedule is a list of (q, s, count); q = 1 is full participation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from mpmath import mp, mpc, mpf

from tests.oracles.sampled_gaussian import delta_add, delta_remove

DIGITS = 50
_BITS = 200
_ONE = 1 << _BITS
# Tails, aliases, discretization and cut are about e^-90 (1e-39) each.
_ACCURACY = 90.0
_MAX_STEPS = 60_000

Rounds = Sequence[tuple[float, float, int]]


def _log_integrand(
    x: np.ndarray, order: float, q: float, s: float
) -> tuple[np.ndarray, np.ndarray]:
    """log r and log(phi r^order) without the normalization, in double precision."""
    u = (2 * x - 1) / (2 * s * s)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + u)
    return log_ratio, order * log_ratio - (x / s) ** 2 / 2


def _window(order: float, q: float, s: float) -> tuple[float, float]:
    """Where phi r^order is within e^-accuracy of its largest value."""
    reach = s * math.sqrt(2 * _ACCURACY) + 1
    points, gap = np.linspace(min(order, 0.0) - reach, max(order, 0.0) + reach, 2001, retstep=True)
    logs = _log_integrand(points, order, q, s)[1]
    inside = points[logs > logs.max() - _ACCURACY]
    return float(inside[0] - 2 * gap), float(inside[-1] + 2 * gap)


def _rough_log_moment(order: float, q: float, s: float) -> float:
    """log I(order), a few digits: only to choose the line."""
    if q == 1.0:
        return order * (order - 1) / (2 * s * s)
    ends = [_window(exponent, q, s) for exponent in (order, 0.0, 1.0)]
    left, right = min(end[0] for end in ends), max(end[1] for end in ends)
    points, gap = np.linspace(left, right, 4001, retstep=True)
    log_ratio, power = _log_integrand(points, order, q, s)
    if power.max() > 600:
        return math.inf
    # Subtracting order (r - 1) + 1, whose mean is one, keeps the digits of moments next to one.
    line = 1 + order * np.expm1(np.minimum(log_ratio, 600.0))
    total = float((np.exp(power) - np.exp(-((points / s) ** 2) / 2) * line).sum())
    return math.log1p(max(total * gap / (s * math.sqrt(2 * math.pi)), 0.0))


def line(rounds: Rounds, epsilon: float, *, remove: bool) -> tuple[float, float]:
    """c where the integrand is smallest, and how far apart the aliases have to be, to a few digits.

    The alias at a distance d from epsilon counts e^{c d} delta(eps + d). To the left delta is at
    most one, to the right Chernoff's bound with some larger c is taken.
    """

    def size(tilt: float) -> float:
        order = 1 + tilt if remove else -tilt
        return sum(n * _rough_log_moment(order, q, s) for q, s, n in rounds) - tilt * epsilon

    tilts = [math.exp(k / 4) for k in range(-64, 41)]
    log_delta, c = min((size(tilt) - math.log(tilt * (1 + tilt)), tilt) for tilt in tilts)
    log_delta = min(log_delta, 0.0)
    # Orders are 1 + c in double precision: where that is rounded, c has to be what it stands for.
    c = (1 + c) - 1
    left = (_ACCURACY - log_delta) / c
    factors = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0)
    right = min((size(f * c) - log_delta + _ACCURACY) / (f * c - c) for f in factors)
    return c, max(left, right)


@dataclass
class _Nodes:
    """Nodes in x of one round under the tilt: masses (sum one), losses, log moment."""

    masses: list[mpf]
    losses: list[mpf]
    log_moment: mpf

    @classmethod
    def of(
        cls, q: float, s: float, tilt: float, last_t: float, *, remove: bool, fineness: int = 1
    ) -> _Nodes:
        order = 1 + tilt if remove else -tilt
        left, right = _window(order, q, s)
        strip = min(s * math.sqrt(2 * _ACCURACY), (3.1 if remove else 1.8) * s * s)
        penalty = strip**2 / (2 * s * s) + last_t * strip / s**2
        penalty += 0.0 if remove else order * math.log(math.cos(strip / (2 * s * s)))
        step = 2 * math.pi * strip / (_ACCURACY + penalty) / fineness
        rate, std, a, h = mpf(q), mpf(s), mpf(order), mpf(step)
        xs = [k * h for k in range(math.floor(left / step), math.ceil(right / step) + 1)]
        ratios = [mp.log1p(rate * mp.expm1((2 * x - 1) / (2 * std**2))) for x in xs]
        weights = [
            mp.exp(a * ratio - (x / std) ** 2 / 2) for x, ratio in zip(xs, ratios, strict=True)
        ]
        total = mp.fsum(weights)
        return cls(
            [weight / total for weight in weights],
            ratios if remove else [-ratio for ratio in ratios],
            mp.log(total * h / (std * mp.sqrt(2 * mp.pi))),
        )

    def characteristic(self, t: float) -> mpc:
        """E[e^{itL}] under the tilt."""
        return mp.fsum(
            mass * mp.expj(mpf(t) * loss)
            for mass, loss in zip(self.masses, self.losses, strict=True)
        )


class _Walk:
    """E[e^{itL}] at t = 0, step, 2 step, ...: one rotation of fixed-point masses per step."""

    def __init__(self, nodes: _Nodes, step: mpf) -> None:
        turns = [mp.expj(step * loss) for loss in nodes.losses]
        self._real = _fixed(nodes.masses)
        self._imaginary = _fixed([mpf(0)] * len(turns))
        self._turn = _fixed([turn.real for turn in turns]), _fixed([turn.imag for turn in turns])

    def advance(self) -> mpc:
        """The value at the present t; then goes one step on."""
        real, imaginary = (
            mp.ldexp(mpf(int(part.sum())), -_BITS) for part in (self._real, self._imaginary)
        )
        cos, sin = self._turn
        turned = (self._real * cos - self._imaginary * sin) >> _BITS
        self._imaginary = (self._real * sin + self._imaginary * cos) >> _BITS
        self._real = turned
        return mpc(real, imaginary)


def _fixed(values: list[mpf]) -> np.ndarray:
    """Integers of unlimited size in units of 2^-_BITS."""
    return np.array([int(mp.floor(mp.ldexp(value, _BITS))) for value in values], dtype=object)


def deltas(
    epsilons: Sequence[float],
    rounds: Rounds,
    *,
    remove: bool,
    fineness: int = 1,
) -> list[mpf]:
    """delta(eps) for several epsilons near the first one, which chooses the line.

    Args:
        fineness: divides both steps and multiplies the cut.
    Source: delta(eps) is the contour integral of M(s) e^{-s eps} / (s (s + 1)) over Re s = c > 0.
    """
    tilt, distance = line(rounds, epsilons[0], remove=remove)
    with mp.workdps(DIGITS + 10):
        step = 2 * mp.pi / mpf(distance) / fineness
        # Enough frequencies for the precision wanted, found by doubling.
        most = 64 * fineness
        while True:
            result = _sums(epsilons, rounds, tilt, step, most, fineness, remove=remove)
            if result is not None:
                return result
            most *= 2
            if most > _MAX_STEPS:
                raise ValueError(f"no cut of the contour below {_MAX_STEPS} steps")


def _sums(
    epsilons: Sequence[float],
    rounds: Rounds,
    tilt: float,
    step: mpf,
    most: int,
    fineness: int,
    *,
    remove: bool,
) -> list[mpf] | None:
    """The sums over t = 0 .. most steps at most; None if the integrand is not small by then."""
    last_t = float(step) * most
    precision = mp.fsum(mpf(n) / mpf(s) ** 2 for q, s, n in rounds if q == 1.0)
    sampled = [
        (_Nodes.of(q, s, tilt, last_t, remove=remove, fineness=fineness), n)
        for q, s, n in rounds
        if q < 1.0
    ]
    c = mpf(tilt)
    log_moment = precision * c * (1 + c) / 2 + mp.fsum(n * nodes.log_moment for nodes, n in sampled)
    walks = [(_Walk(nodes, step), n) for nodes, n in sampled]
    sums = [mpf(0) for _ in epsilons]
    calm = 0
    for k in range(most + 1):
        t = k * step
        s = mpc(c, t)
        value = mp.exp(precision / 2 * (s * (1 + s) - c * (1 + c))) / (s * (1 + s))
        for walk, n in walks:
            value *= walk.advance() ** n
        value *= step / mp.pi if k else step / (2 * mp.pi)
        for j, epsilon in enumerate(epsilons):
            sums[j] += (value * mp.expj(-t * mpf(epsilon))).real
        # Small throughout the last stretch, which grows with what came before.
        calm = calm + 1 if abs(value) < mp.exp(-_ACCURACY) * abs(sums[0]) else 0
        if calm > 16 * fineness + k // 4:
            break
    else:
        return None
    return [
        total * mp.exp(log_moment - c * mpf(epsilon))
        for total, epsilon in zip(sums, epsilons, strict=True)
    ]


def checked_deltas(epsilons: Sequence[float], rounds: Rounds, *, remove: bool) -> list[mpf]:
    """`deltas`, after making sure that twice the resolution changes no 25th digit."""
    plain = deltas(epsilons, rounds, remove=remove)
    fine = deltas(epsilons, rounds, remove=remove, fineness=2)
    for first, second in zip(plain, fine, strict=True):
        if abs(first - second) > mpf(10) ** -25 * abs(second):
            raise ArithmeticError(f"resolutions disagree: {first} and {second}")
    return fine


def characteristic(
    rounds: Rounds, tilt: float, frequencies: Sequence[float], *, remove: bool
) -> list[mpc]:
    """M(c + it) / M(c) of the sampled rounds, at any frequencies."""
    with mp.workdps(DIGITS):
        last_t = max(frequencies)
        parts = [(_Nodes.of(q, s, tilt, last_t, remove=remove), n) for q, s, n in rounds]
        return [mp.fprod(nodes.characteristic(t) ** n for nodes, n in parts) for t in frequencies]


def one_round(epsilon: float | mpf, q: float, s: float, *, remove: bool) -> mpf:
    """delta(eps) of a single round, any real eps."""
    return delta_remove(epsilon, q, s) if remove else delta_add(epsilon, q, s)


def _integral(
    inner: Callable[[mpf], mpf],
    epsilon: mpf,
    q: float,
    s: float,
    kinks: list[float],
    *,
    remove: bool,
    sigmas: float,
) -> mpf:
    """E_P[inner(eps - L)] for one round; ``kinks``: x at which inner is not smooth."""
    rate, std = mpf(q), mpf(s)
    reach = sigmas * s
    # Next to a kink inner may change on any scale.
    near = {kink + side * 4.0**-k for kink in kinks for side in (-s, s) for k in range(13)}
    cuts = sorted({-reach, 0.0, 0.5, 1.0, 1 + reach, *kinks, *(near if sigmas > 17 else ())})
    cuts = [cut for cut in cuts if -reach <= cut <= 1 + reach]
    pieces: list[float] = []
    for left, right in pairwise(cuts):
        many = max(1, math.ceil((right - left) / min(s, 2 * s * s)))
        pieces += [left + (right - left) * k / many for k in range(many)]

    def f(x: mpf) -> mpf:
        ratio = 1 + rate * mp.expm1((2 * x - 1) / (2 * std**2))
        density = mp.exp(-(x**2) / (2 * std**2))
        loss = mp.log(ratio) if remove else -mp.log(ratio)
        return density * (ratio if remove else 1) * inner(epsilon - loss)

    return mp.quad(f, [*pieces, cuts[-1]]) / (std * mp.sqrt(2 * mp.pi))


def two_rounds(
    epsilon: float,
    first: tuple[float, float],
    second: tuple[float, float],
    *,
    remove: bool,
    sigmas: float = 17.0,
) -> mpf:
    """delta(eps) of two rounds (q, s): E_P[delta_1(eps - L)], delta_1 in closed form.

    The first round is integrated as many ``sigmas`` far: deltas below 1e-60 need more.
    """
    with mp.workdps(30):
        # delta_1 of the remove pair turns linear where its eps reaches log(1 - q), of the add pair
        # it vanishes beyond -log(1 - q).
        bend = math.log1p(-second[0]) if remove else -math.log1p(-second[0])
        level = epsilon - bend
        q, s = first
        growth = math.expm1(level if remove else -level) / q
        kinks = [0.5 + s * s * math.log1p(growth)] if growth > -1 else []
        return _integral(
            lambda e: one_round(e, *second, remove=remove),
            mpf(epsilon),
            q,
            s,
            kinks,
            remove=remove,
            sigmas=sigmas,
        )
