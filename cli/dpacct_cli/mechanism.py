"""The mechanism as JSON keys and in words, and the notes to an answer about it.

Rule 1: no number leaves without its sampling and its adjacency.
Rule 2: a comparison that takes long, does not apply or says nothing new is left out.
"""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal

import dpacct
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import Interval, Spent
from dpacct.correlated import Correlated
from dpacct.display import chosen
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import Unsupported
from dpacct.items import count_of, counted, noun_of, parts_in_words
from dpacct.outputs import single
from dpacct.renyi.curve import RenyiAccountant, RenyiCurve, best_epsilon
from dpacct.rounds import AccountantName, Adjacency, Poisson, Release, Round, Schedule, Uniform
from dpacct.sampled import Sampled
from dpacct.tight.accountant import TightAccountant
from dpacct.tuning import BestOf
from dpacct_cli.options import MechanismOptions
from dpacct_cli.render import Row, bracket, down, plain, safe, shown_delta, up
from dpacct_cli.words import in_units

MAX_PHASES_SHOWN = 6
NEIGHBORS = {
    Adjacency.ADD_REMOVE: "add-remove a client",
    Adjacency.REPLACE_ONE: "replace one client",
    Adjacency.ZERO_OUT: "zero out one client",
}
PUBLISHED = "Wang et al. 2019"
# Up to this number of distinct rounds, Renyi takes a few thousandths of a second.
MOST_KINDS = 4
# A relative difference that is worth a line.
WORTH_A_LINE = 1e-3
BY_RDP = "RDP would say"
# No delta this large suits any population. Used if the number of clients is unknown.
LARGE_DELTA, SMALL_DELTA = 1e-3, 1e-5


def single_round(schedule: Schedule) -> Round | None:
    """Return the round of which the schedule consists, or None for any other schedule."""
    only = single(schedule)
    return only if isinstance(only, Round) else None


def rows(schedule: Schedule, *, ratio_only: bool = False) -> list[Row]:
    """Return the mechanism in words. With ``ratio_only``, no size of a cohort is known."""
    only, neighbors = single(schedule), NEIGHBORS[schedule.adjacency]
    if isinstance(only, BestOf) and schedule.rounds == 1:
        words = f"the best of a random number of such runs, {only.runs!r}, as one release"
        return [*rows(only.schedule, ratio_only=ratio_only), Row("", words)]
    if isinstance(only, Sampled) and schedule.rounds == 1:
        words = f"all on one sample of the clients, at rate {safe('sampling_rate', only.rate)}"
        return [*rows(only.schedule, ratio_only=ratio_only), Row("", words)]
    if only is None:
        count = count_of(schedule.rounds, noun_of(schedule))
        what = f"{count} in {count_of(len(schedule.parts), 'phase')}"
    else:
        what = counted(only, schedule.rounds, noise=not hasattr(only, "noise_multiplier"))
    if ratio_only and isinstance(only, Round) and isinstance(only.sampling, Uniform):
        share = safe("sampling_rate", only.sampling_rate)
        count = count_of(schedule.rounds, "round")
        what = f"{count}, a fixed fraction {share} without replacement"
    texts = [f"{what}, {neighbors}"]
    if only is None:
        phases = parts_in_words(schedule)
        texts += phases[:MAX_PHASES_SHOWN]
        if len(phases) > MAX_PHASES_SHOWN:
            texts.append(f"and {len(phases) - MAX_PHASES_SHOWN} more phases")
    lines = [Row("mechanism" if line is texts[0] else "", in_units(line)) for line in texts]
    return [*lines, *_rows_of_kind(only)]


def _rows_of_kind(only: Release | None) -> list[Row]:
    """Return what else there is to know about releases of one kind."""
    if isinstance(only, Correlated):
        error = chosen(only.prefix_error(), 5)
        bounds = f"{bracket(only.sensitivity)}"
        return [
            Row("sensitivity", bounds, "  x clip norm, of all rounds together"),
            Row("error", error, "x clip norm, RMSE of the running sums"),
        ]
    if isinstance(only, ShuffledEpoch):
        proven = "proven: one full participation per epoch; achieved: an attack on the largest step"
        ways = "--sampling allocation or poisson costs far less (and needs such a loader)"
        return [Row("", proven), Row("", ways)]
    if isinstance(only, Epoch) and not only.is_narrow:
        why = "so little noise or so many steps"
        return [Row("", f"{why}: one participation an epoch above, one step below")]
    return []


def all_rows(schedule: Schedule, typed: MechanismOptions) -> list[Row]:
    """Return the mechanism, and that a client moves the sum by twice the clip norm if it does."""
    shown, only = rows(schedule, ratio_only=typed.ratio_only), single_round(schedule)
    if only is None:
        return shown
    moved = "moves the sum by up to 2 x clip norm"
    if schedule.adjacency is Adjacency.REPLACE_ONE:
        shown.append(Row("", in_units(f"replacing a client {moved}")))
    elif schedule.adjacency is Adjacency.ADD_REMOVE and isinstance(only.sampling, Uniform):
        why = "the cohort stays full, so an added client displaces another"
        shown.append(Row("", in_units(f"{why} and {moved}")))
    return shown


def accountant_row(schedule: Schedule, delta: float, name: str) -> Row:
    """Return the theory that proves the number, for Renyi with the order that won."""
    engine = find_accountant(name)
    if isinstance(engine, TightAccountant):
        how = engine.game_or_why(schedule, delta)
        return Row("accountant", f"{name}, {how}" if how else name)
    if not isinstance(engine, RenyiAccountant):
        return Row("accountant", name)
    order = engine.best_order(schedule, delta)
    # Near 1 an order is known by its distance from 1.
    shown = f"{order:.4g}" if order >= 1.01 else f"1 + {order - 1:.2g}"
    return Row("accountant", f"{name}, order {shown} won")


def epsilon_row(spent: Spent, origin: str = "", *, lead: str = "", proven: str = "") -> Row:
    """Return epsilon together with its delta. Neither is shown alone.

    Args:
        spent: the answer of an accountant.
        origin: the source of delta, if it was not chosen.
        lead: words that stand before delta.
        proven: the accountant, if its upper bound alone is shown.
    """
    value = bracket(spent.interval) if not proven else f"{up(spent.upper)} proven"
    by = f"by {proven}, " if proven else ""
    at = f"{shown_delta(spent.delta)} ({origin})" if origin else plain(spent.delta)
    return Row("epsilon", value, f"  {by}{lead}at delta {at}")


def epsilon_rows(
    plan: Schedule, delta: float, accountant: AccountantName, spent: Interval
) -> list[Row]:
    """Return other bounds on epsilon: by Renyi, or the published one of fixed-size cohorts."""
    only = single_round(plan)
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    if replaced and only is not None and isinstance(only.sampling, Uniform):
        return _fixed_size_rows(plan, only, delta, accountant, spent)
    if accountant != DEFAULT_ACCOUNTANT or len(plan.distinct()) > MOST_KINDS:
        return []
    if isinstance(single(plan), Epoch | ShuffledEpoch):
        # Renyi knows one participation an epoch, and no more.
        return []
    try:
        renyi = RenyiAccountant().upper_epsilon(plan, delta)
    except Unsupported:
        return []
    if not (1 + WORTH_A_LINE) * spent.upper < renyi < math.inf:
        return []
    return [Row(BY_RDP, up(renyi), "for the same rounds")]


def _fixed_size_rows(
    plan: Schedule, only: Round, delta: float, accountant: AccountantName, spent: Interval
) -> list[Row]:
    compared: list[Row] = []
    if accountant in (DEFAULT_ACCOUNTANT, RenyiAccountant().name):
        curve = RenyiCurve(plan)
        published = math.inf
        # A cohort of all clients is not sampled, and has no such route.
        if PUBLISHED in dict(curve.routes(2.0)):
            published = best_epsilon(
                lambda order: dict(curve.routes(order))[PUBLISHED], delta, 4.0
            ).value
        if (1 + WORTH_A_LINE) * spent.upper < published < math.inf:
            compared.append(Row("for comparison", up(published), f"Renyi by {PUBLISHED}"))
    poisson = plan.rounds * Round(only.noise_multiplier, Poisson(only.sampling_rate))
    with suppress(Unsupported):
        mistaken = dpacct.epsilon(poisson, delta=delta, accountant=accountant).upper
        label = "" if compared else "for comparison"
        compared.append(Row(label, up(mistaken), "if the cohorts were Poisson (add-remove)"))
    return compared


def population_rows(delta: float, typed: MechanismOptions) -> list[Row]:
    """Return delta as a share of a client, if the population was typed."""
    clients = typed.num_clients
    if clients is None:
        return []
    share = shown_delta(float(Decimal(repr(delta)) * clients))
    return [Row("population", f"{clients:,}", in_units(f"clients; delta is {share} / clients"))]


def delta_note(delta: float, clients: int | None) -> str:
    """Return a note on a large delta: the one rule of all commands.

    With N clients the note appears above 0.1 / N, for any origin of delta. Without a known N it
    appears from 1e-3 on. The recommended delta is smaller than that.
    """
    exact = Decimal(repr(delta))
    if clients is None:
        if delta < LARGE_DELTA:
            return ""
        return f"delta {plain(delta)} is high. Use --delta {plain(SMALL_DELTA)} or less."
    if 10 * exact * clients <= 1:
        return ""
    share = shown_delta(float(exact * clients))
    words = f"delta {shown_delta(delta)} is high for {clients:,} clients ({share} / clients). "
    most = float(down(0.1 / clients, 2))
    if most < LARGE_DELTA:
        return in_units(f"{words}Use --delta {plain(most)} or less (0.1 / clients).")
    return in_units(f"{words}Use --delta {plain(SMALL_DELTA)}.")
