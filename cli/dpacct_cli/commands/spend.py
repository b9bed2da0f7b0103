"""`dpacct epsilon`, `delta` and `rdp`: the cost of a schedule of rounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import dpacct
from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant, spend
from dpacct.outputs import mechanism_of
from dpacct.rounds import AccountantName, Schedule
from dpacct_cli import mechanism, options, outputs
from dpacct_cli.errors import conflict
from dpacct_cli.options import MechanismOptions, StyleOptions, Text, option
from dpacct_cli.render import Answer, Grid, Page, Row, bracket, down, plain, show, up, wrapped
from dpacct_cli.words import in_units, spelling

if TYPE_CHECKING:
    from dpacct.claims.judge import Answer as ClaimAnswer

DEFAULT_ORDERS = "1.5,2,4,8,16,32,64"
DIGITS = 7

# fmt: off
Stated = Annotated[Text, option("--claim", "E", options.PRIVACY,
    "A stated epsilon to check: proven, refuted or open.", advanced=True)]
Source = Annotated[Text, option("--from", "FILE", options.WHAT_RUNS,
    "Answer for an Opacus checkpoint, a dp-accounting event as .json, a ledger, a run's "
    ".report.jsonl or a schedule.")]
AtSlack = Annotated[Text, option("--gdp", "SLACK", options.PRIVACY,
    "Also mu of Gaussian DP: each epsilon then holds at the delta of mu plus this slack.",
    advanced=True)]
AtEps = Annotated[Text, option("--eps", "E", options.PRIVACY,
    "Epsilon at which delta is computed.")]
Orders = Annotated[str, option("--orders", "A,B,...", options.FIND,
    f"Renyi orders above 1, separated by commas; default {DEFAULT_ORDERS}.")]
# fmt: on


def epsilon(
    *,
    typed: MechanismOptions,
    source: Source = None,
    delta: options.Delta = None,
    claim: Stated = None,
    gdp: AtSlack = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    shown: StyleOptions,
) -> None:
    """Compute the epsilon of a training run.

    Examples:
      dpacct epsilon --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
      dpacct epsilon --noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000
      dpacct epsilon --noise 2 --rounds 200 --q 0.05 --claim 2.83
      dpacct epsilon --noise 2 --rounds 200 --q 0.05 --gdp 1e-6
      dpacct epsilon --schedule rounds.toml --json
      dpacct epsilon --from census.ledger
    """
    style = shown.style
    engine = find_accountant(accountant)
    at = typed.read_delta(delta)
    stated = None
    if claim is not None:
        if style is options.Style.QUIET:
            raise conflict(f"--claim {claim}", spelling("--quiet"), "the verdict is not a number")
        stated = validate.above_zero("claim", options.number(claim), "a stated epsilon")
    kind = None
    if source is None:
        plan = typed.read_schedule()
    else:
        from dpacct_cli.commands.source import read_source

        record = read_source(source, typed)
        if isinstance(record, Answer):
            show(record, style)
            return
        kind, plan = record
        typed = typed.but(schedule=source)
    spent = spend(plan, at.value, engine.name)
    mu_rows, mu_keys = _mu(plan, gdp, engine.name)
    judged = None
    if stated is not None:
        from dpacct.claims.judge import answer

        judged = answer(
            stated, plan, spent.delta, spent.interval, engine.name, printed=(claim or "").strip()
        )

    def page() -> Page:
        rows = [] if judged is None else _claim_rows(judged, stated or 0.0)
        rows += [
            mechanism.epsilon_row(spent),
            *mu_rows,
            *mechanism.all_rows(plan, typed),
            mechanism.accountant_row(plan, at.value, accountant),
            *mechanism.epsilon_rows(plan, at.value, engine.name, spent.interval),
            *mechanism.population_rows(at.value, typed),
        ]
        closing = f"dpacct compare {typed.retyped()}{at.retyped} shows other accountants."
        if kind is not None:
            closing = ""
        note = mechanism.delta_note(at.value, typed.num_clients)
        return Page(rows, closing=closing, note=note, title="Privacy spent")

    data: outputs.Epsilon = {
        "epsilon": spent.interval,
        "delta": spent.delta,
        "accountant": accountant,
        **typed.described(plan),
        **mu_keys,
    }
    if kind is not None:
        data["source"] = kind
    if judged is not None and stated is not None:
        data["claim"] = {
            "stated": stated,
            "verdict": str(judged.verdict),
            "data_sets": judged.data_sets,
            "sufficient_noise": _least_noise(judged),
        }
    show(Answer(data, repr(spent.upper), page), style)


def _mu(
    plan: Schedule, slack: str | None, accountant: AccountantName
) -> tuple[list[Row], outputs.WithMu]:
    """Return mu with its slack as rows and as keys. Neither is shown alone."""
    if slack is None:
        return [], {}
    from dpacct.gaussian_dp import gdp

    mu = gdp(plan, options.number(slack), accountant=accountant)
    row = Row("mu", bracket(mu), f"  with slack {plain(mu.slack)}")
    return [row], {"gdp": {"mu": {"lower": mu.lower, "upper": mu.upper}, "slack": mu.slack}}


def _claim_rows(judged: ClaimAnswer, stated: float) -> list[Row]:
    """Return the verdict, its proof, and the noise that would be enough."""
    from dpacct_cli.commands.claims import MEANS

    rows = [
        Row("claim", str(judged.verdict), f"epsilon {plain(stated)}"),
        *wrapped("", MEANS[judged.verdict]),
    ]
    if judged.data_sets:
        rows += wrapped("", f"achieved so: {judged.data_sets}")
    noise = _least_noise(judged)
    if noise is not None:
        rows += wrapped("", f"noise {up(noise, 7)} would make it true, all else as it is")
    elif judged.noise is not None:
        factor = up(judged.noise.noise_scale, 7)
        rows += wrapped("", f"{factor} x the noise of every round would make it true")
    return rows


def _least_noise(judged: ClaimAnswer) -> float | None:
    """Return the noise multiplier that is enough, if there is a single one."""
    enough = None if judged.noise is None else mechanism.single_round(judged.noise.schedule)
    return None if enough is None else enough.noise_multiplier


def delta(
    *,
    typed: MechanismOptions,
    eps: AtEps = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    shown: StyleOptions,
) -> None:
    """Compute the delta of a training run.

    Delta is the slack: the probability of an outcome may exceed e^epsilon times its probability
    under a neighbor by this much.

    Examples:
      dpacct delta --noise 1.36 --rounds 300 --q 0.1 --eps 8
      dpacct delta --schedule rounds.toml --eps 2 --json
    """
    style = shown.style
    engine = find_accountant(accountant)
    at = validate.epsilon(options.number(eps))
    plan = typed.read_schedule()
    spent = dpacct.delta(plan, epsilon=at, accountant=engine.name)

    def page() -> Page:
        rows = [Row("delta", bracket(spent), f"  at epsilon {plain(at)}")]
        population = typed.num_clients
        if population is not None:
            share = up(spent.upper * population, 3)
            rows.append(Row("", in_units(f"that is {share} / clients")))
        rows += [*mechanism.all_rows(plan, typed), Row("accountant", accountant)]
        closing = ""
        if 0.0 < spent.upper < 1.0:
            again = f"{typed.retyped()} --delta {spent.upper!r}"
            closing = f"dpacct epsilon {again} computes epsilon at this delta."
        return Page(rows, closing=closing)

    data: outputs.Delta = {
        "delta": spent,
        "epsilon": at,
        "accountant": accountant,
        **typed.described(plan),
    }
    show(Answer(data, repr(spent.upper), page), style)


def rdp(*, typed: MechanismOptions, orders: Orders = DEFAULT_ORDERS, shown: StyleOptions) -> None:
    """Compute Renyi divergences at given orders, of one round unless --rounds is given.

    Examples:
      dpacct rdp --noise 1.0 --q 0.1 --orders 1.1,1.5,2,32
      dpacct rdp --noise 2.4 --q 0.05 --sampling uniform --orders 2,4,8 --json
    """
    style = shown.style
    typed = typed.at_least_once()
    typed.refuse_unused_clients()
    wanted = options.read_list(orders, validate.order)
    plan = typed.read_schedule()
    curve = [
        outputs.Divergence(value.order, value.lower, value.upper, dict(value.routes))
        for value in dpacct.rdp(plan, orders=wanted)
    ]

    def page() -> Page:
        names = list(dict.fromkeys(name for value in curve for name in value.routes))
        lines: list[list[str]] = []
        for value in curve:
            figures = [plain(value.order), up(value.upper, DIGITS), down(value.lower, DIGITS)]
            # A published route may be out of reach at high orders.
            bounds = [value.routes.get(name) or math.inf for name in names]
            lines.append([*figures, *("-" if b == math.inf else up(b, DIGITS) for b in bounds)])
        return Page(
            mechanism.rows(plan, ratio_only=typed.ratio_only),
            grids=[Grid(["order", "proven", "achieved", *names], lines)],
            closing=f"dpacct epsilon {typed.retyped()} turns the curve into epsilon.",
        )

    data: outputs.Rdp = {
        "orders": [value.order for value in curve],
        "rdp": curve,
        **mechanism_of(plan),
    }
    show(Answer(data, "\n".join(repr(value.upper) for value in curve), page), style)
