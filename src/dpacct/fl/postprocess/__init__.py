"""Functions of a released, noisy tensor. They never change epsilon (post-processing)."""

from dpacct.fl.postprocess.averages import Average
from dpacct.fl.postprocess.denoisers import DENOISERS, james_stein, keep_largest, soft_threshold
from dpacct.fl.postprocess.laplacian import noise_gain, smooth

__all__ = [
    "DENOISERS",
    "Average",
    "james_stein",
    "keep_largest",
    "noise_gain",
    "smooth",
    "soft_threshold",
]
