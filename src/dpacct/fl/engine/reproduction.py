"""Runs of what papers print, where no finite epsilon covers it.

Rule 1: only a method that says ``not_private_because`` comes here, so a run that does is reported
with an infinite epsilon. Rule 2: what is printed is done with floating-point noise of the run's own
generator, in place of the engine's sum; nothing here is part of a private run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.methods.published import PublishedRound
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.noise import GaussianNoise, Noise
from dpacct.fl.privacy.norms import MARGIN, row_norms
from dpacct.fl.privacy.randomness import Randomness, normals


def reproduces(method: Method) -> bool:
    """Whether the method replaces the engine's sum by what a paper prints."""
    return method.not_private_because is not None and overrides(method, "published")


def check_noise(method: Method, noise: Noise) -> None:
    """A printed procedure has noise of its own.

    Raises:
        Unsupported: another noise was asked for.
    """
    if reproduces(method) and type(noise) is not GaussianNoise:
        raise Unsupported(
            f"{noise.name} noise: {method.name} with paper_mode adds noise as its paper prints it"
        )


def published_sum(
    method: Method, rows: Tensor, layout: Layout, bound: Bound, plan: NoisePlan, source: Randomness
) -> Tensor:
    """The sum [k] that a method's paper prints, from raw masked rows [m, k]."""

    def inside(values: Tensor) -> Tensor:
        return bound.apply(values.clone(), row_norms(values), layout, MARGIN)

    def draw(count: int, size: int) -> Tensor:
        return normals(source, count * size, rows.device).reshape(count, size)

    multiplier, planned = plan.noise_multiplier, plan.cohort_size
    cohort = PublishedRound(
        finite(rows), layout, multiplier, bound.clip_norm, planned, inside, draw
    )
    return method.published(cohort)


def finite(rows: Tensor) -> Tensor:
    """Rows [m, k] with those that hold NaN or infinity set to zero."""
    good = torch.isfinite(rows).all(dim=1, keepdim=True)
    return torch.where(good, rows, 0.0)
