"""What stands beside an answer: what Renyi or a publication asks instead, and why it is wide.

Rule: a comparison that takes long, does not apply or says nothing new is left out.
"""

from __future__ import annotations

import math
from contextlib import suppress

import dpacct
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.pairs.dominating import Direction, achieved_pair, proven_pair
from dpacct.renyi.curve import RenyiAccountant, RenyiCurve, best_epsilon
from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct_cli import mechanism
from dpacct_cli.render import Row, up

PUBLISHED = "Wang et al. 2019"
# Distinct rounds up to which Renyi takes a few thousandths of a second.
MOST_KINDS = 4
# A relative difference that is worth a line.
WORTH_A_LINE = 1e-3
# Relative width that two proven sides of the same pair are meant to reach.
NARROW = 1e-6
# Below these the loss of a round may be so sharp that the bracket is wider than that.
LITTLE_NOISE = 0.1
SMALL_RATE = 0.01


def epsilon_rows(
    plan: Schedule, delta: float, accountant: str, spent: Interval, *, found: bool = False
) -> list[Row]:
    """Other epsilons: by Renyi; or for cohorts of fixed size (replace-one) what is published.

    Args:
        plan, delta, accountant, spent: what runs, and what was answered.
        found: the rounds are the answer to another question, so that more has to be said.
    """
    what, of = ("epsilon ", ", of the same rounds") if found else ("", "")
    only = mechanism.single_round(plan)
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    if replaced and only is not None and isinstance(only.sampling, Uniform):
        return _fixed_size_rows(plan, only, delta, accountant, spent)
    if accountant != DEFAULT_ACCOUNTANT or len(plan.distinct()) > MOST_KINDS:
        return []
    renyi = RenyiAccountant().upper_epsilon(plan, delta)
    if not (1 + WORTH_A_LINE) * spent.upper < renyi < math.inf:
        return []
    return [Row("instead of", up(renyi), f"{what}by Renyi{of}")]


def _fixed_size_rows(
    plan: Schedule, only: Round, delta: float, accountant: str, spent: Interval
) -> list[Row]:
    found: list[Row] = []
    if accountant in (DEFAULT_ACCOUNTANT, RenyiAccountant().name):
        published = _by_route(RenyiCurve(plan), PUBLISHED, delta)
        if (1 + WORTH_A_LINE) * spent.upper < published < math.inf:
            found.append(Row("for comparison", up(published), f"Renyi by {PUBLISHED}"))
    poisson = plan.rounds * Round(only.noise_multiplier, Poisson(only.sampling_rate))
    with suppress(Unsupported):
        mistaken = dpacct.epsilon(poisson, delta=delta, accountant=accountant).upper
        label = "" if found else "for comparison"
        found.append(Row(label, up(mistaken), "if the cohorts were Poisson (add-remove)"))
    return found


def _by_route(curve: RenyiCurve, route: str, delta: float) -> float:
    routes = dict(curve.routes(2.0))
    if route not in routes:
        # A cohort of everybody is not sampled.
        return math.inf
    return best_epsilon(lambda order: dict(curve.routes(order))[route], delta, 4.0).value


def wide_bracket_note(plan: Schedule, found: Interval, accountant: str) -> str:
    """Why proven and achieved differ where one pair of data sets answers for both."""
    if accountant != DEFAULT_ACCOUNTANT or found.width <= NARROW * found.upper:
        return ""
    for round_ in plan.distinct():
        if any(proven_pair(round_, way) != achieved_pair(round_, way) for way in Direction):
            return ""
    return (
        f"the bracket is wider than 1e-6 (relative){_nearly_an_atom(plan)}; the proven side still "
        "holds."
    )


def _nearly_an_atom(plan: Schedule) -> str:
    """What makes the loss of a round too sharp to be bracketed closely, as far as it is known."""
    rounds = plan.distinct()
    causes: list[str] = []
    if min(round_.noise_multiplier for round_ in rounds) < LITTLE_NOISE:
        causes.append("so little noise")
    if min(round_.sampling_rate for round_ in rounds) < SMALL_RATE:
        causes.append("so small a sampling rate")
    if not causes:
        return ""
    return f", because at {' and '.join(causes)} the loss of a round is nearly an atom"
