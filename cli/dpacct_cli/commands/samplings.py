"""One training job under each way of drawing its batches, for `compare` and `plot samplings`."""

from __future__ import annotations

import math
from typing import NamedTuple

from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions
from dpacct_cli.words import called, in_units

RELATION = Adjacency.ZERO_OUT


class Way(NamedTuple):
    """A way of drawing batches: its name, what it does, and the job as a schedule."""

    name: str
    words: str
    schedule: Schedule


def describes_job(typed: MechanismOptions) -> bool:
    """Return True if the options give examples, batch and epochs, and leave the sampling open."""
    others = typed._replace(noise=None, epochs=None, cohort=None, clients=None)
    return None not in (typed.epochs, typed.cohort, typed.clients) and not others.by_option()


def read_ways(typed: MechanismOptions) -> list[Way]:
    """Return the ways of drawing the batches of a training job.

    Raises:
        OptionConflict: the options do not describe a job.
    """
    typed.check()
    if not describes_job(typed):
        raise OptionConflict(
            f"a training job is {called('--clients')}, {called('--cohort')}, --epochs and --noise."
        )
    noise, rounds, poisson = typed.read_noise(), typed.read_rounds(), typed.read_sampling()
    one = rounds * Round(noise, Poisson(poisson.sampling_rate), RELATION)
    cohort, clients = typed.value("cohort"), typed.value("clients")
    epochs, steps = math.ceil(typed.value("epochs")), -(-clients // cohort)
    unit, whole = in_units("each client"), f"{epochs} x {steps} steps"
    drawn = in_units(f"exactly {cohort} clients, drawn afresh in each step")
    fixed = rounds * Round(noise, Uniform(cohort, clients), RELATION)
    allocated = epochs * Epoch(noise, steps, adjacency=RELATION)
    shuffled = epochs * ShuffledEpoch(noise, steps, adjacency=RELATION)
    return [
        Way("poisson", f"{unit} joins each step with the same probability", one),
        Way("allocation", f"{unit} in one random step of an epoch ({whole})", allocated),
        Way("uniform", drawn, fixed),
        Way("shuffle", f"a data loader that shuffles ({whole})", shuffled),
    ]
