"""Risks: the success of attacks on a schedule, or on any mechanism with a guarantee."""

from dpacct.risk.measures import (
    AnyMechanism,
    advantage,
    best_guess,
    guess,
    largest_auc,
    posterior,
    precision,
    prior_belief,
    true_positive_rate,
)

__all__ = [
    "AnyMechanism",
    "advantage",
    "best_guess",
    "guess",
    "largest_auc",
    "posterior",
    "precision",
    "prior_belief",
    "true_positive_rate",
]
