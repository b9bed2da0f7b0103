"""Poisson sampling where one client is replaced by its opposite, in multiprecision.

P = (1-q) N(0) + q N(1) against Q = (1-q) N(0) + q N(-1). Everything is a trapezoid sum over x of
the two densities themselves, with many more nodes and digits than the package takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from mpmath import mp, mpc, mpf

DIGITS = 50


def _densities(q: float, s: float) -> Callable[[mpf], tuple[mpf, mpf]]:
    rate, std = mpf(q), mpf(s)
    scale = 1 / (std * mp.sqrt(2 * mp.pi))

    def at(x: mpf) -> tuple[mpf, mpf]:
        zero, plus, minus = (mp.exp(-(((x - m) / std) ** 2) / 2) * scale for m in (0, 1, -1))
        return (1 - rate) * zero + rate * plus, (1 - rate) * zero + rate * minus

    return at


def _log_term(x: np.ndarray, a: float, q: float, s: float) -> np.ndarray:
    """log of P^a Q^(1-a) without constants, in double precision."""
    log_rest = math.log1p(-q) if q < 1.0 else -math.inf
    logs = [
        np.logaddexp(log_rest, math.log(q) + (2 * sign * x - 1) / (2 * s * s)) for sign in (1, -1)
    ]
    return a * logs[0] + (1 - a) * logs[1] - (x / s) ** 2 / 2


def _nodes(exponents: tuple[float, ...], q: float, s: float, digits: float) -> tuple[int, int, mpf]:
    """First and last multiple of a step that reach wherever one of the terms matters."""
    most = max(exponents)
    left, right = -1 - 20 * s, max(2 * most - 1, 1.0) + 20 * s
    points, gap = np.linspace(left, right, 20001, retstep=True)
    terms = np.max([_log_term(points, a, q, s) for a in exponents], axis=0)
    inside = points[terms > terms.max() - digits * math.log(10)]
    ends = float(inside[0]) - 2 * gap, float(inside[-1]) + 2 * gap
    # Trapezoid: analytic for |Im x| < pi s^2, where negative powers grow like 1 / cos.
    strip = min(2.0 * s * s, 2 * s * s * math.sqrt(digits / (1 + most)), 6 * s)
    penalty = strip**2 / (2 * s * s) - most * math.log(math.cos(strip / (2 * s * s)))
    step = 2 * math.pi * strip / (2.303 * digits + penalty + 10)
    return math.floor(ends[0] / step), math.ceil(ends[1] / step), mpf(step)


def log_moment(order: float, q: float, s: float) -> mpf:
    """log E_Q[(P/Q)^a], a > 0, to full relative precision: R^a - 1 - a (R - 1) is summed."""
    tiny = abs(order * (order - 1)) * q * q * min(1.0, 1 / (s * s))
    lost = max(0.0, -math.log10(tiny))
    with mp.workdps(math.ceil(DIGITS + 2 * lost)):
        a, densities = mpf(order), _densities(q, s)

        def f(x: mpf) -> mpf:
            p, r = densities(x)
            return r * ((p / r) ** a - 1 - a * (p / r - 1))

        first, last, step = _nodes((0.0, 1.0, order), q, s, 25 + lost)
        return mp.log1p(step * mp.fsum(f(k * step) for k in range(first, last + 1)))


def threshold(epsilon: mpf, q: float, s: float) -> mpf:
    """The x at which P = e^eps Q, for any real eps."""
    rate, variance = mpf(q), mpf(s) ** 2
    odds = (1 - rate) / rate * mp.exp(1 / (2 * variance))
    return variance * (epsilon / 2 + mp.asinh(odds * mp.sinh(epsilon / 2)))


def one_round(epsilon: float | mpf, q: float, s: float) -> mpf:
    """delta(eps) of one round, any real eps; absolute error about e^eps times the precision."""
    rate, std, at = mpf(q), mpf(s), threshold(mpf(epsilon), q, s)
    zero, plus, minus = (mp.erfc((at - m) / (std * mp.sqrt(2))) / 2 for m in (0, 1, -1))
    return (1 - rate) * zero + rate * plus - mp.exp(epsilon) * ((1 - rate) * zero + rate * minus)


def two_rounds(
    epsilon: float, first: tuple[float, float], second: tuple[float, float], nodes: int = 24
) -> mpf:
    """delta(eps) of two rounds (q, s): E_P[delta_1(eps - L)], an analytic function of x.

    For rare rounds delta_1 bends within a rate of zero, so that more nodes are needed.
    """
    with mp.workdps(30):
        q, s = first
        densities = _densities(q, s)

        def f(x: mpf) -> mpf:
            p, r = densities(x)
            return p * one_round(mpf(epsilon) - mp.log(p / r), *second)

        reach, step = 1 + 12 * s, mpf(min(s, s * s)) / nodes
        count = math.ceil(reach / step)
        return step * mp.fsum(f(k * step) for k in range(-count, count + 1))


def characteristic(q: float, s: float, tilt: float, frequencies: list[float]) -> list[mpc]:
    """M(c + it) / M(c) of one round."""
    with mp.workdps(30):
        densities = _densities(q, s)
        first, last, step = _nodes((1 + tilt,), q, s, 22.0)
        # e^{itL} grows away from the line like e^(2 t |Im x| / s^2).
        finer = 1 + math.ceil(max(frequencies) / 20)
        nodes: list[tuple[mpf, mpf]] = []
        for k in range(first * finer, last * finer + 1):
            p, r = densities(k * step / finer)
            loss = mp.log(p / r)
            nodes.append((p * mp.exp(tilt * loss), loss))
        whole = mp.fsum(mass for mass, _ in nodes)
        return [
            mp.fsum(mass * mp.expj(t * loss) for mass, loss in nodes) / whole for t in frequencies
        ]
