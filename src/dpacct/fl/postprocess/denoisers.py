"""Denoisers by name: frozen values that turn a noisy tensor into another of its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dpacct.fl.postprocess.laplacian import AXES, check_order, check_strength, smooth
from dpacct.fl.postprocess.shrinkage import james_stein, soft_threshold
from dpacct.fl.postprocess.sparsity import keep_largest
from dpacct.fl.privacy.masks import fraction_kept


class Denoiser(Protocol):
    """A public function of one released tensor and of the noise that was put on it."""

    def __call__(self, values: Tensor, noise_std: float) -> Tensor:
        """The tensor denoised, in its own shape and dtype.

        Args:
            values: of any shape. noise_std: standard deviation of the noise on each coordinate.
        """
        ...


@dataclass(frozen=True, slots=True)
class LaplacianSmoothing:
    """`smooth` with a fixed strength and order."""

    strength: float = 1.0
    order: str = AXES

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", check_strength(self.strength))
        check_order(self.order)

    def __call__(self, values: Tensor, noise_std: float) -> Tensor:
        """Smoothed; needs no noise level."""
        del noise_std
        return smooth(values, self.strength, self.order)


@dataclass(frozen=True, slots=True)
class JamesStein:
    """`james_stein`."""

    positive_part: bool = False

    def __call__(self, values: Tensor, noise_std: float) -> Tensor:
        """Shrunk."""
        return james_stein(values, noise_std, positive_part=self.positive_part)


@dataclass(frozen=True, slots=True)
class SoftThreshold:
    """`soft_threshold`."""

    def __call__(self, values: Tensor, noise_std: float) -> Tensor:
        """Thresholded."""
        return soft_threshold(values, noise_std)


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest coordinates of the noisy tensor."""

    fraction: float = 0.4

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", fraction_kept(self.fraction))

    def __call__(self, values: Tensor, noise_std: float) -> Tensor:
        """Sparsified; needs no noise level."""
        del noise_std
        return keep_largest(values.flatten(), [values.numel()], self.fraction).view_as(values)


DENOISERS: dict[str, Callable[[], Denoiser]] = {
    "laplacian": LaplacianSmoothing,
    "james-stein": JamesStein,
    "james-stein-plus": lambda: JamesStein(positive_part=True),
    "soft-threshold": SoftThreshold,
    "top-k": TopK,
}
