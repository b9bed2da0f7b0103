"""`dpacct risk`: what an attacker can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import RISK_ACCOUNTANT, guess, precision, prior_belief
from dpacct.rounds import Adjacency, Schedule
from dpacct_cli import mechanism, options
from dpacct_cli.commands.promise import Promise
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions, option, read_clip_norm
from dpacct_cli.render import Answer, Grid, Page, Row, bracket, down, plain, show, up
from dpacct_cli.words import in_units

RATES = "0.001,0.01,0.1"
QUESTIONS = {
    Adjacency.ADD_REMOVE: "whether one client was there",
    Adjacency.REPLACE_ONE: "which of two clients was there",
    Adjacency.ZERO_OUT: "whether one client contributed",
}

FalsePositiveRates = Annotated[
    str,
    option(
        "--fpr",
        metavar="A,...",
        help=f"False positive rates in (0, 1) at which the attack is judged; default {RATES}.",
    ),
]
Prior = Annotated[
    str,
    option(
        "--prior",
        metavar="P",
        help="What the attacker believes beforehand, in (0, 1); default 0.5.",
    ),
]


Guarantee = Annotated[
    str | None,
    option(
        "--eps",
        metavar="E",
        help="The risk of any mechanism with this epsilon; beside that of the rounds, if they are "
        "given. Without --noise, the noise is calibrated to it.",
    ),
]


@dataclass(frozen=True, slots=True)
class AtRate:
    """The best attack at one false positive rate."""

    fpr: float
    tpr: Interval
    posterior: Interval


def risk(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    eps: Guarantee = None,
    delta: options.Delta = None,
    fpr: FalsePositiveRates = RATES,
    prior: Prior = "0.5",
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = RISK_ACCOUNTANT,
    clip: options.Clip = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Translate a guarantee into attack success rates: advantage, TPR at FPR, posterior.

    Examples:
      dpacct risk --noise 1 --rounds 300 --q 0.1
      dpacct risk --noise 1 --rounds 300 --q 0.1 --fpr 1e-3 --prior 0.01
      dpacct risk --eps 8
      dpacct risk --eps 8 --rounds 300 --q 0.1
      dpacct risk --schedule rounds.toml --json
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    rates = _read_rates(fpr)
    belief = prior_belief(options.number(prior))
    whoever = None
    if eps is not None:
        at = typed.read_delta(delta)
        whoever = Promise(validate.target_epsilon(options.number(eps)), at, rates, belief)
    elif delta is not None:
        raise OptionConflict(f"--delta {delta} needs --eps, the epsilon that goes with it.")
    if whoever is not None and not typed.says_what_runs:
        show(Answer(whoever.data(alone=True), repr(whoever.advantage), whoever.page), style)
        return
    plan = typed.read_schedule() if whoever is None else whoever.plan_of(typed, engine.name)
    attacks = Attacks(plan, engine)
    advantage, right = attacks.advantage(), guess(attacks, belief)
    found = [_at(attacks, rate, belief) for rate in rates]

    def page() -> Page:
        # Decimal, so that 1 - 0.33 is 0.67.
        blindly = max(Decimal(repr(belief)), 1 - Decimal(repr(belief)))
        blind = f"  of being right; {blindly} without any model"
        rows = [
            Row("advantage", bracket(advantage), "  TPR - FPR of the best attack"),
            Row("best guess", bracket(right), blind),
            *([] if whoever is None else whoever.rows()),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            Row("accountant", accountant),
        ]
        if whoever is not None and typed.noise is None and typed.schedule is None:
            rows.append(Row("noise", up(plan.phases[0].round.noise_multiplier, 7), "calibrated"))
        grid = _grid(found) if whoever is None else whoever.beside(_grid(found))
        return Page(rows, grid=grid, remarks=[_words(plan, belief)])

    data: dict[str, object] = {
        "advantage": _both(advantage),
        "prior": belief,
        "best_guess": _both(right),
        "rates": [
            {"fpr": row.fpr, "tpr": _both(row.tpr), "posterior": _both(row.posterior)}
            for row in found
        ],
        "accountant": accountant,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
        **({} if whoever is None else whoever.data(alone=False)),
    }
    show(Answer(data, repr(advantage.upper), page), style)


def _read_rates(text: str) -> list[float]:
    noun = "a false positive rate"
    return [
        validate.positive_probability("fpr", options.number(part.strip()), noun, below_one=True)
        for part in text.split(",")
    ]


def _at(attacks: Attacks, fpr: float, prior: float) -> AtRate:
    tpr = attacks.tpr(fpr)
    return AtRate(fpr, tpr, precision(tpr, fpr, prior))


def _both(value: Interval) -> dict[str, float]:
    return {"lower": value.lower, "upper": value.upper}


def _grid(found: Sequence[AtRate]) -> Grid:
    header = ["FPR", "TPR proven", "achieved", "accusation right, proven", "achieved"]
    return Grid(
        header,
        [
            [
                plain(row.fpr),
                up(row.tpr.upper),
                down(row.tpr.lower),
                up(row.posterior.upper),
                down(row.posterior.lower),
            ]
            for row in found
        ],
    )


def _words(plan: Schedule, prior: float) -> str:
    question = QUESTIONS[plan.adjacency]
    return in_units(
        f"The attacker sees every release, knows all other clients' data, and asks {question}, "
        f"believing it with probability {plain(prior)} beforehand. No attack exceeds what is "
        f"proven, on average over many trainings."
    )
