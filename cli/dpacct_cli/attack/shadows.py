"""Shadow models: as the run's own, on other people, with noise of the same size on the mean.

An attacker knows how a model was trained, and has people of the same kind. Shadow models repeat the
run on fewer clients; the noise on the sum is as much smaller as the cohorts are, so that the noise
on the mean is that of the run. They are charged to nobody: their people are not the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpacct import validate
from dpacct.calibration.calibrate import calibrate
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.checkpoint import noise_of
from dpacct.fl.federation import Federation
from dpacct.fl.models import Model, build_model, cross_entropy
from dpacct.ledger.record.plans import Plan
from dpacct.rounds import Phase, Round, Schedule, Uniform
from dpacct_cli import waiting
from dpacct_cli.attack.people import job_seed
from dpacct_cli.attack.target import Target
from dpacct_cli.train.methods import build_method


@dataclass(frozen=True, slots=True, eq=False)
class LikeTheRun:
    """Trains shadow models like the model of a checkpoint.

    Attributes:
        target: the checkpoint. noise_multiplier: of its run.
        count: how many shadow models there will be, for whoever waits.
    """

    target: Target
    noise_multiplier: float
    count: int

    def __call__(self, clients: Sequence[ClientData], number: int) -> Model:
        """A shadow model."""
        waiting.say(f"dpacct attack, shadow model {number + 1} of {self.count}")
        job, settings = self.target.job, self.target.settings
        model = build_model(settings.values["model"], job.dataset, seed=job_seed(self.target))
        if self.target.rounds == 0:
            return model.to(job.device)
        shrunk = _shrunk(self._plan(), len(clients), len(clients) / len(job.clients))
        with Federation(
            model,
            cross_entropy,
            list(clients),
            schedule=shrunk,
            method=build_method(settings.method, settings.method_options),
            clip_norm=job.clip_norm,
            delta=0.5,
            local=job.local,
            server_lr=job.server_lr,
            device=job.device,
            vectorize=job.vectorize,
            seed=number,
            preflight=False,
        ) as run:
            run.run()
        return model

    def _plan(self) -> Schedule:
        """Return the rounds that the checkpoint has seen."""
        job, rounds = self.target.job, self.target.rounds
        if job.schedule is None:
            return rounds * Round(self.noise_multiplier, job.sampling, job.adjacency)
        if job.budget is None:
            return Plan(job.schedule).first(rounds)
        target = job.budget
        found = calibrate(schedule=job.schedule, epsilon=target.epsilon, delta=target.delta)
        return Plan(found.schedule).first(rounds)


def _shrunk(plan: Schedule, clients: int, share: float) -> Schedule:
    """Return the same rounds for fewer clients, with so much less noise on the sum."""
    phases: list[Phase] = []
    for round_, count in plan:
        sampling = round_.sampling
        if isinstance(sampling, Uniform):
            sampling = Uniform(max(1, round(sampling.sampling_rate * clients)), clients)
        noise = max(validate.NOISE_MULTIPLIER_RANGE[0], share * round_.noise_multiplier)
        # Shadow models are charged to nobody, so their adjacency is the one that always applies.
        phases.append(Phase(Round(noise, sampling, "zero-out"), count))
    return Schedule(phases)


def noise_of_run(target: Target) -> float:
    """The noise multiplier that a checkpoint names; the least one where it names none."""
    found = noise_of(dict(target.content))
    return validate.NOISE_MULTIPLIER_RANGE[0] if found is None else found
