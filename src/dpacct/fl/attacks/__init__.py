"""Attacks on trained models: who was a member? What they find is judged by `dpacct.empirical`."""

from dpacct.fl.attacks.held_out import HeldOut, without_members
from dpacct.fl.attacks.losses import client_losses, client_margins
from dpacct.fl.attacks.shadows import Shadows, likelihood_attack
from dpacct.fl.attacks.threshold import Attacked, loss_attack

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
