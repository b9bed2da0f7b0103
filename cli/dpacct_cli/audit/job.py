"""From the settings of a run to its audit. Brings PyTorch with it."""

from __future__ import annotations

from dataclasses import replace

from dpacct.fl.auditing.canary_audit import OTHERS, RunAudit
from dpacct.fl.auditing.rounds import RoundAudit, audit_round
from dpacct.fl.auditing.runs import audit_run
from dpacct.fl.clients import Population
from dpacct.fl.examples import Examples
from dpacct.rounds import Uniform
from dpacct_cli.train.job import Job, build_job
from dpacct_cli.train.run import federation
from dpacct_cli.train.settings import Settings

# Who else is there in a round that is repeated: who is silent is not missed.
_COMPANY = 3


def audit_job(
    settings: Settings, canaries: int, others: str, error: float, confidence: float
) -> tuple[RunAudit, Job]:
    """Train the run that the settings describe, with canaries; nothing of it is kept.

    Raises:
        DpacctError: as training does, or there are too few canaries.
    """
    job = _grown(build_job(settings), canaries)
    found = audit_run(
        lambda people: federation(job, people),
        job.clients,
        canaries=canaries,
        others=others,
        error=error,
        confidence=confidence,
    )
    return found, job


def round_job(
    settings: Settings, runs: int, others: str, error: float, confidence: float
) -> tuple[RoundAudit, Job]:
    """Repeat the first round of the run that the settings describe; nothing of it is kept.

    Raises:
        DpacctError: as training does, or there are too few repetitions.
    """
    job = build_job(settings)
    people = job.clients
    if isinstance(job.sampling, Uniform):
        job = _grown(job, 1)
    elif others == OTHERS[0]:
        people = _first(people)
    found = audit_round(
        lambda clients: federation(job, clients),
        people,
        runs=runs,
        others=others,
        error=error,
        confidence=confidence,
    )
    return found, job


def _grown(job: Job, more: int) -> Job:
    """A population that grows by canaries, and a cohort of fixed size with it."""
    sampling = job.sampling
    if not (isinstance(sampling, Uniform) and sampling.num_clients):
        return job
    number = len(job.clients) + more
    cohort = max(1, min(number - 1, round(sampling.sampling_rate * number)))
    return replace(job, sampling=Uniform(cohort, number))


def _first(people: Population) -> Population:
    few = range(min(len(people), _COMPANY))
    if isinstance(people, Examples):
        return Examples(people.batch(list(few)), unit=people.unit)
    return [people[place] for place in few]
