"""What an attacker can find out at a budget."""

from dpacct.risk.area import largest_auc
from dpacct.risk.guarantee import AnyMechanism
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
