"""What an attacker can find out at a budget."""

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
