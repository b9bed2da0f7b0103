"""The worst attackers against the rule of admission, enumerated (adaptive.md, theorem 3a).

An attacker chooses each release, and when to stop, by the losses so far. Dynamic programming finds
the largest E[(1 - e^(epsilon - L))_+] that any attacker reaches. Gaussian sums are looked at
through a few bins: what is found is reached, and less than the worst.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from dpacct import Budget, RandomizedResponse, Round
from dpacct.ledger.record.entries import Opening
from dpacct.ledger.record.plans import Plan, plan_room
from dpacct.ledger.record.state import admission_epsilon, empty_ledger
from dpacct.renyi.odometer import add, design_mixture, times

# Masses of P with their losses.
Law = tuple[tuple[float, float], ...]
EDGES = (-math.inf, -0.7, 0.3, 1.0, 2.0, math.inf)


def response(epsilon: float) -> Law:
    """Randomized response, which all pure releases of this epsilon are at most as bad as."""
    top = 1 / (1 + math.exp(-epsilon))
    return (top, epsilon), (1 - top, -epsilon)


def gaussian(noise_multiplier: float) -> Law:
    """A Gaussian sum of which only the bin is seen."""

    def mass(low: float, high: float) -> float:
        return (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2

    mu, found = 1 / noise_multiplier, list[tuple[float, float]]()
    for low, high in itertools.pairwise(EDGES):
        p = mass(low - mu, high - mu)
        found.append((p, math.log(p / mass(low, high))))
    return tuple(found)


def law(release: Round | RandomizedResponse) -> Law:
    is_round = isinstance(release, Round)
    return gaussian(release.noise_multiplier) if is_round else response(release.epsilon)


def excess(epsilon: float, loss: float) -> float:
    return 1.0 if loss == math.inf else max(0.0, -math.expm1(epsilon - loss))


def worst(
    laws: Sequence[Law], epsilon: float, admits: Callable[[tuple[int, ...], int], bool], depth: int
) -> float:
    """The largest excess over all attackers.

    ``admits``: whether a release of one kind may run that leads to these counts.
    """

    @cache
    def value(counts: tuple[int, ...], loss: float) -> float:
        best = excess(epsilon, loss)
        if sum(counts) == depth or loss == math.inf:
            return best
        for place, outcomes in enumerate(laws):
            more = tuple(count + (place == n) for n, count in enumerate(counts))
            if admits(more, place):
                reached = (p * value(more, round(loss + step, 9)) for p, step in outcomes)
                best = max(best, sum(reached))
        return best

    return value((0,) * len(laws), 0.0)


def ledger_rule(
    budget: Budget, plan: Round, planned: int, others: Sequence[Round | RandomizedResponse],
    *, held: bool = True, pure_alone: bool = True,
) -> Callable[[tuple[int, ...], int], bool]:  # fmt: skip
    """The rule of a ledger with one plan. The first count is that of its rounds, which run unasked.

    Without ``held`` a plan counts only as far as it ran. Without ``pure_alone`` the epsilons of
    pure releases may be added to the reading of all others, whatever those are.
    """
    mixture, schedule = design_mixture(budget), planned * plan
    room = plan_room(mixture, budget, [Plan(schedule)])
    assert room.fits
    opening = Opening(budget, mixture, "client", "", adjacency="add-remove")
    state = empty_ledger(opening)._replace(
        delta=room.delta, plan_delta=room.plan_delta, promised_delta=room.promised_delta
    )

    @cache
    def admits(counts: tuple[int, ...], place: int) -> bool:
        used, beside = counts[0], counts[1:]
        if place == 0:
            return used <= planned
        counted = planned if held else used
        charged = mixture.within_plans(times(counted, mixture.cost(plan)))
        costs = [times(n, mixture.cost(kind)) for n, kind in zip(beside, others, strict=True)]
        found = admission_epsilon(mixture, state, add(charged, *costs), lambda: [Plan(schedule)])
        if not pure_alone:
            rounds = [c for c, kind in zip(costs, others, strict=True) if isinstance(kind, Round)]
            reading = mixture.epsilon(add(mixture.zero(), *rounds), budget.delta)
            pure = sum(n * kind.epsilon for n, kind in zip(beside, others, strict=True)
                       if not isinstance(kind, Round))  # fmt: skip
            found = min(found, reading + pure)
        return found <= budget.epsilon

    return admits


SAID = RandomizedResponse
CASES = [
    (Budget(1.5, 0.01), Round(2.0), 2, (SAID(0.3), Round(3.0), SAID(0.7))),
    (Budget(0.5, 0.05), Round(3.0), 2, (SAID(0.2), Round(1.0))),
    (Budget(1.0, 0.1), Round(1.5), 1, (SAID(0.3), Round(3.0), SAID(0.1))),
    (Budget(2.0, 0.1), Round(1.0), 1, (SAID(0.1), Round(5.0), SAID(0.4))),
]


def reached(case: tuple, **changed: bool) -> float:
    """The worst excess over delta."""
    budget, plan, _, others = case
    laws, rule = [law(kind) for kind in (plan, *others)], ledger_rule(*case, **changed)
    return worst(laws, budget.epsilon, rule, 5) / budget.delta


@pytest.mark.parametrize("case", CASES)
def test_no_attacker_exceeds_delta(case: tuple) -> None:
    assert 0.01 < reached(case) <= 1


def test_attackers_exceed_delta_if_a_plan_counts_only_as_far_as_it_ran() -> None:
    assert reached(CASES[0], held=False) > 5


def test_attackers_exceed_delta_if_pure_releases_are_added_to_whatever_ran() -> None:
    assert reached(CASES[0], pure_alone=False) > 5


def test_two_rules_at_one_delta_are_beaten_by_an_attacker_who_chooses_between_them() -> None:
    """Why delta is divided: a first look, then a promise where it is good, else a pure release."""
    half = math.log(2 - math.exp(-3))
    look = (0.5, 3.0), (0.5, -half)
    promise, pure = ((0.3, math.inf), (0.7, math.log(0.7))), response(2.0)
    laws, first = (look, promise, pure), ((1, 1, 0), (1, 0, 1))

    def within(*most: tuple[int, ...]) -> Callable[[tuple[int, ...], int], bool]:
        return lambda counts, _: any(all(map(int.__le__, counts, one)) for one in most)

    alone = [worst(laws, 4.0, within(most), 3) for most in first]
    both = worst(laws, 4.0, within(*first), 3)
    # What condition B sets aside is the excess of the look at 4 - 2.
    aside = worst((look,), 2.0, within((1,)), 3)
    assert both > 1.3 * max(*alone, aside)
    assert alone[1] <= aside
    assert both <= alone[0] + aside


def test_all_that_is_pure_stays_within_its_sum_on_every_path() -> None:
    kinds = (response(0.5), response(1.0), response(0.25))
    budget = design_mixture(Budget(2, 1e-9))
    costs = [budget.cost(RandomizedResponse(e)) for e in (0.5, 1.0, 0.25)]

    def admits(counts: tuple[int, ...], _: int = 0) -> bool:
        total = add(budget.zero(), *(times(n, c) for n, c in zip(counts, costs, strict=True)))
        return budget.epsilon(total, 1e-9) <= 2

    assert worst(kinds, 2.0, admits, 8) == 0.0
    assert admits((0, 0, 8))
    assert not admits((0, 0, 9))
