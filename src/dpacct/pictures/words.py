"""What runs, in a few words below a title."""

from __future__ import annotations

from dpacct.display import chosen
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform


def in_words(schedule: Schedule) -> str:
    """Rounds, sampling, noise and adjacency of a schedule."""
    rounds = "1 round" if schedule.rounds == 1 else f"{schedule.rounds} rounds"
    kinds = schedule.distinct()
    if len(kinds) != 1:
        return f"{rounds} of {len(kinds)} kinds, {schedule.adjacency}"
    (only,) = kinds
    noise = f"noise {chosen(only.noise_multiplier)} x clip norm"
    return f"{rounds}, {sampled(only)}, {noise}, {schedule.adjacency}"


def sampled(round_: Round) -> str:
    """Who takes part in a round."""
    match round_.sampling:
        case Poisson(rate):
            return f"Poisson rate {chosen(rate, least=True)}"
        case Uniform(cohort_size, num_clients):
            return f"{cohort_size} of {num_clients} clients"
        case Full():
            return "everybody"
