"""What `dpacct audit` answers."""

from __future__ import annotations

import math
from typing import Any

from dpacct.display import down, up
from dpacct.fl.auditing.canary_audit import RunAudit
from dpacct.fl.auditing.rounds import RoundAudit
from dpacct.rounds import Round
from dpacct_cli import mechanism
from dpacct_cli.render import Page, Row, plain
from dpacct_cli.train.job import Job
from dpacct_cli.train.settings import Settings

UNSEEN = (
    "An audit finds faults, and proves nothing by finding none. It does not see what clients send "
    "beside their update, what is done with data outside of training, or whether cohorts and "
    "noise come from good randomness."
)


def data(settings: Settings, job: Job, found: RunAudit) -> dict[str, Any]:
    """The keys of --json."""
    shown, guesses = found.shown, found.shown.guesses
    factor = shown.noise_factor
    return {
        "passed": found.passed,
        "faults": list(found.faults),
        "method": settings.method,
        "data": job.dataset.name,
        "rounds": found.rounds,
        "epsilon": {"lower": found.charged.lower, "upper": found.charged.upper},
        "delta": found.charged.delta,
        "shown": {
            "epsilon": shown.epsilon,
            "epsilon_if_gaussian": found.gaussian_epsilon,
            "noise_factor": factor if math.isfinite(factor) else None,
            "confidence": shown.confidence,
        },
        "canaries": guesses.canaries,
        "guesses": guesses.made,
        "right": guesses.right,
        "error": shown.error,
        f"{job.unit}s": _shown_size(job, found),
        "sampling": job.sampling.name,
        "sampling_rate": job.sampling.sampling_rate,
        "adjacency": job.adjacency,
        "noise_multiplier": found.noise_multiplier,
    }


def _shown_size(job: Job, found: RunAudit) -> int:
    """Return the number of clients that may be printed."""
    return job.public.size if job.public.stated else found.clients


def page(settings: Settings, job: Job, found: RunAudit) -> Page:
    """The rows for people."""
    shown, guesses = found.shown, found.shown.guesses
    sure = f"{plain(100 * shown.confidence)} % sure"
    verdict = [Row("audit", "passed", "nothing contradicts what is charged")]
    if not found.passed:
        verdict = [Row("audit", "FAILED", fault) for fault in found.faults]
    factor = shown.noise_factor
    seen = f"at most {up(factor, 3)} x" if math.isfinite(factor) else "unknown"
    plan = found.rounds * Round(found.noise_multiplier, job.sampling, job.adjacency)
    rows = [
        *verdict,
        mechanism.epsilon_row(found.charged, job.delta.origin),
        Row("shown", f"above {down(shown.epsilon, 3)}", f"whatever runs; {sure}"),
        Row("", f"above {down(found.gaussian_epsilon, 3)}", f"if its noise is Gaussian; {sure}"),
        Row("noise seen", seen, f"what is charged, for a contribution of one clip norm; {sure}"),
        Row(
            "canaries",
            f"{guesses.canaries}",
            f"each in or out by a coin; {guesses.right} of {guesses.made} guesses were right",
        ),
        *mechanism.rows(plan),
        Row(
            "training",
            f"{settings.method} on {job.dataset.name}, {_shown_size(job, found):,} {job.unit}s, "
            "the canaries",
        ),
    ]
    luck = _luck(found, max(shown.epsilon, found.gaussian_epsilon), shown.confidence)
    error = f"A sound run is called faulty with a probability of {plain(shown.error)} at most."
    return Page(rows, remarks=[*luck, error, UNSEEN])


def round_data(settings: Settings, job: Job, found: RoundAudit) -> dict[str, Any]:
    """The keys of --json, where one round was repeated."""
    return {
        "passed": found.passed,
        "faults": list(found.faults),
        "method": settings.method,
        "data": job.dataset.name,
        "rounds": 1,
        "epsilon": {"lower": found.charged.lower, "upper": found.charged.upper},
        "delta": found.charged.delta,
        "shown": {
            "epsilon": found.epsilon,
            "epsilon_if_gaussian": found.gaussian_epsilon,
            "confidence": found.confidence,
        },
        "repetitions": found.runs,
        "tpr": found.tpr.value,
        "fpr": found.fpr.value,
        "error": found.error,
        "sampling": job.sampling.name,
        "sampling_rate": job.sampling.sampling_rate,
        "adjacency": job.adjacency,
        "noise_multiplier": found.noise_multiplier,
    }


def round_page(settings: Settings, job: Job, found: RoundAudit) -> Page:
    """The rows for people, where one round was repeated."""
    sure = f"{plain(100 * found.confidence)} % sure"
    verdict = [Row("audit", "passed", "nothing contradicts what is charged")]
    if not found.passed:
        verdict = [Row("audit", "FAILED", fault) for fault in found.faults]
    rows = [
        *verdict,
        mechanism.epsilon_row(found.charged, job.delta.origin),
        Row("shown", f"above {down(found.epsilon, 3)}", f"whatever runs; {sure}"),
        Row("", f"above {down(found.gaussian_epsilon, 3)}", f"if its noise is Gaussian; {sure}"),
        Row(
            "recognized",
            f"{plain(round(100 * found.tpr.value, 1))} %",
            f"of the repetitions with one {job.unit} more, and "
            f"{plain(round(100 * found.fpr.value, 1))} % of those without",
        ),
        Row("repetitions", f"{found.runs} + {found.runs}", "half of them chose the test"),
        *mechanism.rows(1 * Round(found.noise_multiplier, job.sampling, job.adjacency)),
        Row("training", f"{settings.method} on {job.dataset.name}, the first round alone"),
    ]
    luck = _luck(found, max(found.epsilon, found.gaussian_epsilon), found.confidence)
    error = f"A sound round is called faulty with a probability of {plain(found.error)} at most."
    return Page(rows, remarks=[*luck, error, UNSEEN])


def _luck(found: RunAudit | RoundAudit, highest: float, confidence: float) -> list[str]:
    """A word on an epsilon above what is charged that is no fault."""
    if not found.passed or highest <= found.charged.upper:
        return []
    return [
        (
            "More is shown than is charged, which is no fault yet: each of the two may err with "
            f"{plain(round(100 * (1 - confidence), 6))} %. Run the audit again, or make it longer."
        )
    ]
