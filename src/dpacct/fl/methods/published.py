"""Parts of procedures as papers print them, which no finite epsilon covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpacct.fl.layout import Layout
from dpacct.fl.postprocess.denoisers import keep_largest
from dpacct.fl.privacy.bounds import row_norms

TOP_K_AFTER_NOISE = (
    "each client keeps the largest coordinates of its own noisy update (paper_mode): which ones "
    "they are depends on its data, and noise is missing where they are not"
)


@dataclass(frozen=True, slots=True, eq=False)
class PublishedRound:
    """The data of a round that a printed procedure uses, more than a private one may.

    Attributes:
        rows: raw masked updates [m, k] of the participants, m = 0 included.
        layout: of the k coordinates.
        noise_multiplier: z.
        clip_norm: C of the bound that was asked for.
        cohort_size: planned.
        bound: bounds a copy of rows [m, k].
        normals: fresh standard normal variates, float64 [m, k], of any shape.
    """

    rows: Tensor
    layout: Layout
    noise_multiplier: float
    clip_norm: float
    cohort_size: float
    bound: Callable[[Tensor], Tensor]
    normals: Callable[[int, int], Tensor]


def participants_noise(cohort: PublishedRound, std: float) -> Tensor:
    """Return bounded rows [m, k], to each of which its client added N(0, std^2) per coordinate."""
    rows = cohort.bound(cohort.rows).double()
    return rows + std * cohort.normals(*rows.shape)


def median_clipped_sum(cohort: PublishedRound) -> Tensor:
    """Return the sum of updates clipped to the cohort's median norm C, with noise of std z C.

    Both depend on private norms without protection. An empty cohort releases zero.
    """
    rows = cohort.rows.double()
    if not len(rows):
        return rows.sum(dim=0)
    norms = row_norms(cohort.rows)
    limit = float(norms.median())
    scale = (limit / norms).clamp(max=1.0).nan_to_num(nan=0.0).unsqueeze(1)
    noise = cohort.normals(1, rows.shape[1]).squeeze(0)
    return (rows * scale).sum(dim=0) + cohort.noise_multiplier * limit * noise


def top_k_after_noise(cohort: PublishedRound, fraction: float) -> Tensor:
    """Return the sum of each client's own largest coordinates of clip(update) + N(0, (z C)^2 / m).

    Option II of DP-FedSAM, and the published code of Fed-SMP.
    """
    std = cohort.noise_multiplier * cohort.clip_norm / cohort.cohort_size**0.5
    noisy = participants_noise(cohort, std)
    return keep_largest(noisy, cohort.layout.sizes, fraction).sum(dim=0)
