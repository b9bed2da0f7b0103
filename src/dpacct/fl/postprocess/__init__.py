"""Functions of a released, noisy tensor: whatever they do, epsilon stays what it was."""

from dpacct.fl.postprocess.denoisers import (
    DENOISERS,
    Denoiser,
    JamesStein,
    LaplacianSmoothing,
    SoftThreshold,
    TopK,
)
from dpacct.fl.postprocess.laplacian import effective_dimension, noise_gain, smooth
from dpacct.fl.postprocess.shrinkage import james_stein, soft_threshold
from dpacct.fl.postprocess.sparsity import keep_largest

__all__ = [
    "DENOISERS",
    "Denoiser",
    "JamesStein",
    "LaplacianSmoothing",
    "SoftThreshold",
    "TopK",
    "effective_dimension",
    "james_stein",
    "keep_largest",
    "noise_gain",
    "smooth",
    "soft_threshold",
]
