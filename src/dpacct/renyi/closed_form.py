"""Closed-form Renyi bounds of one sampled round, each with its conditions, and their accountant.

With nu the noise std per unit of shift, all are of the form R(alpha) <= c q^2 alpha / nu^2:

    DP-Fed-LS lemma 4, Poisson              c = 2     nu^2 >= 5/9, condition (S)
    DP-Fed-LS lemma 3, fixed size           c = 3.5   nu^2 >= 2/3, condition (S)
    Mironov et al. 2019, thm 11, Poisson    c = 2     q <= 1/5, nu >= 4, condition (M)
    Bun et al. 2018, thm 12, fixed size     c = 6.5   q <= 1/10, nu^2 >= 5, condition (B)

All hold at every real order alpha > 1 that meets their conditions. Publications prove lemmas 3 and
4 at integer orders only. docs/derivations/closed-forms.md proves them at all orders, and lists the
errors of the publications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct.errors import WrongAccountant
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT
from dpacct.pairs.dominating import (
    Direction,
    GeneralPair,
    ReplacementPair,
    SymmetrizedPair,
    proven_pair,
)
from dpacct.renyi.curve import (
    AtOrder,
    ByOrder,
    best_delta,
    best_epsilon,
    improved_delta,
    improved_epsilon,
)
from dpacct.rounds import AccountantName, Poisson, Round, Schedule

# (order, q, nu) -> the conditions that fail, in words.
Conditions = Callable[[float, float, float], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """R(alpha) <= coefficient q^2 alpha / nu^2 where ``violations(alpha, q, nu)`` is empty."""

    name: str
    coefficient: float
    violations: Conditions

    def renyi(self, order: float, sampling_rate: float, noise_std: float) -> float:
        """Return the bound, rounded up. It holds only if nothing is violated."""
        value = self.coefficient * sampling_rate**2 * order / noise_std**2
        return value * (1 + FUNCTION_ERROR)


def _at_least(name: str, value: float, least: float) -> tuple[str, ...]:
    return () if value >= least else (f"{name} is {value:.6g} and must be at least {least:.6g}",)


def _at_most(name: str, value: float, most: float) -> tuple[str, ...]:
    return () if value <= most else (f"{name} is {value:.6g} and must be at most {most:.6g}",)


def order_limit(order: float, sampling_rate: float, noise_std: float) -> float:
    """Return (2 nu^2 / 3) log(1 / (q alpha (1 + nu^2))), at least alpha - 1 by condition (S)."""
    variance = noise_std**2
    return -2 * variance / 3 * math.log(sampling_rate * order * (1 + variance))


def _lemma_conditions(least_variance: float) -> Conditions:
    def violations(order: float, q: float, nu: float) -> tuple[str, ...]:
        limit = order_limit(order, q, nu)
        return _at_least("nu^2", nu * nu, least_variance) + _at_most("order - 1", order - 1, limit)

    return violations


def _mironov_conditions(order: float, q: float, nu: float) -> tuple[str, ...]:
    variance, log_nu = nu * nu, math.log(nu)
    length = math.log1p(1 / (q * (order - 1)))
    numerator = variance * length**2 / 2 - math.log(5.0) - 2 * log_nu
    denominator = length + math.log(q * order) + 1 / (2 * variance)
    # The denominator is positive: length > -log(q (order - 1)).
    limit = min(variance * length / 2 - 2 * log_nu, numerator / denominator)
    return _at_most("q", q, 0.2) + _at_least("nu", nu, 4.0) + _at_most("order", order, limit)


def _bun_conditions(order: float, q: float, nu: float) -> tuple[str, ...]:
    rho, log_rate = 1 / (2 * nu * nu), -math.log(q)
    return (
        _at_most("q", q, 0.1)
        + _at_most("rho = 1/(2 nu^2)", rho, 0.1)
        + _at_least(
            "log(1/q)",
            log_rate,
            max(3 * rho * (2 - math.log2(rho)), 6 * rho - 4 * rho * math.log2(rho)),
        )
        + _at_most("order", order, log_rate / (4 * rho))
    )


LEMMA_3 = ClosedForm("DP-Fed-LS lemma 3", 3.5, _lemma_conditions(2 / 3))
LEMMA_4 = ClosedForm("DP-Fed-LS lemma 4", 2.0, _lemma_conditions(5 / 9))
MIRONOV = ClosedForm("Mironov et al. 2019", 2.0, _mironov_conditions)
BUN = ClosedForm("Bun et al. 2018", 6.5, _bun_conditions)


def forms_for(round_: Round) -> tuple[tuple[ClosedForm, ...], float]:
    """Return the closed forms about a round, and their nu.

    Raises:
        WrongAccountant: there is none.
    """
    if isinstance(round_.sampling, Poisson) and not round_.sampling.is_plain:
        raise _uncovered(repr(round_))
    pair = proven_pair(round_, Direction.REMOVE)
    if isinstance(pair, ReplacementPair | GeneralPair):
        reason = "Poisson sampling with replace-one adjacency"
        raise _uncovered(reason if isinstance(pair, ReplacementPair) else repr(round_))
    forms = (LEMMA_3, BUN) if isinstance(pair, SymmetrizedPair) else (LEMMA_4, MIRONOV)
    return forms, pair.noise_std


def _uncovered(what: str) -> WrongAccountant:
    return _wrong(f"no closed form is proven for {what}")


def _wrong(rule: str) -> WrongAccountant:
    return WrongAccountant("accountant", "closed-form", rule, "Use tight, which covers it.")


def closed_form_renyi(order: float, round_: Round) -> tuple[float, tuple[str, ...]]:
    """Return the smallest applicable bound of one round at a real order > 1, rounded up.

    That is (bound, ()), or (infinity, the violated conditions of each form).

    Raises:
        WrongAccountant: there is no closed form for such a round.
    """
    q = round_.sampling_rate
    if q == 1.0:
        nu = forms_for(round_)[1]
        return order / (2 * nu * nu) * (1 + FUNCTION_ERROR), ()
    forms, nu = forms_for(round_)
    failed = {form: form.violations(order, q, nu) for form in forms}
    holding = [form.renyi(order, q, nu) for form in forms if not failed[form]]
    if holding:
        return min(holding), ()
    return math.inf, tuple(f"{form.name}: {'; '.join(failed[form])}" for form in forms)


# Searches begin at these orders: the minimum of several forms may have several valleys.
_STARTS = [1.1, 1.5, *(2.0 * 3**k for k in range(12))]
# Of searches, in log(alpha - 1): bounds are steep next to an order where a condition ends.
_TOLERANCE = 1e-9
# The orders that are tried at all, and the lowest of them.
_MOST, _LEAST = 1e7, 1 + 1e-6


@dataclass(frozen=True, slots=True)
class ClosedFormAccountant(ByOrder):
    """The closed forms of this module at real orders, improved conversion.

    Raises:
        WrongAccountant: no closed form applies at any order.
    """

    name: AccountantName = "closed-form"

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `ByOrder`."""
        if not schedule.rounds:
            return 0.0
        curve = _curve(schedule)
        orders = _orders(curve, lambda start: best_epsilon(curve, delta, start, _TOLERANCE))
        return min(improved_epsilon(order, curve(order), delta) for order in orders)

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """See `ByOrder`."""
        if not schedule.rounds:
            return 0.0
        curve = _curve(schedule)
        orders = _orders(curve, lambda start: best_delta(curve, epsilon, start, _TOLERANCE))
        return min(improved_delta(order, curve(order), epsilon) for order in orders)


def _curve(schedule: Schedule) -> Callable[[float], float]:
    """Return an upper bound of the divergence as a function of the order, perhaps infinite."""
    counts = schedule.only_rounds()
    for kind in schedule.distinct():
        if kind not in counts:
            raise _uncovered(repr(kind))
    for round_ in counts:
        # The conditions bound the order from above, so they hold next to 1 or at no order.
        if math.isinf(closed_form_renyi(_LEAST, round_)[0]):
            setting = f"{round_.sampling!r} with noise {round_.noise_multiplier:.6g}"
            where = "for other noise or lower rates (docs/derivations/closed-forms.md)"
            raise _wrong(f"no closed form covers {setting}. They are proven {where}")
    rounding = 1 + 2 * UNIT * (len(counts) + 2)

    def curve(order: float) -> float:
        parts = (count * closed_form_renyi(order, r)[0] for r, count in counts.items())
        return rounding * sum(parts)

    return curve


def _orders(curve: Callable[[float], float], search: Callable[[float], AtOrder]) -> list[float]:
    """Return the orders that may be best: the searched minima, and the last order of each form."""
    starts = [order for order in _STARTS if math.isfinite(curve(order))]
    orders = [search(order).order for order in starts or [_LEAST]]
    # Epsilon often falls up to the order where the conditions end.
    good, bad = max(orders), _MOST
    if math.isfinite(curve(bad)):
        return [*orders, bad]
    while bad - good > 1e-12 * (good - 1):
        middle = (good + bad) / 2
        if not good < middle < bad:
            break
        good, bad = (middle, bad) if math.isfinite(curve(middle)) else (good, middle)
    return [*orders, good]
