"""The game played backward: the adversary's remaining advantage for each loss so far.

w_t(y) is by how much, over the P-probability of the past, P can still exceed Q with t rounds to
come and a loss of y so far:

    w_0(y) = max(0, 1 - e^-y),    w_{t+1}(y) = sup over triangles of E_P[w_t(y + L)].

On a grid, each cell has a law that dominates it. The largest of the sums over masses is an upper
bound. With laws dominated by single strategies it is a lower bound. Values are stored as
w_t(y) e^{-tilt y}, so that small values keep their digits. Sums are taken by Fourier transforms,
whose errors are added.

Proof and error bound: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, ComplexArray
from dpacct.tight.game.laws import Kernel

# Assumption C of docs/derivations/rounding.md, for the three transforms of a sum.
_PER_LEVEL, _ONCE = 24, 24
_BLOCK = 8
_LARGEST_EXPONENT = 500.0


@dataclass(frozen=True, slots=True)
class Frame:
    """The losses (first + i) step + offset, 0 <= i < size, and the tilt."""

    step: float
    first: int
    size: int
    tilt: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.tilt * self.step * (abs(self.first) + self.size) > _LARGEST_EXPONENT:
            raise NotConverged("the game spans too many orders of magnitude")

    def losses(self) -> Array:
        """Return all losses, each within a few roundings of the largest and of the offset."""
        places = np.arange(self.size, dtype=np.float64)
        return self.step * (self.first + places) + self.offset

    def weights(self) -> Array:
        """Return e^{-tilt loss}, the offset left aside."""
        return np.exp(-self.tilt * self.step * (self.first + np.arange(self.size)))


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of round: several laws, ready for sums over their masses.

    Attributes:
        spectra: transforms of the tilted masses, shape (k, n / 2 + 1).
        length: n, a power of two.
        norm: bound of the sum of tilted masses of any one law.
        beyond: for the part of the laws that leaves the frame at the top, relative to the value
            at the top, of shape (size,). Upper laws: the largest. Lower laws: the least.
        gained: upper laws: the largest growth of w beyond the top, not tilted, shape (size,).
        below: for the part of each upper law that leaves it at the bottom, relative to the
            value there, shape (k, m) for the first m losses.
        relative: bound of the relative error of all masses and weights.
    """

    spectra: ComplexArray
    length: int
    norm: float
    beyond: Array
    gained: Array
    below: Array
    relative: float


def reach_of_laws(kernels: list[Kernel]) -> int:
    """Return the furthest loss of any, over the step."""
    return max(max(-law.first, law.first + len(law.masses) - 1) for law in kernels)


def length_of(size: int, reach: int) -> int:
    """Return the length of transforms for sums over such laws: a power of two without wrapping."""
    return 1 << (size + min(reach, size)).bit_length()


def prepare(kernels: list[Kernel], frame: Frame, *, upper: bool, window: int = 0) -> Stage:
    """Return the laws of one kind of round in a frame, or in windows of ``window`` losses."""
    reach, size = reach_of_laws(kernels), window or frame.size
    # A law with a reach of the window's size leaves the window from anywhere.
    length = length_of(size, reach)
    spectra = np.empty((len(kernels), length // 2 + 1), dtype=np.complex128)
    rate, index = frame.tilt * frame.step, np.arange(size)
    exponent = rate * (reach + frame.size + abs(frame.first))
    if exponent > _LARGEST_EXPONENT:
        raise NotConverged("the game spans too many orders of magnitude")
    relative = UNIT * (4 * exponent + 2 * frame.size + 4 * reach + 128)
    norm, beyond, gained = 0.0, np.zeros(size), np.zeros(size)
    depth = max(0, min(size, max(-law.first for law in kernels))) if upper else 0
    below = np.zeros((len(kernels), depth))
    for row, law in enumerate(kernels):
        places = law.first + np.arange(len(law.masses))
        tilted = law.masses * np.exp(rate * places)
        folded, inside = np.zeros(length), np.abs(places) < size
        folded[(-places[inside]) % length] = tilted[inside]
        spectra[row] = np.fft.rfft(folded)
        norm = max(norm, float(tilted.sum()))
        above = np.append(np.cumsum(law.masses[::-1])[::-1], 0.0) + law.infinite
        start = np.clip(size - index - law.first, 0, len(law.masses))
        if upper:
            # w(y + d) <= 1 - e^-d (1 - w(y)): v has slopes of at most one.
            # Only positive places leave it. Less than all may be kept: far below the top is none.
            second = law.masses * np.exp(-frame.step * np.maximum(places, 0))
            second = np.append(np.cumsum(second[::-1])[::-1], 0.0)
            ratios = np.minimum(frame.step * (size - 1 - index), _LARGEST_EXPONENT)
            kept = second[start] * np.exp(ratios)
            beyond = np.maximum(beyond, kept)
            gained = np.maximum(gained, above[start] - (1 - 2 * relative) * kept)
            under = np.append(0.0, np.cumsum(law.masses))
            end = np.clip(-index[:depth] - law.first, 0, len(law.masses))
            below[row] = under[end] * np.exp(-rate * index[:depth])
        else:
            beyond = above[start] if row == 0 else np.minimum(beyond, above[start])
    # Relative to the value at the top, which losses further up exceed.
    beyond = beyond * np.exp(rate * (size - 1 - index))
    return Stage(spectra, length, norm * (1 + 1e-9), beyond, gained, below, relative)


def play_upper(stages: list[tuple[Stage, int]], frame: Frame, window: int = 0) -> Array:
    """Return upper bounds of w_T at the losses of the frame, for ``stages`` in order.

    A window keeps its first losses only. Earlier rounds need later losses.
    """
    return deque(rounds_above(stages, frame, window), maxlen=1)[0]


def rounds_above(stages: list[tuple[Stage, int]], frame: Frame, window: int = 0) -> Iterator[Array]:
    """Yield upper bounds before any round and after each, the schedule's last round first."""
    losses, weights = frame.losses(), frame.weights()
    slack = 8 * UNIT * (float(np.max(np.abs(losses))) + 2 * abs(frame.offset))
    start = -np.expm1(-np.maximum(losses + slack, 0.0)) * (1 + 64 * UNIT)
    held = _windows(stages, frame, window)
    before = next(held)
    values = (np.minimum(start, 1.0) * weights)[before]
    yield np.minimum(start, 1.0)[before]
    for stage, count in reversed(stages):
        for _ in range(count):
            sums, error = _sums(stage, values)
            reached = sums + (error + stage.gained * weights[before] + stage.beyond * values[-1])
            values = np.minimum(reached, weights[before]) * (1 + stage.relative)
            here = next(held)
            values = _moved_down(values, before.start - here.start, frame, weights[here])
            before = here
            yield np.minimum(values / weights[here] * (1 + _slack(frame)), 1.0)


def _windows(stages: Sequence[tuple[object, int]], frame: Frame, window: int) -> Iterator[slice]:
    """Yield the window's place from the last round on. It moves down evenly, from the top."""
    size = window or frame.size
    rounds = sum(count for _, count in stages)
    for left in range(rounds, -1, -1):
        first = (frame.size - size) * left // max(rounds, 1)
        yield slice(first, first + size)


def _moved_down(values: Array, places: int, frame: Frame, weights: Array) -> Array:
    """Return upper bounds ``places`` losses further down. The last is one, as w does not fall."""
    if not places:
        return values
    exponents = frame.tilt * frame.step * np.arange(places, 0, -1)
    under = values[0] * np.exp(exponents) * (1 + UNIT * (4 * float(exponents[0]) + 32))
    return np.minimum(np.append(under, values)[: len(values)], weights)


def play_lower(stages: list[tuple[Stage, int]], frame: Frame, window: int = 0) -> Array:
    """Return lower bounds of w_T at the losses of the frame, from laws that are dominated.

    ``window``: as for `play_upper`.
    """
    losses, weights = frame.losses(), frame.weights()
    slack = 8 * UNIT * (float(np.max(np.abs(losses))) + 2 * abs(frame.offset))
    start = -np.expm1(-np.maximum(losses - slack, 0.0)) * (1 - 64 * UNIT)
    held = _windows(stages, frame, window)
    before = next(held)
    values = (start * weights * (1 - _slack(frame)))[before]
    for stage, count in reversed(stages):
        for _ in range(count):
            sums, error = _sums(stage, values)
            reached = sums - error + stage.beyond * values[-1]
            values, here = np.maximum(reached * (1 - stage.relative), 0.0), next(held)
            # Below the window, w is only known to be at least 0.
            values = np.append(np.zeros(before.start - here.start), values)[: len(values)]
            before = here
    return values / weights[before] * (1 - _slack(frame))


def repeated_below(law: Kernel, rounds: int, frame: Frame) -> Kernel:
    """Return masses below those of ``rounds`` rounds with the same dominated law, by doubling.

    Smaller masses also bound from below, since w is at least 0. So the error bound of a transform
    is subtracted from each mass, and vanishing masses are cut off.
    """
    power, doubled = Kernel(0, np.ones(1), 0.0), law
    while rounds:
        if rounds % 2:
            power = _convolved_below(power, doubled, frame)
        rounds //= 2
        if rounds:
            doubled = _convolved_below(doubled, doubled, frame)
    return power


def _convolved_below(one: Kernel, other: Kernel, frame: Frame) -> Kernel:
    rate = frame.tilt * frame.step
    exponents = [rate * (law.first + np.arange(len(law.masses))) for law in (one, other)]
    tilted = [one.masses * np.exp(exponents[0]), other.masses * np.exp(exponents[1])]
    size = len(tilted[0]) + len(tilted[1]) - 1
    length = 1 << size.bit_length()
    spectra = [np.fft.rfft(part, length) for part in tilted]
    sums = np.fft.irfft(spectra[0] * spectra[1], length)[:size]
    norm = _norm(tilted[0]) * float(tilted[1].sum())
    error = UNIT * (_PER_LEVEL * (length.bit_length() - 1) + _ONCE) * norm * (1 + 1e-9)
    kept = np.flatnonzero(sums > error)
    if not kept.size:
        return Kernel(0, np.zeros(1), 0.0)
    first = one.first + other.first + int(kept[0])
    sums = np.maximum(sums[kept[0] : kept[-1] + 1] - error, 0.0)
    exponents.append(rate * (first + np.arange(len(sums))))
    furthest = sum(float(np.abs(part).max()) for part in exponents)
    if furthest > _LARGEST_EXPONENT:
        raise NotConverged("the game spans too many orders of magnitude")
    masses = sums * np.exp(-exponents[2]) * (1 - UNIT * (8 * furthest + 64))
    return Kernel(first, masses, 0.0)


def _slack(frame: Frame) -> float:
    exponent = frame.tilt * frame.step * (abs(frame.first) + frame.size)
    return UNIT * (8 * exponent + 64)


def _norm(values: Array) -> float:
    """Return the Euclidean norm. The threads of BLAS cost more than the sum, every time."""
    return float(np.sqrt(np.square(values).sum()))


def _sums(stage: Stage, values: Array) -> tuple[Array, float]:
    """Return the largest of the sums of all laws, and a bound of their rounding errors."""
    spectrum = np.fft.rfft(values, stage.length)
    best: Array | None = None
    for start in range(0, len(stage.spectra), _BLOCK):
        product = stage.spectra[start : start + _BLOCK] * spectrum
        each = np.fft.irfft(product, stage.length)[:, : len(values)]
        if stage.below.size:
            each[:, : stage.below.shape[1]] += stage.below[start : start + _BLOCK] * values[0]
        sums = each.max(axis=0)
        best = sums if best is None else np.maximum(best, sums, out=best)
    if best is None:
        raise NotConverged("there is no law to choose from")
    levels = stage.length.bit_length() - 1
    size = _norm(values) * stage.norm
    return best, UNIT * (_PER_LEVEL * levels + _ONCE) * size * (1 + 1e-9)
