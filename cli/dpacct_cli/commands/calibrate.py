"""`dpacct calibrate`: the noise, rounds, sampling rate or delta for a budget or a limit of risk."""

from typing import Annotated, Any

import dpacct
from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.calibration.noise_rule import noise_rule
from dpacct.errors import DpacctError, InvalidParameter
from dpacct.items import noise_in_words
from dpacct.outputs import noise_multiplier, single
from dpacct.rounds import Full, Poisson, Round, Sampling, Schedule, Uniform
from dpacct_cli import mechanism, options, outputs
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import (
    Advanced,
    MechanismOptions,
    ReadDelta,
    StyleOptions,
    Text,
    flag,
    option,
)
from dpacct_cli.render import Answer, Page, Row, bracket, plain, safe, show, up
from dpacct_cli.words import called

# The values of --solve, and the library's word for each.
SOLVABLE = {"noise": "noise", "rounds": "rounds", "q": "sampling_rate", "delta": "delta"}
SOLVED, NO_RATE = "it is the value to solve for", "only rounds have a rate to solve for"
# What cannot be typed beside it, and why.
EXCLUDED = {
    "noise": {"--noise": SOLVED},
    "rounds": {
        "--rounds": SOLVED, "--epochs": SOLVED, "--times": SOLVED,
        "--correlated": "a strategy is made for its rounds",
        "--best-of": "its runs are one release, whatever their rounds",
        "--one-sample": "all of it is one release, whatever its rounds",
    },
    "q": {
        "--q": SOLVED, "--cohort": SOLVED, "--epochs": "their rounds depend on the rate",
        "--schedule": "the file says it", "--correlated": NO_RATE, "--best-of": NO_RATE,
        "--one-sample": NO_RATE,
        "--release": NO_RATE, "--laplace": NO_RATE,
    },
    "delta": {"--delta": SOLVED},
}  # fmt: skip

# What the theorems of DP-Fed-LS are about. Their epsilon is that of no other mechanism.
OF_THEOREMS = ("--rounds", "--epochs", "--q", "--cohort", "--clients", "--sampling")

# fmt: off
Solve = Annotated[str, option("--solve", "|".join(SOLVABLE), options.FIND,
    "The value to find from all others; default noise.")]
Advantage = Annotated[Text, option("--advantage", "A", options.PRIVACY,
    "Instead of --eps: the largest TPR - FPR that any attack may reach, e.g. 0.1.", advanced=True)]
TruePositives = Annotated[Text, option("--tpr", "B", options.PRIVACY,
    "Instead of --eps, with --fpr: the largest true positive rate of any attack.", advanced=True)]
Fixed = Annotated[Text, option("--fixed", "FILE", options.WHAT_RUNS,
    "A schedule file with rounds that are fixed: they count, and keep their noise.",
    advanced=True)]
ByTheorem = Annotated[bool, flag("--by-theorem", options.FIND,
    "Print the noise that the theorems of DP-Fed-LS require, and its true epsilon.", advanced=True)]
FalsePositives = Annotated[Text, option("--fpr", "A", options.PRIVACY,
    "The false positive rate at which --tpr holds.", advanced=True)]
# fmt: on


def calibrate(
    *,
    eps: options.Eps = None,
    delta: options.Delta = None,
    solve: Solve = "noise",
    advantage: Advantage = None,
    tpr: TruePositives = None,
    fpr: FalsePositives = None,
    typed: Annotated[MechanismOptions, Advanced(("noise_multiplier",))],
    fixed: Fixed = None,
    by_theorem: ByTheorem = False,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    shown: StyleOptions,
) -> None:
    """Find the noise multiplier that meets a privacy budget, or the rounds, the rate or delta.

    Examples:
      dpacct calibrate --eps 8 --rounds 300 --q 0.1
      dpacct calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000
      dpacct calibrate --eps 3 --examples 50000 --batch 256 --epochs 20
      dpacct calibrate --eps 8 --noise 1.5 --q 0.1 --solve rounds
      dpacct calibrate --eps 8 --noise 1 --rounds 300 --q 0.1 --solve delta
      dpacct calibrate --eps 8 --schedule rounds.toml --json
      dpacct calibrate --eps 20 --fixed rounds.toml --rounds 300 --q 0.1
      dpacct calibrate --advantage 0.1 --rounds 300 --q 0.1
      dpacct calibrate --tpr 0.1 --fpr 0.01 --rounds 300 --q 0.1
      dpacct calibrate --eps 8 --rounds 30 --q 0.05 --delta 1e-3 --by-theorem
    """
    style = shown.style
    _refuse_what_is_solved(typed, solve, delta)
    limit = _read_limit(eps, advantage, tpr, fpr)
    if by_theorem:
        if eps is None or solve != "noise":
            raise OptionConflict("--by-theorem needs --eps, and finds only the noise.")
        other = [name for name in typed.by_option() if name not in OF_THEOREMS]
        other += ["--fixed"] * (fixed is not None)
        other += ["--accountant"] * (accountant != DEFAULT_ACCOUNTANT)
        if other:
            raise conflict(other[0], "--by-theorem", "the theorems are about plain sampled rounds")
        show(_by_theorem(limit["epsilon"], typed, typed.read_delta(delta)), style)
        return
    engine = find_accountant(accountant)
    at = None if solve == "delta" else typed.read_delta(delta)
    asked: dict[str, Any] = {
        **limit,
        "delta": None if at is None else at.value,
        "solve": SOLVABLE[solve],
        **what_runs(typed, solve),
        "fixed": None if fixed is None else _read_fixed(fixed),
    }
    solution = dpacct.calibrate(**asked, accountant=engine.name)
    number, first_row = _solved(solution, solve)

    def page() -> Page:
        plan = solution.schedule
        if at is None:
            runs = mechanism.all_rows(plan, typed)
            rows = [first_row, *runs, Row("accountant", solution.accountant)]
            again = f"{typed.retyped()} --eps {plain(solution.epsilon.upper)}"
            return Page(rows, closing=f"dpacct delta {again} shows the achieved delta as well.")
        rows = [first_row]
        if solution.risk is not None:
            rows.append(Row(solution.goal, bracket(solution.risk), "  of any attack"))
        rows += [
            mechanism.epsilon_row(solution.spent),
            *mechanism.all_rows(plan, typed),
            mechanism.accountant_row(plan, at.value, accountant),
        ]
        if solution.risk is None:
            rows += _rdp_rows(solution, asked)
        rows += mechanism.population_rows(at.value, typed)
        note = mechanism.delta_note(at.value, typed.num_clients)
        closing = _closing(typed, solution, at)
        return Page(rows, closing=closing, note=note, title="Calibrated")

    show(Answer(_data(solution, typed), repr(number), page), style)


def _by_theorem(target: float, typed: MechanismOptions, at: ReadDelta) -> Answer:
    """Return the noise that theorem 1 or 2 of DP-Fed-LS asks for, and its true epsilon."""
    rule = noise_rule(target, at.value, typed.read_rounds(), typed.read_sampling())
    spent, name = rule.epsilon(), f"{rule.theorem} of DP-Fed-LS"
    data: outputs.Calibrate = {
        "solved_for": "noise",
        **typed.described(rule.schedule),
        "accountant": "closed-form",
        "delta": at.value,
        "epsilon": outputs.Target(spent.lower, spent.upper, target),
    }
    rows = [
        Row("noise multiplier", safe("noise_multiplier", rule.noise_multiplier), f"by {name}"),
        Row("true epsilon", bracket(spent), f"stated as {plain(target)}"),
        *mechanism.all_rows(rule.schedule, typed),
    ]
    return Answer(data, repr(rule.noise_multiplier), lambda: Page(rows))


def _read_limit(
    eps: str | None, advantage: str | None, tpr: str | None, fpr: str | None
) -> dict[str, Any]:
    """Return the typed limit. The library checks its range, epsilon before all else."""
    if eps is not None:
        validate.target_epsilon(options.number(eps))
    limits = {"--eps": eps, "--advantage": advantage, "--tpr": tpr}
    given = [f"{option} {text}" for option, text in limits.items() if text is not None]
    if len(given) > 1:
        raise conflict(given[1], given[0], "a calibration has one target")
    if fpr is not None and tpr is None:
        raise OptionConflict(
            f"--fpr {fpr} needs --tpr, the true positive rate that is allowed there."
        )
    typed = {"epsilon": eps, "advantage": advantage, "tpr": tpr, "fpr": fpr}
    return {name: options.number(text) for name, text in typed.items()}


def _refuse_what_is_solved(typed: MechanismOptions, solve: str, delta: str | None) -> None:
    """Reject a typed value that is to be solved for, and mechanisms that do not leave it open."""
    validate.one_of("solve", solve, "it", SOLVABLE)
    if "schedule" in typed and solve in ("noise", "delta"):
        typed.refuse_beside_schedule()
    given = typed.by_option() | ({} if delta is None else {"--delta": delta})
    for name, why in EXCLUDED[solve].items():
        if name in given:
            raise conflict(f"{called(name)} {given[name]}", f"--solve {solve}", why)
    if typed.by_epochs and solve == "q":
        raise conflict(f"--solve {solve}", f"--sampling {typed['sampling']}", "epochs are whole")


def _read_fixed(file: str) -> Schedule:
    try:
        return MechanismOptions(schedule=file).read_schedule()
    except InvalidParameter as error:
        raise InvalidParameter("--fixed", error.value, error.rule, error.hint) from None


def what_runs(typed: MechanismOptions, solve: str) -> dict[str, Any]:
    """Return the rounds as `dpacct.calibrate` takes them, without the unknown."""
    if solve == "q":
        noise = typed.value("noise_multiplier") or validate.noise_multiplier(None)
        rounds, sampling = validate.rounds(typed.value("rounds")), _scheme_to_solve(typed)
        given = {"sampling": sampling, "adjacency": typed.relation}
        return {"noise_multiplier": noise, "rounds": rounds, **given}
    if solve == "rounds":
        return {"schedule": typed.at_least_once().read_schedule()}
    if solve == "noise" and not any(field in typed for field in ("schedule", "release", "laplace")):
        # The noise is scaled from any start.
        typed = typed.but(noise_multiplier="1")
    return {"schedule": typed.read_schedule()}


def _scheme_to_solve(typed: MechanismOptions) -> Sampling:
    """Return the scheme of which the rate is unknown."""
    typed.refuse_foreign()
    clients = typed.num_clients
    if typed.item.name == Full.name:
        raise conflict("--solve q", "--sampling full", "every client takes part in every round")
    if typed.item.name == Poisson.name:
        # Any rate will do here.
        return typed.but(sampling_rate="0.5").read_sampling()
    if clients is None:
        raise OptionConflict(
            f"--solve q with --sampling uniform needs {called('--clients')}, the population from "
            "which whole cohorts are drawn."
        )
    return Uniform(1, clients)


def _solved(solution: dpacct.Calibration, solve: str) -> tuple[float, Row]:
    """Return the solution, and its row with the value rounded to the safe side."""
    within = f"within {solution.goal} {plain(solution.target or 0.0)}"
    if solve == "delta":
        epsilon = plain(solution.epsilon.upper)
        meaning = f"the least proven at epsilon {epsilon}"
        return solution.delta, Row("delta", safe("delta", solution.delta, zeros=True), meaning)
    if solve == "rounds":
        return solution.rounds, Row("rounds", f"{solution.rounds}", f"the most that stay {within}")
    if solve == "q":
        meaning = f"the highest that stays {within}"
        only = mechanism.single_round(solution.rest)
        sampling = None if only is None else only.sampling
        if isinstance(sampling, Uniform):
            meaning = f"{sampling.cohort_size} of {sampling.num_clients} clients, {meaning}"
        rate = solution.sampling_rate
        return rate, Row("sampling rate", safe("sampling_rate", rate, zeros=True), meaning)
    noise = noise_multiplier(solution.rest)
    if noise is None:
        meaning = "x the noise of every release"
        shown = safe("noise_multiplier", solution.noise_scale, zeros=True)
        return solution.noise_scale, Row("noise scale", shown, meaning)
    shown = safe("noise_multiplier", noise, zeros=True)
    return noise, Row("noise multiplier", shown, noise_in_words(single(solution.rest)))


def _rdp_rows(solution: dpacct.Calibration, asked: dict[str, Any]) -> list[Row]:
    """Return the requirement of RDP: more noise, or for given noise a larger epsilon."""
    rows = mechanism.epsilon_rows(
        solution.schedule, solution.delta, solution.accountant, solution.epsilon
    )
    ours = mechanism.single_round(solution.rest)
    if not rows or rows[0].label != mechanism.BY_RDP or solution.solved_for != "noise" or not ours:
        return rows
    try:
        theirs = dpacct.calibrate(**asked, accountant="rdp").noise_multiplier
    except DpacctError:
        return rows
    more = 100 * (theirs / ours.noise_multiplier - 1)
    return [Row("RDP would need", up(theirs, 7), f"{more:.1f} % more noise")]


def _closing(typed: MechanismOptions, solution: dpacct.Calibration, at: ReadDelta) -> str:
    only = single(solution.rest)
    if noise_multiplier(solution.rest) is None:
        return "--json lists every phase with its noise, to the last digit."
    if not isinstance(only, Round):
        return ""
    if "schedule" in typed or "noise_multiplier" in typed or solution.fixed.rounds:
        return ""
    again = typed.retyped(noise=up(only.noise_multiplier, 7))
    return f"dpacct compare {again}{at.retyped} shows other accountants."


def _data(solution: dpacct.Calibration, typed: MechanismOptions) -> outputs.Calibrate:
    risk = solution.risk
    data: outputs.Calibrate = {
        "solved_for": solution.solved_for,
        **typed.described(solution.schedule),
        "accountant": solution.accountant,
        "delta": solution.delta,
        "epsilon": outputs.Target(
            solution.epsilon.lower,
            solution.epsilon.upper,
            solution.target if risk is None else None,
        ),
    }
    if risk is not None:
        data["risk"] = outputs.RiskGoal(solution.goal, risk.lower, risk.upper, solution.target)
    if noise_multiplier(solution.rest) is None:
        data["noise_scale"] = solution.noise_scale
    return data
