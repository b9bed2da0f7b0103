"""What an attacker can find out at a budget."""

from dpacct.risk.measures import (
    advantage,
    best_guess,
    guess,
    posterior,
    precision,
    prior_belief,
    true_positive_rate,
)

__all__ = [
    "advantage",
    "best_guess",
    "guess",
    "posterior",
    "precision",
    "prior_belief",
    "true_positive_rate",
]
