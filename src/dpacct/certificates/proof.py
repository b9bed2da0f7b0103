"""Re-prove a delta by ball arithmetic. This file imports nothing of dpacct and is read alone.

With k = e^epsilon, L = dP/dQ (P with the client), and M(s) = E_Q L^s, which is the product of the
moments m(s) of the releases:

    delta_remove = E_Q (L - k)_+     = 1/(2 pi i) integral of k^(1-s) M(s) / (s (s-1)), Re s = c > 1
    delta_add  = k E_Q (1/k - L)_+   = k times the same integral with 1/k for k, Re s = c < 0

Both are trapezoid sums of balls, which hold all rounding errors. Four lemmas bound what the sums
leave out. docs/derivations/certificates.md proves them, and names what has to be believed.

Rule 1: c, d, h, y and g come from floats. They make a ball narrow or wide, and never wrong: what
a lemma requires of them is checked in balls (`_require`).
Rule 2: a number is the decimal or the fraction that is written, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from flint import acb, acb_mat, arb, arb_series, ctx, fmpq

Number = str | int | Fraction
# A kind of release (a class below), its numbers, and how often it is made.
Row = tuple[Any, ...]
_Made = Sequence[tuple["_Release", int]]
# The most products of balls for an integral (ten seconds), and the most terms of a closed form.
MOST_PRODUCTS, _TERMS = 5e7, 3000
_CELLS, _ROUGH = 800, 24


class OutOfReachError(Exception):
    """The proof would take too long, or a lemma does not apply. It says nothing about delta."""


class _Release:
    """A release with a closed moment. ``least``: L is never below it."""

    least: Any = 0

    def moment(self, s: Any) -> Any:
        """Return the ball of m(s)."""
        raise NotImplementedError

    def products(self, c: arb, reach: arb) -> int:
        """Return the products for each value of a line up to m(c + i reach)."""
        del c, reach
        return 1

    def line(self, c: arb, h: arb, first: int, side: int) -> Sequence[Any]:
        """Return m(c + ihn) for first <= n < first + side^2."""
        return [self.moment(acb(c, h * n)) for n in range(first, first + side**2)]

    def decay(self, c: arb, u: arb) -> arb:
        """Return a bound of abs(m(c + iv)) / m(c) for all v >= u."""
        del c, u
        return arb(1)


class Gaussian(_Release):
    """Noise z, and all take part: L = exp(ax - a^2/2) with x ~ N(0, 1) and a = 1/z."""

    def __init__(self, z: Number) -> None:
        self.a = 1 / _above_zero(z)

    def moment(self, s: Any) -> Any:
        """See `_Release`."""
        return (s * (s - 1) * self.a**2 / 2).exp()

    def decay(self, c: arb, u: arb) -> arb:
        """See `_Release`."""
        del c
        return (-((u * self.a) ** 2) / 2).exp()


class Laplace(_Release):
    """Laplace noise of its own epsilon a: L = exp(a (|x| - |x - 1|))."""

    def __init__(self, epsilon: Number) -> None:
        self.a = _above_zero(epsilon)
        self.least = (-self.a).exp()

    def moment(self, s: Any) -> Any:
        """See `_Release`."""
        return (s * (self.a * (s - 1)).exp() + (s - 1) * (-self.a * s).exp()) / (2 * s - 1)


class SampledGaussian(_Release):
    """Noise z and rate q < 1: L = 1 - q + q exp(ax - a^2/2) with x ~ N(0, 1) and a = 1/z."""

    def __init__(self, q: Number, z: Number) -> None:
        self.q, self.a = _above_zero(q), 1 / _above_zero(z)
        _require(self.q < 1, "a rate below 1")
        self.least, self.part = 1 - self.q, self.q * (-self.a * self.a / 2).exp()

    def ratio(self, x: arb) -> arb:
        """Return L(x)."""
        return self.least + self.part * (self.a * x).exp()

    def cut(self, c: arb, low: arb, high: arb) -> arb:
        """Lemma 2: bound the integral of phi L^c outside (low, high), and grid sums there."""
        _require(low < 0 and high > 0 and high > c * self.a, "cuts on both sides of the mass")
        if c < 0:
            return self.least**c * (_above(-low) + _above(high))
        tilted = (c * c * self.a * self.a / 2).exp() * _above(high - c * self.a)
        return _above(-low) + 2**c * (self.least**c * _above(high) + self.part**c * tilted)

    def spacing(self, c: arb, reach: arb) -> tuple[float, float, int, int]:
        """Return y, g, and the first and the last node of `grid` (Rule 1)."""
        bits, a, tilt = 0.7 * ctx.prec + 3, float(self.a), float(c)
        down = max(-tilt, 0.0)
        y = min(0.98 * math.pi / a, math.sqrt(2 * bits / (1 + down * a * a / 4)))
        more = bits - down * math.log(math.cos(a * y / 2))
        g = 2 * math.pi * y / (y * y / 2 + float(reach) * a * y + more)
        low = high = math.sqrt(2 * (bits - down * math.log(self.least))) + 1
        if tilt > 0:
            far = bits + tilt * math.log(2 * float(self.part)) + (tilt * a) ** 2 / 2
            high = max(math.sqrt(2 * (bits + tilt)), tilt * a + math.sqrt(2 * max(far, 0))) + 1
        return y, g, -math.ceil(low / g), math.ceil(high / g)

    def products(self, c: arb, reach: arb) -> int:
        """See `_Release`."""
        _, _, first, last = self.spacing(c, reach)
        return last + 1 - first

    def grid(self, c: arb, reach: arb) -> tuple[list[arb], list[arb], arb, arb]:
        """Return l, w, e, m(c): m(c + iu) is the sum of w exp(iul) within e, 0 <= u <= reach."""
        *sizes, first, last = self.spacing(c, reach)
        y, g = map(arb, sizes)
        xs = [g * j for j in range(first, last + 1)]
        logs = [self.ratio(x).log() for x in xs]
        scale = g / (2 * arb.pi()).sqrt()
        weights = [scale * (c * log - x * x / 2).exp() for x, log in zip(xs, logs, strict=True)]
        # Lemma 1: the error of the sum over the whole grid, as a share of m(c).
        _require(self.a * y < arb.pi(), "an inner strip without zeros of L")
        bend = arb(1) if c > 0 else (self.a * y / 2).cos() ** c
        share = 2 * bend * (y * y / 2).exp() / ((2 * arb.pi() * y / g).exp() - 1)
        _require(share < 0.5, "a fine inner grid")
        cut = self.cut(c, xs[0], xs[-1])
        size = sum(weights, _within(cut))
        size = (size / (1 - share)).union(size / (1 + share))
        return logs, weights, cut + share * (reach * self.a * y).exp() * size, size

    def moment(self, s: Any) -> Any:
        """See `_Release`."""
        return self.grid(s, arb(0))[3]

    def line(self, c: arb, h: arb, first: int, side: int) -> Sequence[Any]:
        """See `_Release`."""
        # With u = h (first + side b + k), exp(iul) is a product of matrices over b and k.
        logs, weights, error, _ = self.grid(c, h * (first + side**2))
        turns = [acb(0, h * log).exp() for log in logs]
        starts = [w * t**first for w, t in zip(weights, turns, strict=True)]
        leaps = [_powers(t**side, start, side) for t, start in zip(turns, starts, strict=True)]
        sums = acb_mat([list(row) for row in zip(*leaps, strict=True)])
        sums *= acb_mat([_powers(t, acb(1), side) for t in turns])
        around = acb(_within(error), _within(error))
        return [sums[b, k] + around for b in range(side) for k in range(side)]

    def decay(self, c: arb, u: arb) -> arb:
        """Lemma 4: integrate along x + i y(x), y = s p / (1 + t p), p = 1 - (1 - q) / L(x)."""
        a, size = self.a, self.moment(c)
        low, high = arb(-13), arb(13 + max(float(c), 0) * float(a))
        edges = [low + (high - low) * j / _CELLS for j in range(_CELLS + 1)]
        shares = [1 / (1 + self.least / self.part * (-a * x).exp()) for x in edges]
        slope = float(u) * float(a) / (1 + float(a) ** 2)
        s, t = arb(slope), arb(max(0.0, slope / min(1.5 / float(a), 6.0) - 1))
        heights, highest = [s * p / (1 + t * p) for p in shares], s / (1 + t)
        _require(a * highest < arb.pi() / 2, "a path below the zeros of L")
        fallen = arb(0)
        for j in range(_CELLS):
            x, p, y = (row[j].union(row[j + 1]) for row in (edges, shares, heights))
            turned = 1 - p + p * acb(0, a * y).exp()
            rise = s * a * p * (1 - p) / (1 + t * p) ** 2
            g = (1 + rise * rise).sqrt() * abs(turned) ** c
            g *= (y * y / 2 - u * turned.arg()).exp()
            mass = (_above(edges[j]) - _above(edges[j + 1])) * self.ratio(x) ** c
            fallen += ((1 - g) * mass).lower()
        g = (1 + (s * a) ** 2).sqrt() * (highest * highest / 2).exp()
        g *= arb(1) if c > 0 else (a * highest / 2).cos() ** c
        return ((size - fallen + g * self.cut(c, low, high)) / size).upper().min(arb(1))


def prove(
    rows: Sequence[Row], epsilon: Number, bits: int = 128, products: float = MOST_PRODUCTS
) -> tuple[Fraction, Fraction]:
    """Return proven bounds of the delta of releases at epsilon >= 0, in the worse direction.

    Raises:
        OutOfReachError: a number out of range, or the proof would take too long.
    """
    before, rounds = (ctx.prec, ctx.cap), sum(row[-1] for row in rows)
    ctx.prec = bits
    if closed := all(row[0] is Laplace for row in rows):
        # Its terms alternate.
        ctx.prec, ctx.cap = bits + 4 * rounds, rounds
    try:
        spent = _delta(rows, epsilon, products, closed=closed)
        _require(spent.is_finite(), "more bits")
        ends = (end.man_exp() for end in (spent.lower(), spent.upper()))
        low, high = (Fraction(int(man)) * Fraction(2) ** int(exp) for man, exp in ends)
        return max(low, Fraction(0)), min(high, Fraction(1))
    except (OverflowError, ValueError) as reason:  # of floats: Rule 1
        raise OutOfReachError("the proof needs numbers in the range of floats") from reason
    finally:
        ctx.prec, ctx.cap = before


def _delta(rows: Sequence[Row], epsilon: Number, products: float, *, closed: bool) -> arb:
    _require(min(row[-1] for row in rows) >= 1, "at least one release of each kind")
    releases: Any = [(kind(*numbers), count) for kind, *numbers, count in rows]
    e = _ball(epsilon)
    _require(e >= 0, "an epsilon of at least 0")
    if all(row[0] is Gaussian for row in rows):
        mu = sum((n * each.a**2 for each, n in releases), arb(0)).sqrt()
        return _above(e / mu - mu / 2) - e.exp() * _above(e / mu + mu / 2)
    if closed:
        return _of_laplace(releases, e)
    if len(rows) == 1 and rows[0][-1] == 1:
        return _of_one_round(releases[0][0], e)
    removed = _integral(releases, e, products, removed=True)
    # 1/k - L is above 0 nowhere if k is large.
    if math.prod((each.least**n for each, n in releases), start=e.exp()) >= 1:
        return removed
    enough = removed.lower() / e.exp()
    added = _integral(releases, -e, products, removed=False, enough=enough)
    return removed.max(e.exp() * added)


def _shape(releases: _Made, log_k: arb, *, removed: bool) -> tuple[arb, arb, arb]:
    """Return c near the saddle, d and h, by floats and balls of few bits (Rule 1)."""
    bits = ctx.prec

    def log_size(c: float) -> float:
        ctx.prec = min(bits, _ROUGH)
        log_moment = sum((n * each.moment(arb(c)).log() for each, n in releases), (1 - c) * log_k)
        ctx.prec = bits
        return float(log_moment) - math.log(c * (c - 1))

    def at(t: float) -> float:
        return 1 + math.exp(t) if removed else -math.exp(t)

    low, high = -14.0, 6.0
    while high - low > 0.02:
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (low, right) if log_size(at(left)) < log_size(at(right)) else (left, high)
    c, sizes = at(low), list[tuple[float, float]]()
    for d in (0.9 * math.exp(low) * 2 ** (-i / 4) for i in range(24)):
        most = max(log_size(c - d), log_size(c + d)) - log_size(c) + 0.36 * ctx.prec
        sizes.append((most / d, d))
    return arb(c), arb(min(sizes)[1]), arb(2 * math.pi / min(sizes)[0])


def _integral(
    releases: _Made, log_k: arb, most: float, *, removed: bool, enough: arb | None = None
) -> arb:
    """Return E_Q (L - k)_+, or E_Q (k - L)_+: of this, a ball [0, b] with b < enough will do."""

    def room(c: arb) -> arb:  # the distance from the nearer pole
        return c - 1 if removed else -c

    def size(c: arb) -> arb:
        return math.prod((m.moment(c) ** n for m, n in releases), start=(log_k * (1 - c)).exp())

    c, d, h = _shape(releases, log_k, removed=removed)
    peak = size(c)
    if enough is not None and peak / (2 * room(c)) < enough:
        return arb(0).union(peak / (2 * room(c)))
    strip = arb(0)  # Lemma 3
    for x in (c - d, c + d):
        _require(room(x) > 0, "an outer strip without poles")
        strip += size(x) * arb.pi() / room(x) / ((2 * arb.pi() * d / h).exp() - 1)

    def rest_from(u: arb) -> arb:
        return _decay(releases, c, u, 2 * peak / (u - h), few)

    # Known before ten seconds of sums: the last node leaves too much.
    few = peak * arb(2) ** (-0.45 * ctx.prec)
    # The node at c itself counts once, all others twice.
    lines, total = _lines(releases, c, h, most), -peak / (c * (c - 1))
    for first, side in lines if rest_from(h * (lines[-1][0] + lines[-1][1] ** 2)) < few else ():
        terms = _terms(releases, log_k, c, h, first, side)
        total += 2 * sum(term.real for term in terms)
        u = h * (first + side**2)
        # The decay takes a while, and would be too large.
        if abs(terms[-1]) * u * u > peak * arb(2) ** (-0.5 * ctx.prec):
            continue
        rest = rest_from(u)
        if rest < few:
            return (h * total + _within(rest + strip)) / (2 * arb.pi())
    raise OutOfReachError("few rounds or few participations, which need too many nodes")


def _lines(releases: _Made, c: arb, h: arb, most: float) -> list[tuple[int, int]]:
    """Return first nodes and sides of longer and longer lines that are affordable."""
    lines, first, side, products = list[tuple[int, int]](), 0, 8, 0
    while products < most:
        lines.append((first, side))
        first += side**2
        products += side**2 * sum(each.products(c, h * first) for each, _ in releases)
        side = round(1.4 * side)
    return lines


def _terms(releases: _Made, log_k: arb, c: arb, h: arb, first: int, side: int) -> list[acb]:
    """Return k^(1-s) M(s) / (s (s-1)) at the nodes of a line."""
    nodes = [acb(c, h * n) for n in range(first, first + side**2)]
    terms = [((1 - s) * log_k).exp() / (s * (s - 1)) for s in nodes]
    for each, n in releases:
        line = each.line(c, h, first, side)
        terms = [term * value**n for term, value in zip(terms, line, strict=True)]
    return terms


def _decay(releases: _Made, c: arb, u: arb, rest: arb, few: arb) -> arb:
    """Return ``rest`` times the decay of all releases, or of some if less than ``few`` is left."""
    for each, n in releases:
        if rest < few:  # the others are at most 1
            break
        rest *= each.decay(c, u) ** n
    return rest


def _of_one_round(one: SampledGaussian, e: arb) -> arb:
    """L grows with x, so that the worst event is a half-line."""
    k, rest = e.exp(), one.least
    x = ((k - rest) / one.part).log() / one.a
    removed = one.q * _above(x - one.a) - (k - rest) * _above(x)
    if rest * k >= 1:
        return removed
    x = ((1 / k - rest) / one.part).log() / one.a
    return removed.max((1 - k * rest) * _above(-x) - k * one.q * _above(one.a - x))


def _of_laplace(releases: Sequence[tuple[Any, int]], e: arb) -> arb:
    """Expand M(s) into exponentials times powers of s, s - 1 and 2s - 1, and add residues."""
    total = sum(n for _, n in releases)
    terms = math.prod(n + 1 for _, n in releases)
    if max(terms, total) > _TERMS:
        raise OutOfReachError("the closed form of so many Laplace releases has too many terms")
    plus, minus = arb_series([arb(0.5), 1]), arb_series([arb(-0.5), 1])
    total_mass = arb(0)
    for ups in product(*(range(n + 1) for _, n in releases)):
        pairs = list(zip(ups, releases, strict=True))
        shift = sum(((2 * i - n) * one.a for i, (one, n) in pairs), -e)
        if shift <= 0:
            continue
        factor = sum((-i * one.a for i, (one, _) in pairs), e).exp()
        factor *= math.prod(math.comb(n, i) for i, (_, n) in pairs)
        powers = plus ** (sum(ups) - 1) * minus ** (total - sum(ups) - 1)
        residue = (powers * arb_series([shift / 2, shift]).exp())[total - 1] / arb(2) ** total
        total_mass += factor * (residue + (shift.exp() if sum(ups) == total else 0))
    return total_mass


def _ball(number: Number) -> arb:
    exact = Fraction(number)
    return arb(fmpq(exact.numerator, exact.denominator))


def _above_zero(number: Number) -> arb:
    ball = _ball(number)
    _require(ball > 0, "numbers above 0")
    return ball


def _require(holds: bool, what: str) -> None:  # noqa: FBT001
    if not holds:
        raise OutOfReachError(f"the proof needs {what}")


def _within(radius: arb) -> arb:
    return arb(0, radius.abs_upper())


def _above(x: arb) -> arb:
    """Return the probability that a standard normal variable is above x."""
    return (x / arb(2).sqrt()).erfc() / 2


def _powers(x: acb, start: acb, count: int) -> list[acb]:
    powers = [start]
    while len(powers) < count:
        powers.append(powers[-1] * x)
    return powers
