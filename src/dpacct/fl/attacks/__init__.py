"""Attacks on trained models. Their results are judged by `dpacct.empirical`."""

from dpacct.fl.attacks.membership import (
    Attacked,
    HeldOut,
    Shadows,
    client_losses,
    client_margins,
    likelihood_attack,
    loss_attack,
    without_members,
)

__all__ = [
    "Attacked",
    "HeldOut",
    "Shadows",
    "client_losses",
    "client_margins",
    "likelihood_attack",
    "loss_attack",
    "without_members",
]
