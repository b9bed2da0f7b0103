"""`dpacct audit`: train with canaries, and test whether the releases contradict the charge."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from dpacct import validate
from dpacct.display import down, up
from dpacct.errors import Unsupported
from dpacct.rounds import Round, Sampling, Uniform
from dpacct_cli import mechanism
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import StyleOptions, number, option
from dpacct_cli.render import Answer, Page, Row, plain, show
from dpacct_cli.train.command import check_unit, read_settings
from dpacct_cli.train.options import MethodName, Training
from dpacct_cli.train.settings import Settings, load, typed_values
from dpacct_cli.train.settings import option as option_of

if TYPE_CHECKING:
    from dpacct.fl.auditing.canary_audit import RunAudit
    from dpacct.fl.auditing.runs import RoundAudit
    from dpacct_cli.train.job import Job

FAULTY = 1
# Other clients in a repeated round: silent ones change nothing, so a few will do.
COMPANY = 3
THE_AUDIT = "The audit"
UNSEEN = (
    "An audit finds faults. Finding none proves nothing: it does not see what clients send beside "
    "their update, the use of data outside of training, or the quality of the randomness."
)

Canaries = Annotated[str | None, option(
    "--canaries", metavar="N", panel=THE_AUDIT,
    help="Number of planted clients, each in or out by a coin; default 200.",
)]  # fmt: skip
SingleRound = Annotated[str | None, option(
    "--single-round", metavar="N", panel=THE_AUDIT,
    help="Repeat the first round N times with one client more and N times without, instead of "
    "a whole run. Assumes nothing of the noise; try 1000.",
)]  # fmt: skip
Error = Annotated[str, option(
    "--error", metavar="P", panel=THE_AUDIT,
    help="Probability that a sound run is called faulty; default 1e-6.",
)]  # fmt: skip
Others = Annotated[str, option(
    "--others", metavar="silent|heard", panel=THE_AUDIT,
    help="Whether the other clients send nothing (default), or train, which hides canaries.",
)]  # fmt: skip
Confidence = Annotated[str, option(
    "--confidence", metavar="P", panel=THE_AUDIT,
    help="Confidence of the shown epsilons; default 0.95.",
)]  # fmt: skip
SettingsFile = Annotated[str | None, option(
    "--run", metavar="FILE", panel=THE_AUDIT,
    help="Settings of a run, as dpacct train leaves them beside its ledger.",
)]  # fmt: skip


def audit(
    training: Training,
    shown: StyleOptions,
    method: MethodName = None,
    run: SettingsFile = None,
    canaries: Canaries = None,
    single_round: SingleRound = None,
    others: Others = "silent",
    error: Error = "1e-6",
    confidence: Confidence = "0.95",
) -> None:
    """Test a training run for privacy bugs, using canaries.

    The exit code is 1 if something contradicts the charge. -q prints passed or failed.

    Examples:
      dpacct audit dp-fedavg
      dpacct audit dp-fedavg --rounds 20 --noise 1 --sampling full
      dpacct audit dp-fedpgn --set rho=0.1 --data mnist --data-dir data
      dpacct audit mymethods:Proximal --json
      dpacct audit dp-fedavg --noise 1 --single-round 1000
      dpacct audit dp-fedavg --examples --batch 128 --rounds 50
      dpacct audit --run mnist.dp-fedavg-1.settings.json
    """
    style = shown.style
    settings = _settings(method, run, training)
    check_unit(settings)
    if single_round is not None and canaries is not None:
        why = "there is one client more, and no canaries"
        raise conflict(f"--canaries {canaries}", f"--single-round {single_round}", why)
    planted = validate.count("canaries", number(canaries or "200"), "the number of canaries")
    repeated = single_round and validate.count(
        "single_round", number(single_round), "the number of repetitions"
    )
    wrong = validate.positive_probability("error", number(error), "an error", below_one=True)
    sure = validate.positive_probability(
        "confidence", number(confidence), "a confidence", below_one=True
    )
    if find_spec("torch") is None:
        raise Unsupported("an audit trains, which needs PyTorch: pip install -e '.[fl]'")
    test: dict[str, Any] = {"others": others, "error": wrong, "confidence": sure}
    if repeated:
        found, job = repeat_round(settings, int(repeated), **test)
    else:
        found, job = audit_whole_run(settings, planted, **test)
    words = "passed" if found.passed else "failed"
    show(Answer(_keys(settings, job, found), words, lambda: page(settings, job, found)), style)
    if not found.passed:
        raise SystemExit(FAULTY)


def _settings(method: str | None, run: str | None, training: Training) -> Settings:
    """Return the settings of a run, or the typed settings."""
    if run is None:
        return read_settings(method, training)
    typed = [key for key, value in typed_values(training).items() if value is not None]
    layers = (training.assignments, training.server_assignments, training.preset, training.config)
    if method is not None or typed or any(layers):
        other = method or (option_of(typed[0]) if typed else "--set, --preset, --config")
        raise OptionConflict(f"--run {run} already sets {other}; drop one of them.")
    return load(Path(run))


# PyTorch is imported here, once everything that can be checked without it has been.


def audit_whole_run(settings: Settings, canaries: int, **test: Any) -> tuple[RunAudit, Job]:
    """Train the run that the settings describe, with canaries. Nothing of it is kept.

    Args:
        settings: of the run. canaries: their number. test: other arguments of `audit_run`.
    Raises:
        DpacctError: as training does, or there are too few canaries.
    """
    from dpacct.fl.auditing.runs import audit_run
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import federation

    job = _grown(build_job(settings), canaries)
    people = job.clients
    return audit_run(lambda some: federation(job, some), people, canaries=canaries, **test), job


def repeat_round(settings: Settings, runs: int, **test: Any) -> tuple[RoundAudit, Job]:
    """Repeat the first round of the run that the settings describe. Nothing of it is kept.

    Args:
        settings: of the run. runs: repetitions. test: other arguments of `audit_round`.
    Raises:
        DpacctError: as training does, or there are too few repetitions.
    """
    from dpacct.fl.auditing.runs import audit_round
    from dpacct.fl.examples import Examples
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import federation

    job = build_job(settings)
    people = job.clients
    if isinstance(job.sampling, Uniform):
        job = _grown(job, 1)
    elif test["others"] == "silent" and settings.get("adaptive_clip") is None:
        # The noise on what an adaptive norm learns grows with the cohort, which therefore stays.
        few = range(min(len(people), COMPANY))
        if isinstance(people, Examples):
            people = Examples(people.batch(list(few)), unit=people.unit)
        else:
            people = [people[place] for place in few]
    return audit_round(lambda some: federation(job, some), people, runs=runs, **test), job


def _grown(job: Job, more: int) -> Job:
    """Return a job with canaries in its population, and with a larger cohort of fixed size."""
    sampling = job.sampling
    if not isinstance(sampling, Uniform):
        return job
    size = len(job.clients) + more
    cohort = max(1, min(size - 1, round(sampling.sampling_rate * size)))
    return replace(job, sampling=Uniform(cohort, size))


def _size(job: Job, found: RunAudit) -> int:
    """Return the number of clients that may be printed."""
    return job.public.size if job.public.stated else found.clients


def _keys(settings: Settings, job: Job, found: RunAudit | RoundAudit) -> dict[str, Any]:
    """Return the keys of --json, for a run or for a repeated round."""
    from dpacct.fl.auditing.canary_audit import RunAudit

    tested = found.shown if isinstance(found, RunAudit) else found
    shown: dict[str, float | None] = {
        "epsilon": tested.epsilon,
        "epsilon_if_gaussian": found.gaussian_epsilon,
    }
    if isinstance(found, RunAudit):
        factor, guesses = found.shown.noise_factor, found.shown.guesses
        shown["noise_factor"] = factor if math.isfinite(factor) else None
        own_keys = {
            "canaries": guesses.canaries,
            "guesses": guesses.made,
            "right": guesses.right,
            f"{job.unit}s": _size(job, found),
        }
    else:
        own_keys = {"repetitions": found.runs, "tpr": found.tpr.value, "fpr": found.fpr.value}
    return {
        "passed": found.passed,
        "faults": list(found.faults),
        "method": settings.method,
        "data": job.dataset.name,
        "rounds": found.rounds if isinstance(found, RunAudit) else 1,
        "epsilon": {"lower": found.charged.lower, "upper": found.charged.upper},
        "delta": found.charged.delta,
        "shown": {**shown, "confidence": tested.confidence},
        **own_keys,
        "error": tested.error,
        "sampling": job.sampling.name,
        "sampling_rate": job.sampling.sampling_rate,
        "adjacency": job.adjacency,
        "noise_multiplier": found.noise_multiplier,
    }


def page(settings: Settings, job: Job, found: RunAudit | RoundAudit) -> Page:
    """Return the page for people, of a run or of a repeated round."""
    from dpacct.fl.auditing.canary_audit import RunAudit

    tested = found.shown if isinstance(found, RunAudit) else found
    sure = f"{plain(100 * tested.confidence)} % sure"
    rows = [Row("audit", "FAILED", fault) for fault in found.faults]
    rows = rows or [Row("audit", "passed", "nothing contradicts the charge")]
    rows += [
        mechanism.epsilon_row(found.charged, job.delta.origin),
        Row("shown", f"above {down(tested.epsilon, 3)}", f"for any mechanism; {sure}"),
        Row("", f"above {down(found.gaussian_epsilon, 3)}", f"if its noise is Gaussian; {sure}"),
    ]
    what, rounds = "round", 1
    training = f"{settings.method} on {job.dataset.name}"
    if isinstance(found, RunAudit):
        what, rounds = "run", found.rounds
        training += f", {_size(job, found):,} {job.unit}s, the canaries"
        factor, guesses = found.shown.noise_factor, found.shown.guesses
        seen = f"at most {up(factor, 3)} x" if math.isfinite(factor) else "unknown"
        right = f"{guesses.right} of {guesses.made} guesses were right"
        rows += [
            Row("noise seen", seen, f"the charge, for a contribution of one clip norm; {sure}"),
            Row("canaries", f"{guesses.canaries}", f"each in or out by a coin; {right}"),
        ]
    else:
        training += ", the first round alone"
        tpr, fpr = (plain(round(100 * rate.value, 1)) for rate in (found.tpr, found.fpr))
        with_it = f"of the repetitions with one {job.unit} more, and {fpr} % of those without"
        rows += [
            Row("recognized", f"{tpr} %", with_it),
            Row("repetitions", f"{found.runs} + {found.runs}", "half of them chose the test"),
        ]
    # The audit refuses an allocation.
    sampling = cast("Sampling", job.sampling)
    plan = rounds * Round(found.noise_multiplier, sampling, job.adjacency)
    rows += [*mechanism.rows(plan), Row("training", training)]
    remarks = [
        f"A sound {what} is called faulty with a probability of {plain(tested.error)} at most."
    ]
    if found.passed and max(tested.epsilon, found.gaussian_epsilon) > found.charged.upper:
        free = plain(round(100 * (1 - tested.confidence), 6))
        luck = (
            "More is shown than is charged, which is no fault yet: each of the two may err with "
            f"{free} %. Run the audit again, or make it longer."
        )
        remarks.insert(0, luck)
    return Page(rows, remarks=[*remarks, UNSEEN])
