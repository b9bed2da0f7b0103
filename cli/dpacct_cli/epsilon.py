"""`dpacct epsilon`: what a schedule of rounds has spent."""

import math
from contextlib import suppress

import dpacct
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import Interval
from dpacct.conversion import best_epsilon
from dpacct.errors import Unsupported
from dpacct.rdp import RenyiCurve
from dpacct.renyi_accountant import RenyiAccountant
from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct_cli import mechanism, options
from dpacct_cli.render import Answer, Page, Row, bracket, show, up
from dpacct_cli.typed import MechanismOptions, read_clip_norm

PROMISE = "promise people the proven one; an explicit worst case reaches the achieved one"


def epsilon(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    clip: options.Clip = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """The epsilon that is spent at a delta.

    Examples:
      dpacct epsilon --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
      dpacct epsilon --noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000
      dpacct epsilon --schedule rounds.toml --json
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(noise, rounds, q, schedule, sampling, cohort, clients, adjacency)
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    at = typed.read_delta(delta)
    plan = typed.read_schedule()
    spent = dpacct.epsilon(plan, delta=at.value, accountant=engine.name)

    def page() -> Page:
        rows = [
            Row("epsilon", bracket(spent), f"  at {at.in_words}"),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            mechanism.accountant_row(plan, at.value, accountant),
            *_comparisons(plan, at.value, accountant, spent),
        ]
        if spent.lower < 0.99 * spent.upper:
            rows.insert(1, Row("", PROMISE))
        closing = f"dpacct compare {typed.retyped()}{at.retyped} shows other accountants beside it."
        note = mechanism.delta_note(at.value, at.chosen, typed.num_clients)
        return Page(rows, closing=closing, note=note)

    data: dict[str, object] = {
        "epsilon": {"lower": spent.lower, "upper": spent.upper},
        "delta": at.value,
        "accountant": accountant,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    show(Answer(data, repr(spent.upper), page), style)


def _comparisons(plan: Schedule, delta: float, accountant: str, spent: Interval) -> list[Row]:
    """What is published for fixed-size cohorts (replace-one), and what they are mistaken for."""
    only = mechanism.single_round(plan)
    if only is None or not isinstance(only.sampling, Uniform):
        return []
    if plan.adjacency is not Adjacency.REPLACE_ONE:
        return []
    found: list[Row] = []
    if accountant == RenyiAccountant().name:
        curve = RenyiCurve(plan)
        for route, _ in curve.routes(2.0):
            other = _by_route(curve, route, delta)
            if math.isfinite(other) and other > 1.001 * spent.upper:
                found.append(Row("for comparison", up(other), f"Renyi by {route}"))
    poisson = plan.rounds * Round(only.noise_multiplier, Poisson(only.sampling_rate))
    with suppress(Unsupported):
        mistaken = dpacct.epsilon(poisson, delta=delta, accountant=accountant).upper
        label = "" if found else "for comparison"
        found.append(Row(label, up(mistaken), "if the cohorts were Poisson (add-remove)"))
    return found


def _by_route(curve: RenyiCurve, route: str, delta: float) -> float:
    return best_epsilon(lambda order: dict(curve.routes(order))[route], delta, 4.0).value
