"""Each term of the second proof is needed: without it, some ball misses the truth.

A check compares balls of a copy of the file with exact values, in settings in which one term is all
that matters: sums that are designed for few bits, in arithmetic of many. The file passes all
checks, and each copy without a term fails the check of that term.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

import dpacct
from dpacct import Laplace, Poisson, Round

pytestmark = pytest.mark.needs("flint")

Edit = tuple[str, str]
SETTINGS = (("0.1", "1"), ("0.001", "3"), ("0.9", "0.5"), ("0.3", "10"))


@cache
def copy(*edits: Edit) -> ModuleType:
    """Return a copy of the file with some of its text changed, each text once."""
    found = importlib.util.find_spec("dpacct.certificates.proof")
    assert found is not None
    source = Path(found.origin or "").read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    made = ModuleType("copy")
    exec(compile(source, "proof.py", "exec"), made.__dict__)  # noqa: S102 - the file itself, edited
    return made


@contextmanager
def designed(proof: Any, bits: int) -> Iterator[None]:
    """Make choices for ``bits``, and compute with 128."""
    true, precise = proof.ctx, pytest.importorskip("flint").ctx
    before, precise.prec = precise.prec, 128
    proof.ctx = SimpleNamespace(prec=bits, cap=precise.cap)
    try:
        yield
    finally:
        proof.ctx, precise.prec = true, before


def holds(ball: Any, value: complex) -> bool:
    """Return True if a ball of a real or complex number holds a value that is exact to 1e-12."""
    parts = ((ball.real, value.real), (ball.imag, value.imag))
    return all(abs(float(b.mid()) - v) <= float(b.rad()) + 1e-12 * abs(value) for b, v in parts)


@cache
def moment(q: str, z: str, c: float, u: float) -> complex:
    """m(c + iu) by the file's own sum, for many bits."""
    proof = copy()
    with designed(proof, 128):
        return complex(proof.SampledGaussian(q, z).line(proof.arb(c), proof.arb(u), 1, 1)[0])


def moments(proof: Any) -> Iterator[bool]:
    """Balls of moments hold them."""
    for (q, z), c, u, bits in product(
        SETTINGS, (1.01, 1.5, 4.0, 11.0, -0.2, -1.0, -6.0), (0.01, 1.0, 7.0), (4, 6, 8, 11, 14)
    ):
        truth = moment(q, z, c, u)
        with designed(proof, bits):
            try:
                one = proof.SampledGaussian(q, z)
                part = one.line(proof.arb(c), proof.arb(u), 1, 1)[0]
                whole = one.moment(proof.arb(c))
            except proof.OutOfReachError:
                continue
        yield holds(part, truth)
        exact = abs(moment(q, z, c, 0.0))
        yield abs(float(whole.mid()) - exact) <= float(whole.rad()) + 1e-12 * exact


@cache
def outside(q: str, z: str, c: float, low: float, high: float) -> float:
    """The integral of phi L^c outside of an interval."""
    rate, a = mpmath.mpf(q), 1 / mpmath.mpf(z)

    def integrand(x: Any) -> Any:
        return mpmath.npdf(x) * (1 - rate + rate * mpmath.exp(a * x - a * a / 2)) ** c

    left = mpmath.quad(integrand, [low - 30, low - 10, low - 3, low])
    return float(left + mpmath.quad(integrand, [high, high + 3, high + 10, high + 40]))


def cuts(proof: Any) -> Iterator[bool]:
    """Lemma 2 bounds what lies outside."""
    with designed(proof, 128):
        for (q, z), c, (low, high) in product(
            (("0.01", "3"), ("0.5", "20"), ("0.99", "2")),
            (2.0, 10.0, -1.0, -4.0),
            ((-8.0, 6.0), (-1.0, 12.0), (-1.0, 6.0)),
        ):
            bound = proof.SampledGaussian(q, z).cut(*map(proof.arb, (c, low, high)))
            yield float(bound.upper()) >= outside(q, z, c, low, high) * (1 - 1e-9)


ROWS = (
    # Exact moments: the sum of nodes is all that errs. The first ones hardly decay.
    (("Gaussian", "40", 1), ("Laplace", "0.3", 1)),
    (("Gaussian", "2", 3), ("Laplace", "0.2", 5)),
    (("Gaussian", "100", 1),),
)
SHAPES = (
    (3.0, 1.0, 6.0),
    (3.0, 1.0, 3.0),
    (3.0, 1.9, 2.0),
    (2.0, 0.6, 2.0),
    (6.0, 4.5, 4.0),
    (9.0, 1.0, 2.0),
    (3.0, 1.5, 0.05),
    (2.0, 0.9, 0.3),
    (1.5, 0.4, 0.05),
)


def integral(proof: Any, rows: Any, e: float, *, removed: bool, shape: Any = None) -> Any:
    made = [(getattr(proof, kind)(*numbers), n) for kind, *numbers, n in rows]
    if shape is not None:
        c, d, h = shape if removed else (1 - shape[0], *shape[1:])
        proof._shape = lambda *_, **__: tuple(map(proof.arb, (c, d, h)))
    return proof._integral(made, proof.arb(e), 5e6, removed=removed)


@cache
def integrated(rows: Any, e: float, *, removed: bool) -> float:
    """The same for many bits."""
    proof = copy(("few = peak * arb(2) ** (-0.45 * ctx.prec)", "few = peak * arb(2) ** -44"))
    with designed(proof, 100):
        return float(integral(proof, rows, e, removed=removed).mid())


def sums(proof: Any) -> Iterator[bool]:
    """Balls of outer sums hold the integral, for any line and step, however early they end."""
    before = proof._shape
    for rows, e, removed, shape, bits in product(
        ROWS, (0.0, 0.4, -1.5), (True, False), SHAPES, (-8, 1, 40)
    ):
        truth = integrated(rows, e, removed=removed)
        with designed(proof, bits):
            try:
                found = integral(proof, rows, e, removed=removed, shape=shape)
            except proof.OutOfReachError:
                continue
            finally:
                proof._shape = before
        yield abs(float(found.mid()) - truth) <= float(found.rad()) + 1e-10 * abs(truth)


def decays(proof: Any) -> Iterator[bool]:
    """Lemma 4 bounds all frequencies from u on."""
    for (q, z), c, u in product(
        (("0.01", "0.7"), ("0.4", "2"), ("0.01", "2"), ("0.1", "1"), ("0.9", "1")),
        (1.2, 4.0, -0.5, -20.0, -40.0),
        (0.5, 2.0, 10.0, 40.0),
    ):
        with designed(proof, 128):
            try:
                bound = float(proof.SampledGaussian(q, z).decay(proof.arb(c), proof.arb(u)))
            except proof.OutOfReachError:
                continue
        whole = abs(moment(q, z, c, 0.0))
        # A bound that is no number is never small enough.
        yield not any(abs(moment(q, z, c, u * f)) > bound * whole * (1 + 1e-9) for f in (1.0, 1.3))
        # It is never more than 1.
        yield not (bound < 1 and along(q, z, c, u) > bound * whole * (1 + 1e-6))


@cache
def along(q: str, z: str, c: float, u: float) -> float:
    """The integral of phi L^c g_u, which is more than the moments at frequencies from u on."""
    rate, a = float(q), 1 / float(z)
    x = np.linspace(-20.0, 20.0 + max(c, 0.0) * a, 400_001)
    grown = rate * np.exp(a * x - a * a / 2)
    ratio = 1 - rate + grown
    p, s = grown / ratio, u * a / (1 + a * a)
    t = max(0.0, s / min(1.5 / a, 6.0) - 1)
    y, slope = s * p / (1 + t * p), s * a * p * (1 - p) / (1 + t * p) ** 2
    w = 1 - p + p * np.exp(1j * a * y)
    logs = c * np.log(ratio * np.abs(w)) + y * y / 2 - u * np.angle(w) - x * x / 2
    return (
        float((np.exp(logs) * np.hypot(1.0, slope)).sum()) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    )


def answers(proof: Any) -> Iterator[bool]:
    """Proven bounds hold the truth, also of what costs more without the client."""

    class Reversed(proof._Release):
        """A round with both neighbors in each other's place."""

        def __init__(self, *numbers: str) -> None:
            self.one = proof.SampledGaussian(*numbers)

        def moment(self, s: Any) -> Any:
            return self.one.moment(1 - s)

        def line(self, c: Any, h: Any, first: int, side: int) -> Any:
            return [value.conjugate() for value in self.one.line(1 - c, h, first, side)]

        def products(self, c: Any, reach: Any) -> int:
            return int(self.one.products(1 - c, reach))

        def decay(self, c: Any, u: Any) -> Any:
            return self.one.decay(1 - c, u)

    def meet(rows: Any, epsilon: str, truth: tuple[Any, Any]) -> bool:
        low, high = proof.prove(rows, epsilon)
        return bool(low <= truth[1] * (1 + 1e-9) and truth[0] * (1 - 1e-9) <= high)

    def known(plan: dpacct.Schedule, epsilon: str) -> tuple[float, float]:
        found = dpacct.delta(plan, epsilon=float(epsilon))
        return found.lower, found.upper

    numbers, noise = ("0.1", "1.28601", 300), 3 * Laplace(1.0) + 2 * Laplace(2.0)
    yield meet([(Reversed, *numbers)], "8", copy().prove([(copy().SampledGaussian, *numbers)], "8"))
    for epsilon in ("0", "1.5", "3", "3.9"):
        yield meet(
            [(proof.Laplace, 1, 3), (proof.Laplace, "0.5", 2)], epsilon, known(noise, epsilon)
        )
    for q, z, epsilon in (("0.3", "0.5", "0.1"), ("0.01", "1", "1"), ("0.9", "2", "0")):
        plan = 1 * Round(float(z), Poisson(float(q)))
        yield meet([(proof.SampledGaussian, q, z, 1)], epsilon, known(plan, epsilon))
    yield meet(
        [(proof.Gaussian, "4", 7), (proof.Gaussian, "9", 2)],
        "1.5",
        known(7 * Round(4.0) + 2 * Round(9.0), "1.5"),
    )
    with designed(proof, 40):
        made = [(proof.Gaussian("2"), 3), (proof.Laplace("0.2"), 5)]
        rough = proof._integral(made, proof.arb(-1), 5e6, removed=False, enough=proof.arb(9))
    yield float(rough.upper()) >= integrated(ROWS[1], -1.0, removed=False)


class Term(NamedTuple):
    check: Callable[[Any], Iterator[bool]]
    #: The text of the term, and what is there without it.
    edits: tuple[Edit, ...]
    #: Changes that do no harm, and leave more to the term.
    setting: tuple[Edit, ...] = ()


NARROW = (
    ("* math.log(self.least))) + 1", "* math.log(self.least))) - 2"),
    ("math.sqrt(2 * max(far, 0))) + 1", "math.sqrt(2 * max(far, 0))) - 2"),
)
FEW_CELLS = (("_CELLS, _ROUGH = 800, 24", "_CELLS, _ROUGH = 12, 24"),)
SHORT = (("low, high = arb(-13), arb(13 +", "low, high = arb(-1), arb(1 +"),)
TERMS: dict[str, Term] = {
    "1: error of the inner grid": Term(
        moments,
        (
            (
                "return logs, weights, cut + share * (reach * self.a * y).exp() * size, size",
                "return logs, weights, cut, size",
            ),
        ),
    ),
    "1: growth with the frequency": Term(moments, ((" * (reach * self.a * y).exp()", ""),)),
    "1: bend of powers below 0": Term(
        moments, (("bend = arb(1) if c > 0 else (self.a * y / 2).cos() ** c", "bend = arb(1)"),)
    ),
    "1: growth of the density": Term(moments, (("2 * bend * (y * y / 2).exp()", "2 * bend"),)),
    "1: both lines": Term(moments, (("share = 2 * bend", "share = bend"),)),
    "1: moment above the sum": Term(
        moments,
        (("(size / (1 - share)).union(size / (1 + share))", "size.union(size / (1 + share))"),),
    ),
    "1: moment below the sum": Term(
        moments,
        (("(size / (1 - share)).union(size / (1 + share))", "size.union(size / (1 - share))"),),
    ),
    "2: cut of lines": Term(moments, (("weights, cut + share", "weights, share"),), NARROW),
    "2: cut of moments": Term(
        moments, (("size = sum(weights, _within(cut))", "size = sum(weights, arb(0))"),), NARROW
    ),
    "2: left, below 0": Term(
        cuts, (("self.least**c * (_above(-low) + _above(high))", "self.least**c * _above(high)"),)
    ),
    "2: right, below 0": Term(
        cuts, (("self.least**c * (_above(-low) + _above(high))", "self.least**c * _above(-low)"),)
    ),
    "2: left": Term(cuts, (("return _above(-low) + 2**c", "return 2**c"),)),
    "2: right, rest": Term(
        cuts, (("self.least**c * _above(high) + self.part**c * tilted", "self.part**c * tilted"),)
    ),
    "2: right, part": Term(
        cuts,
        (("self.least**c * _above(high) + self.part**c * tilted", "self.least**c * _above(high)"),),
    ),
    "2: factor of sums": Term(cuts, (("2**c * (self.least", "(self.least"),)),
    "2: tilt": Term(cuts, (("(c * c * self.a * self.a / 2).exp() * _above", "_above"),)),
    "2: shift of the tail": Term(cuts, (("_above(high - c * self.a)", "_above(high)"),)),
    "3: strip": Term(sums, (("_within(rest + strip)", "_within(rest)"),)),
    "3: line near the pole": Term(sums, (("for x in (c - d, c + d):", "for x in (c + d,):"),)),
    "3: other line": Term(sums, (("for x in (c - d, c + d):", "for x in (c - d,):"),)),
    "3: integral over a line": Term(sums, (("size(x) * arb.pi() / room(x)", "size(x) / room(x)"),)),
    "3: distance of the pole": Term(
        sums, (("size(x) * arb.pi() / room(x)", "size(x) * arb.pi()"),)
    ),
    "4: end of the sum": Term(sums, (("_within(rest + strip)", "_within(strip)"),)),
    "4: both ends": Term(sums, (("2 * peak / (u - h)", "peak / (u - h)"),)),
    "4: length of the path": Term(
        decays, (("g = (1 + rise * rise).sqrt() * abs(turned) ** c", "g = abs(turned) ** c"),)
    ),
    "4: modulus on the path": Term(
        decays, (("(1 + rise * rise).sqrt() * abs(turned) ** c", "(1 + rise * rise).sqrt()"),)
    ),
    "4: density on the path": Term(
        decays, (("(y * y / 2 - u * turned.arg()).exp()", "(-u * turned.arg()).exp()"),)
    ),
    "4: lower ends of cells": Term(
        decays,
        (("fallen += ((1 - g) * mass).lower()", "fallen += ((1 - g) * mass).upper()"),),
        FEW_CELLS,
    ),
    "4: whole cells": Term(decays, (("row[j].union(row[j + 1])", "row[j + 1]"),), FEW_CELLS),
    "the other direction": Term(
        answers, (("return removed.max(e.exp() * added)", "return removed"),)
    ),
    "less than the other direction": Term(
        answers, (("arb(0).union(peak / (2 * room(c)))", "arb(0).union(peak / (9 * room(c)))"),)
    ),
    "the residue at 1": Term(answers, (("(shift.exp() if sum(ups) == total else 0)", "0"),)),
    "the order of the residue": Term(answers, (("* arb_series([shift / 2, shift]).exp())", ")"),)),
    "closing to the right": Term(
        answers, (("        if shift <= 0:\n            continue\n", ""),)
    ),
    "one round: the crowd": Term(answers, (("- (k - rest) * _above(x)\n", "\n"),)),
    "full participation: the crowd": Term(answers, ((" - e.exp() * _above(e / mu + mu / 2)", ""),)),
    "4: outside of the cells": Term(
        decays, (("size - fallen + g * self.cut(c, low, high)", "size - fallen"),), SHORT
    ),
}


# `test_settings_do_no_harm` has decays on fewer cells.
@pytest.mark.parametrize(
    "check", [moments, cuts, sums, pytest.param(decays, marks=pytest.mark.slow), answers]
)
def test_the_file_passes(check: Callable[[Any], Iterator[bool]]) -> None:
    assert all(check(copy()))


@pytest.mark.parametrize("setting", [NARROW, FEW_CELLS, SHORT])
def test_settings_do_no_harm(setting: tuple[Edit, ...]) -> None:
    assert all((moments if setting is NARROW else decays)(copy(*setting)))


@pytest.mark.parametrize("name", TERMS)
def test_without_a_term_some_ball_misses_the_truth(name: str) -> None:
    term = TERMS[name]
    assert not all(term.check(copy(*term.setting, *term.edits)))
