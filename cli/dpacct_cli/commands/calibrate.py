"""`dpacct calibrate`: the noise, rounds or sampling rate for a budget or a limit of risk."""

from typing import Annotated

import dpacct
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.errors import InvalidParameter
from dpacct.rounds import Full, Poisson, Uniform
from dpacct_cli import comparisons, mechanism, options
from dpacct_cli.commands.limits import (
    Advantage,
    FalsePositives,
    Limit,
    TruePositives,
    read_limit,
)
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, ReadDelta, option, read_clip_norm
from dpacct_cli.render import Answer, Page, Row, bracket, down, plain, show, up
from dpacct_cli.words import called

# What --solve says, and the library's word for it.
SOLVABLE = {"noise": "noise", "rounds": "rounds", "q": "sampling_rate", "delta": "delta"}

Solve = Annotated[
    str,
    option(
        "--solve",
        metavar="|".join(SOLVABLE),
        help="What to find, the rest being given; default noise.",
        panel=options.PRIVACY,
    ),
]


def calibrate(
    eps: options.Eps = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    advantage: Advantage = None,
    tpr: TruePositives = None,
    fpr: FalsePositives = None,
    solve: Solve = "noise",
    noise: options.Noise = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    gap: options.Gap = None,
    clip: options.Clip = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the noise multiplier that meets a privacy budget, or the rounds, the rate or delta.

    Examples:
      dpacct calibrate --eps 8 --rounds 300 --q 0.1
      dpacct calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 --clip 0.5
      dpacct calibrate --eps 3 --examples 50000 --batch 256 --epochs 20
      dpacct calibrate --eps 8 --noise 1.5 --q 0.1 --solve rounds
      dpacct calibrate --eps 8 --noise 1 --rounds 300 --q 0.1 --solve delta
      dpacct calibrate --eps 8 --schedule rounds.toml --json
      dpacct calibrate --advantage 0.1 --rounds 300 --q 0.1
      dpacct calibrate --tpr 0.1 --fpr 0.01 --rounds 300 --q 0.1
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    _refuse_what_is_solved(typed, solve, delta)
    limit = read_limit(eps, advantage, tpr, fpr)
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    at = None if solve == "delta" else typed.read_delta(delta)
    narrow = options.read_gap(gap)
    found = _solve(typed, solve, limit, None if at is None else at.value, engine.name, narrow)

    def page() -> Page:
        plan = found.schedule
        if at is None:
            return _delta_page(typed, found, clip_norm)
        rows = [
            _first_row(found, solve),
            *_risk_rows(found),
            mechanism.epsilon_row(found.spent),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            mechanism.accountant_row(plan, at.value, accountant),
            *_others(found),
        ]
        note = mechanism.delta_note(at.value, typed.num_clients)
        note = note or comparisons.wide_bracket_note(plan, found.epsilon, accountant)
        note = mechanism.with_moved_delta(note, at)
        return Page(rows, closing=_closing(typed, found, at, clip_norm), note=note)

    data = _data(found) | mechanism.noise_keys(
        found.schedule, clients=typed.num_clients, clip_norm=clip_norm
    )
    show(Answer(data, repr(_number(found, solve)), page), style)


def _delta_page(
    typed: MechanismOptions, found: dpacct.Calibration, clip_norm: float | None
) -> Page:
    """The delta that goes with an epsilon."""
    plan = found.schedule
    rows = [
        Row(
            "delta", up(found.delta, 7), f"the least proven at epsilon {plain(found.epsilon.upper)}"
        ),
        *mechanism.rows(plan, ratio_only=typed.ratio_only),
        *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
        Row("accountant", found.accountant),
    ]
    again = f"{typed.retyped()} --eps {plain(found.epsilon.upper)}"
    closing = f"dpacct delta {again} shows what is achieved as well."
    return Page(rows, closing=closing)


def _refuse_what_is_solved(typed: MechanismOptions, solve: str, delta: str | None) -> None:
    if solve not in SOLVABLE:
        raise InvalidParameter("solve", solve, "it is one of " + ", ".join(SOLVABLE))
    if typed.schedule is not None:
        if solve not in ("noise", "delta"):
            why = "a schedule file says it; only its noise can be scaled"
            raise conflict(f"--solve {solve}", f"--schedule {typed.schedule}", why)
        typed.refuse_beside_schedule()
    given = {
        "noise": {"--noise": typed.noise},
        "rounds": {"--rounds": typed.rounds, "--epochs": typed.epochs},
        "q": {"--q": typed.rate, "--cohort": typed.cohort},
        "delta": {"--delta": delta},
    }
    for name, text in given[solve].items():
        if text is not None:
            why = "it is what is solved for"
            raise conflict(f"{called(name)} {text}", f"--solve {solve}", why)
    if solve == "q" and typed.epochs is not None:
        why = "how many rounds they take depends on the rate"
        raise conflict(f"--epochs {typed.epochs}", "--solve q", why)


def _solve(
    typed: MechanismOptions,
    solve: str,
    limit: Limit,
    delta: float | None,
    accountant: str,
    gap: float | None = None,
) -> dpacct.Calibration:
    if typed.schedule is not None:
        return dpacct.calibrate(
            **limit,
            delta=delta,
            schedule=typed.read_schedule(),
            accountant=accountant,
            gap=gap,
            solve=SOLVABLE[solve],
        )
    return dpacct.calibrate(
        **limit,
        delta=delta,
        noise_multiplier=None if solve == "noise" else typed.read_noise(),
        rounds=None if solve == "rounds" else typed.read_rounds(),
        sampling=_scheme_to_solve(typed) if solve == "q" else typed.read_sampling(),
        adjacency=typed.relation,
        accountant=accountant,
        gap=gap,
        solve=SOLVABLE[solve],
    )


def _scheme_to_solve(typed: MechanismOptions) -> Uniform | None:
    """The scheme whose rate is solved for: None for Poisson, else cohorts of any size."""
    clients = typed.num_clients
    if typed.scheme == Full.name:
        raise conflict("--solve q", "--sampling full", "every client takes part in every round")
    if typed.scheme == Poisson.name:
        return None
    if clients is None:
        raise OptionConflict(
            f"--solve q with --sampling uniform needs {called('--clients')}, the population "
            "from which "
            "whole cohorts are drawn."
        )
    return Uniform(1, clients)


def _number(found: dpacct.Calibration, solve: str) -> float:
    if solve == "rounds":
        return found.rounds
    if solve == "q":
        return found.sampling_rate
    if solve == "delta":
        return found.delta
    only = mechanism.single_round(found.schedule)
    return found.noise_scale if only is None else only.noise_multiplier


def _shown(number: float, solve: str) -> str:
    """A number that was solved for, shortened to its safe side."""
    if solve == "rounds":
        return str(number)
    return down(number, 7) if solve == "q" else up(number, 7)


def _first_row(found: dpacct.Calibration, solve: str) -> Row:
    number = _shown(_number(found, solve), solve)
    within = f"within {found.goal} {plain(found.target or 0.0)}"
    if solve == "rounds":
        return Row("rounds", number, f"the most that stay {within}")
    if solve == "q":
        meaning = f"the highest that stays {within}"
        sampling = found.schedule.phases[0].round.sampling
        if isinstance(sampling, Uniform):
            meaning = f"{sampling.cohort_size} of {sampling.num_clients} clients, {meaning}"
        return Row("sampling rate", number, meaning)
    if mechanism.single_round(found.schedule) is None:
        return Row("noise scale", number, "x the noise multiplier of every round in the file")
    return Row("noise multiplier", number, "std of the noise on the sum / clip norm")


def _others(found: dpacct.Calibration) -> list[Row]:
    """What others would say that these rounds cost."""
    if found.risk is not None:
        return []
    return comparisons.epsilon_rows(
        found.schedule, found.delta, found.accountant, found.epsilon, found=True
    )


def _risk_rows(found: dpacct.Calibration) -> list[Row]:
    if found.risk is None:
        return []
    return [Row(found.goal, bracket(found.risk), "  of any attack")]


def _closing(
    typed: MechanismOptions, found: dpacct.Calibration, at: ReadDelta, clip_norm: float | None
) -> str:
    only = mechanism.single_round(found.schedule)
    if only is None:
        return "--json lists every phase with its noise, to the last digit."
    missing = [
        name
        for name, known in (
            ("--clip", clip_norm),
            (called("--clients"), typed.num_clients),
        )
        if known is None
    ]
    if missing:
        return f"Tip: add {' and '.join(missing)} to see the noise on the mean."
    if typed.schedule is not None or typed.noise is not None:
        return ""
    again = typed.retyped(noise=up(only.noise_multiplier, 7))
    return f"dpacct compare {again}{at.retyped} shows other accountants beside it."


def _risk_data(found: dpacct.Calibration) -> dict[str, object]:
    if found.risk is None:
        return {}
    reached = {"lower": found.risk.lower, "upper": found.risk.upper, "target": found.target}
    return {"risk": {"name": found.goal, **reached}}


def _data(found: dpacct.Calibration) -> dict[str, object]:
    plan = found.schedule
    data: dict[str, object] = {
        "solved_for": found.solved_for,
        **mechanism.keys(plan),
        "accountant": found.accountant,
        "delta": found.delta,
        "epsilon": {
            "lower": found.epsilon.lower,
            "upper": found.epsilon.upper,
            "target": found.target if found.risk is None else None,
        },
        **_risk_data(found),
        **mechanism.phase_list(plan),
    }
    if "phases" in data:
        data["noise_scale"] = found.noise_scale
    return data
