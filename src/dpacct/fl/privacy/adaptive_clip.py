"""A clip norm that follows a quantile of the updates' norms, found with noise and charged.

Each client also sends whether its update was within the norm, as +1/2 or -1/2. The noisy sum of
these moves the norm for the next round. Both sums are one release: with the indicator's noise of
standard deviation s and the update's multiplier z_u, the pair costs as much as one Gaussian sum of
multiplier z where 1/z^2 = 1/z_u^2 + 1/(2 s)^2.

Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, theorem 1; all three
adjacencies in docs/derivations/federated.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.bounds import ball_sensitivity, clip_factors, clip_norm, scale_rows
from dpacct.fl.privacy.norms import CLIP_NORM_RANGE, at_least_single
from dpacct.rounds import Adjacency

# One client moves the sum of the centered indicators by at most this.
INDICATOR_NORM = 0.5


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """`Clip` whose norm is moved after each round toward a quantile.

    Args:
        clip_norm: that of the first round; independent of the data.
        quantile: target share of updates within the norm, in (0, 1).
        rate: step of the norm's logarithm at a deviation of 1, above 0.
        indicator_noise: standard deviation of the noise on the sum of the indicators; None takes
            a twentieth of the planned cohort size (the paper's choice).

    Raises:
        InvalidParameter: a value out of range.
    """

    clip_norm: float
    quantile: float = 0.5
    rate: float = 0.2
    indicator_noise: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm(self.clip_norm))
        share = validate.real("quantile", self.quantile, "a quantile lies in (0, 1)")
        if not 0 < share < 1:
            raise InvalidParameter("quantile", self.quantile, "a quantile lies in (0, 1)")
        validate.above_zero("rate", self.rate, "the rate of an adaptive clip norm")
        if self.indicator_noise is not None:
            noun = "the indicator's noise"
            validate.above_zero("indicator_noise", self.indicator_noise, noun)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """C or 2C, of the updates' sum."""
        return ball_sensitivity(self.clip_norm, adjacency)

    def limits(self, layout: Layout) -> Sequence[tuple[int, int, float]]:
        """One limit on everything."""
        return [(0, layout.size, self.clip_norm)]

    def factors(self, norms: Tensor, margin: float) -> Tensor:
        """As `Clip.factors`."""
        return clip_factors(norms, self.clip_norm * (1 - margin))

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        """Clip whole rows."""
        del layout
        return scale_rows(at_least_single(rows), self.factors(norms, margin))

    def indicator_std(self, cohort: float) -> float:
        """Standard deviation of the noise on the sum of the indicators."""
        return cohort / 20 if self.indicator_noise is None else self.indicator_noise

    def update_multiplier(self, noise_multiplier: float, cohort: float) -> float:
        """z_u = (z^-2 - (2 s)^-2)^(-1/2), rounded up: the update's own multiplier.

        Args:
            noise_multiplier: z, that of both releases together.
            cohort: planned cohort size.
        Raises:
            InvalidParameter: the indicator alone costs more than z allows.
        """
        own = self.indicator_std(cohort) / INDICATOR_NORM
        rest = (1 - noise_multiplier / own) * (1 + noise_multiplier / own)
        if rest <= 0:
            rule = (
                f"with noise multiplier {noise_multiplier:g} the indicator's noise is above "
                f"{noise_multiplier * INDICATOR_NORM:g}"
            )
            hint = "Give more of it, or plan for a larger cohort."
            raise InvalidParameter("indicator_noise", self.indicator_std(cohort), rule, hint)
        # The subtraction may lose digits; what it loses is bounded by 2^-50 of the minuend.
        return noise_multiplier / math.sqrt(max(rest - 2.0**-50, 2.0**-60)) * (1 + 2.0**-40)

    def adapt(self, noisy_sum: float, cohort: float) -> AdaptiveClip:
        """The bound of the next round.

        C <- C exp(-rate (fraction - quantile)) with fraction = noisy_sum / cohort + 1/2: above the
        quantile too many updates are within the norm, and it falls.

        Args:
            noisy_sum: released sum of the indicators. cohort: planned cohort size.
        """
        fraction = noisy_sum / cohort + INDICATOR_NORM
        low, high = CLIP_NORM_RANGE
        step = math.exp(min(max(-self.rate * (fraction - self.quantile), -50.0), 50.0))
        return replace(self, clip_norm=min(max(self.clip_norm * step, low), high))
