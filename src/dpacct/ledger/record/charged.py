"""The former place of what a plan is charged by; it is in `record.plans`."""

from dpacct.ledger.record.plans import (
    PAIRS,
    TIGHT,
    Charged,
    achieved_epsilon,
    epsilon_so_far,
    proven_epsilon,
)

__all__ = ["PAIRS", "TIGHT", "Charged", "achieved_epsilon", "epsilon_so_far", "proven_epsilon"]
