"""One training job under each way of drawing its batches, for `compare` and `plot samplings`."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import dpacct
from dpacct.budget import Interval
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import NotConverged, Unsupported
from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct_cli import waiting
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions
from dpacct_cli.render import Grid, down, seconds, up
from dpacct_cli.words import called, in_units

RELATION = Adjacency.ZERO_OUT


class Way(NamedTuple):
    """A way of drawing batches: its name, what it does, and the job as a schedule."""

    name: str
    words: str
    schedule: Schedule


class Cost(NamedTuple):
    """The epsilon of a job by one way, None where no accountant answers."""

    way: Way
    epsilon: Interval | None
    seconds: float
    note: str = ""


def describes_job(typed: MechanismOptions) -> bool:
    """Return True if the options give examples, batch and epochs, and leave the sampling open."""
    given = None not in (typed.epochs, typed.cohort, typed.clients)
    return given and typed.sampling is None and typed.records is None


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


def read_costs(typed: MechanismOptions, delta: float) -> list[Cost]:
    """Return the cost of a job by each way."""
    ways, found = read_ways(typed), list[Cost]()
    for done, way in enumerate(ways):
        waiting.say(f"dpacct compare: {way.name}", done, len(ways))
        start = time.perf_counter()
        try:
            spent = dpacct.epsilon(way.schedule, delta=delta)
            elapsed = time.perf_counter() - start
            found.append(Cost(way, Interval(spent.lower, spent.upper), elapsed))
        except (Unsupported, NotConverged) as error:
            found.append(Cost(way, None, 0.0, str(error)))
    return found


def as_json(cost: Cost) -> dict[str, object]:
    """Return a row for --json."""
    found = cost.epsilon
    return {
        "sampling": cost.way.name,
        "words": cost.way.words,
        "epsilon": None if found is None else {"lower": found.lower, "upper": found.upper},
        "adjacency": str(RELATION),
        "seconds": cost.seconds,
        "note": cost.note,
    }


def grid(costs: list[Cost]) -> Grid:
    """Return the table of all ways."""
    lines = [
        [way.name, up(found.upper), down(found.lower), seconds(elapsed), way.words]
        for way, found, elapsed, _ in costs
        if found is not None
    ]
    return Grid([f"sampling ({RELATION})", "epsilon", "achieved", "time", ""], lines)
