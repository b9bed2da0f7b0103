"""Calibration: the noise, rounds or rate that meet a goal, and the noise rules of DP-Fed-LS."""

from dpacct.calibration.noise_rule import NoiseRule, noise_rule

__all__ = ["NoiseRule", "noise_rule"]
