"""`dpacct rdp`: the Renyi curve, with what each route to it gives."""

import math
from typing import Annotated

import dpacct
from dpacct import validate
from dpacct.renyi.curve import RenyiValue
from dpacct_cli import mechanism, options
from dpacct_cli.options import MechanismOptions, option
from dpacct_cli.render import Answer, Grid, Page, down, plain, show, up

ONE_ROUND = "1"
DEFAULT_ORDERS = "1.5,2,4,8,16,32,64"
DIGITS = 7

Orders = Annotated[
    str,
    option(
        "--orders",
        metavar="A,B,...",
        help=f"Renyi orders above 1, separated by commas; default {DEFAULT_ORDERS}.",
    ),
]


def rdp(
    noise: options.Noise = None,
    q: options.Rate = None,
    rounds: options.Rounds = None,
    orders: Orders = DEFAULT_ORDERS,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute Renyi divergences at given orders, of one round unless --rounds is given.

    Examples:
      dpacct rdp --noise 1.0 --q 0.1 --orders 1.1,1.5,2,32
      dpacct rdp --noise 2.4 --q 0.05 --sampling uniform --orders 2,4,8 --json
    """
    style = options.read_style(as_json, quiet)
    if rounds is None and schedule is None and epochs is None:
        rounds = ONE_ROUND
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    wanted = [validate.order(options.number(part.strip())) for part in orders.split(",")]
    plan = typed.read_schedule()
    curve = dpacct.rdp(plan, orders=wanted)

    def page() -> Page:
        again = typed.retyped(rounds=str(plan.rounds) if schedule is None else None)
        return Page(
            mechanism.rows(plan, ratio_only=typed.ratio_only),
            grid=_grid(curve),
            closing=f"dpacct epsilon {again} turns the curve into epsilon.",
        )

    data: dict[str, object] = {
        "orders": [value.order for value in curve],
        "rdp": [
            {
                "order": value.order,
                "lower": value.lower,
                "upper": value.upper,
                "routes": {name: _known(upper) for name, upper in value.routes},
            }
            for value in curve
        ],
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    show(Answer(data, "\n".join(repr(value.upper) for value in curve), page), style)


def _grid(curve: tuple[RenyiValue, ...]) -> Grid:
    routes = list(dict.fromkeys(name for value in curve for name, _ in value.routes))
    lines: list[list[str]] = []
    for value in curve:
        found = {name: _known(upper) for name, upper in value.routes}
        line = [plain(value.order), up(value.upper, DIGITS), down(value.lower, DIGITS)]
        line += [_shown(found.get(name)) for name in routes]
        lines.append(line)
    return Grid(["order", "proven", "achieved", *routes], lines)


def _known(upper: float) -> float | None:
    """A route's bound; a published one may be out of reach at high orders."""
    return upper if math.isfinite(upper) else None


def _shown(upper: float | None) -> str:
    return "-" if upper is None else up(upper, DIGITS)
