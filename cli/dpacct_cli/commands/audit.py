"""`dpacct audit`: train with canaries, and test whether the releases contradict the charge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from dpacct import validate
from dpacct.display import down, up
from dpacct.outputs import mechanism_of
from dpacct.rounds import Round, Sampling, Schedule, Uniform
from dpacct_cli import mechanism, outputs
from dpacct_cli.errors import require_torch
from dpacct_cli.options import StyleOptions, number, option
from dpacct_cli.render import Answer, Page, Row, plain, show
from dpacct_cli.train.command import check_unit, read_settings
from dpacct_cli.train.options import MethodName, Training
from dpacct_cli.train.settings import RunSettings

if TYPE_CHECKING:
    from dpacct.fl.auditing.runs import RunAudit
    from dpacct_cli.train.job import Job

FAULTY = 1
THE_AUDIT = "The audit"
UNSEEN = (
    "An audit can find faults, and cannot prove that there are none. It does not test what clients "
    "send beside their update, the use of data outside of training, or the random generator."
)

# fmt: off
Canaries = Annotated[str, option("--canaries", "N", THE_AUDIT,
    "Number of planted clients, each included by a coin flip; default 200.")]
Error = Annotated[str, option("--error", "P", THE_AUDIT,
    "Probability that a correct run is reported as faulty; default 1e-6.")]
Confidence = Annotated[str, option("--confidence", "P", THE_AUDIT,
    "Confidence of the shown epsilons; default 0.95.")]
# fmt: on


def audit(
    training: Training,
    shown: StyleOptions,
    method: MethodName = None,
    canaries: Canaries = "200",
    error: Error = "1e-6",
    confidence: Confidence = "0.95",
) -> None:
    """Test a training run for privacy bugs, using canaries.

    The other clients send nothing, as if the attacker knew their updates. The exit code is 1 if
    the releases contradict the charge. -q prints passed or failed.

    Examples:
      dpacct audit dp-fedavg
      dpacct audit dp-fedavg --rounds 20 --noise 1 --sampling full
      dpacct audit dp-fedpgn --set rho=0.1 --data mnist --data-dir data
      dpacct audit mymethods:Proximal --json
      dpacct audit dp-fedavg --examples --batch 128 --rounds 50
    """
    style = shown.style
    settings = read_settings(method, training)
    check_unit(settings)
    test: dict[str, Any] = {
        "canaries": validate.count("canaries", number(canaries), "the number of canaries")
    }
    for name, text in (("error", error), ("confidence", confidence)):
        noun = f"the {name}"
        test[name] = validate.positive_probability(name, number(text), noun, below_one=True)
    require_torch("an audit needs")
    from dpacct_cli.train.own_code import OwnErrors

    with OwnErrors(settings.method):
        audited, job = audit_settings(settings, **test)
    words = "passed" if audited.passed else "failed"
    show(Answer(_data(settings, job, audited), words, lambda: page(settings, job, audited)), style)
    if not audited.passed:
        raise SystemExit(FAULTY)


def audit_settings(settings: RunSettings, canaries: int, **test: Any) -> tuple[RunAudit, Job]:
    """Train the run that the settings describe, with canaries. Nothing of it is kept."""
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct.fl.auditing.runs import audit_run
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import federation

    job = build_job(settings)
    if isinstance(job.sampling, Uniform):
        # The cohort grows with the population.
        size = len(job.clients) + canaries
        cohort = max(1, min(size - 1, round(job.sampling.sampling_rate * size)))
        job = replace(job, sampling=Uniform(cohort, size))
    people = job.clients
    return audit_run(lambda some: federation(job, some), people, canaries=canaries, **test), job


def _size(job: Job, audit: RunAudit) -> int:
    """Return the number of clients that may be printed."""
    return job.public.size if job.public.stated else audit.clients


def _plan(job: Job, audit: RunAudit) -> Schedule:
    # The audit refuses an allocation.
    sampling = cast("Sampling", job.sampling)
    return audit.rounds * Round(audit.noise_multiplier, sampling, job.adjacency)


def _data(settings: RunSettings, job: Job, audit: RunAudit) -> outputs.Audit:
    tested, guesses = audit.shown, audit.shown.guesses
    data: outputs.Audit = {
        "passed": audit.passed,
        "faults": list(audit.faults),
        "method": settings.method,
        "data": job.dataset.name,
        **mechanism_of(_plan(job, audit)),
        "epsilon": audit.charged.interval,
        "delta": audit.charged.delta,
        "shown": outputs.Shown(
            tested.epsilon, audit.gaussian_epsilon, tested.noise_factor, tested.confidence
        ),
        "canaries": guesses.canaries,
        "guesses": guesses.made,
        "right": guesses.right,
        "error": tested.error,
    }
    data["examples" if job.unit == "example" else "clients"] = _size(job, audit)
    return data


def page(settings: RunSettings, job: Job, audit: RunAudit) -> Page:
    """Return the page for people."""
    tested, guesses = audit.shown, audit.shown.guesses
    sure = f"{plain(100 * tested.confidence)} % sure"
    factor = tested.noise_factor
    seen = f"at most {up(factor, 3)} x" if math.isfinite(factor) else "unknown"
    right = f"each in or out by a coin; {guesses.right} of {guesses.made} guesses were right"
    people = f"{_size(job, audit):,} {job.unit}s, the canaries"
    rows = [Row("audit", "FAILED", fault) for fault in audit.faults]
    rows = rows or [Row("audit", "passed", "nothing contradicts the charge")]
    rows += [
        mechanism.epsilon_row(audit.charged, job.delta.origin),
        Row("shown", f"above {down(tested.epsilon, 3)}", f"for any mechanism; {sure}"),
        Row("", f"above {down(audit.gaussian_epsilon, 3)}", f"if its noise is Gaussian; {sure}"),
        Row("noise seen", seen, f"the charge, for a contribution of one clip norm; {sure}"),
        Row("canaries", f"{guesses.canaries}", right),
        *mechanism.rows(_plan(job, audit)),
        Row("training", f"{settings.method} on {job.dataset.name}, {people}"),
    ]
    remarks = [f"A sound run is called faulty with a probability of {plain(tested.error)} at most."]
    if audit.passed and max(tested.epsilon, audit.gaussian_epsilon) > audit.charged.upper:
        free = plain(round(100 * (1 - tested.confidence), 6))
        luck = (
            "More is shown than is charged, which is no fault yet: each of the two may err with "
            f"{free} %. Run the audit again, or make it longer."
        )
        remarks.insert(0, luck)
    return Page(rows, remarks=[*remarks, UNSEEN])
