"""From the settings of a run to its audit. Brings PyTorch with it."""

from __future__ import annotations

from dataclasses import replace

from dpacct.fl.auditing.runs import RunAudit, audit_run
from dpacct.rounds import Uniform
from dpacct_cli.train.job import Job, build_job
from dpacct_cli.train.run import federation
from dpacct_cli.train.settings import Settings


def audit_job(
    settings: Settings, canaries: int, others: str, error: float, confidence: float
) -> tuple[RunAudit, Job]:
    """Train the run that the settings describe, with canaries; nothing of it is kept.

    Raises:
        DpacctError: as training does, or there are too few canaries.
    """
    job = build_job(settings)
    sampling = job.sampling
    if isinstance(sampling, Uniform) and sampling.num_clients:
        # The population grows by the canaries, and the cohort with it.
        number = len(job.clients) + canaries
        cohort = max(1, min(number - 1, round(sampling.sampling_rate * number)))
        job = replace(job, sampling=Uniform(cohort, number))
    found = audit_run(
        lambda people: federation(job, people),
        job.clients,
        canaries=canaries,
        others=others,
        error=error,
        confidence=confidence,
    )
    return found, job
