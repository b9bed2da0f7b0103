"""`dpacct epsilon`: what a schedule of rounds has spent."""

from typing import TYPE_CHECKING, Annotated

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant, spend
from dpacct.budget import Spent
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct_cli import comparisons, mechanism, options
from dpacct_cli.options import MechanismOptions, option, read_clip_norm
from dpacct_cli.render import Answer, Page, Row, plain, show, up, wrapped

if TYPE_CHECKING:
    from dpacct.claims.judge import Answer as ClaimAnswer

Stated = Annotated[
    str | None,
    option(
        "--claim",
        metavar="E",
        help="An epsilon that somebody states for this: proven, refuted or open.",
        panel=options.PRIVACY,
    ),
]
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
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    gap: options.Gap = None,
    clip: options.Clip = None,
    claim: Stated = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute the epsilon of a training run.

    Examples:
      dpacct epsilon --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
      dpacct epsilon --noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000
      dpacct epsilon --noise 2 --rounds 200 --q 0.05 --claim 2.83
      dpacct epsilon --schedule rounds.toml --json
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    at = typed.read_delta(delta)
    stated = None if claim is None else _read_claim(claim)
    plan = typed.read_schedule()
    spent = spend(plan, at.value, engine.name, options.read_gap(gap))

    answered = None
    if stated is not None:
        from dpacct.claims.judge import answer

        answered = answer(stated, plan, spent.delta, spent.interval, engine.name)

    def page() -> Page:
        rows = [
            mechanism.epsilon_row(spent),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            mechanism.accountant_row(plan, at.value, accountant),
            *comparisons.epsilon_rows(plan, at.value, accountant, spent.interval),
        ]
        if answered is None or not answered.data_sets:
            rows += _achieved_rows(plan, spent, accountant)
        if spent.lower < 0.99 * spent.upper:
            rows.insert(1, Row("", PROMISE))
        if answered is not None and stated is not None:
            rows = [*_claim_rows(answered, stated), *rows]
        closing = f"dpacct compare {typed.retyped()}{at.retyped} shows other accountants beside it."
        note = mechanism.delta_note(at.value, typed.num_clients)
        note = note or comparisons.wide_bracket_note(plan, spent.interval, accountant)
        note = mechanism.with_moved_delta(note, at)
        return Page(rows, closing=closing, note=note)

    data: dict[str, object] = {
        "epsilon": {"lower": spent.lower, "upper": spent.upper},
        "delta": spent.delta,
        "accountant": accountant,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    if answered is not None:
        data["claim"] = {
            "stated": stated,
            "verdict": str(answered.verdict),
            "data_sets": answered.data_sets,
            "sufficient_noise": _least_noise(answered),
        }
    show(Answer(data, repr(spent.upper), page), style)


def _read_claim(text: str) -> float:
    return validate.above_zero("claim", options.number(text), "a stated epsilon")


def _achieved_rows(plan: Schedule, spent: Spent, accountant: str) -> list[Row]:
    """Which data sets achieve it, where an adversary has a choice in each round."""
    engine = find_accountant(accountant)
    if not isinstance(engine, TightAccountant) or not engine.plays(plan):
        return []
    from dpacct.claims.judge import witness

    plain_pair = engine.of_pairs.epsilon(plan, spent.delta).lower
    return wrapped("achieved so", witness(plan, adaptive=plain_pair < spent.lower))


def _claim_rows(answered: "ClaimAnswer", stated: float) -> list[Row]:
    """The verdict, what shows it, and what noise would do."""
    from dpacct_cli.claims.pages import MEANS

    rows = [Row("claim", str(answered.verdict), f"epsilon {plain(stated)}"),
        *wrapped("", MEANS[answered.verdict])]  # fmt: skip
    if answered.data_sets:
        rows += wrapped("", f"achieved so: {answered.data_sets}")
    noise = _least_noise(answered)
    if noise is not None:
        rows += wrapped("", f"noise {up(noise, 7)} would make it true, all else as it is")
    elif answered.noise is not None:
        factor = up(answered.noise.noise_scale, 7)
        rows += wrapped("", f"{factor} x the noise of every round would make it true")
    return rows


def _least_noise(answered: "ClaimAnswer") -> float | None:
    """The noise multiplier that would do, where one is enough."""
    if answered.noise is None or mechanism.single_round(answered.noise.schedule) is None:
        return None
    return answered.noise.noise_multiplier
