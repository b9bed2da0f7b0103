"""Fed-SMP: sparsified model perturbation, with one public mask for the whole cohort."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Noised, State
from dpacct.fl.methods.protocol import Cohort, Method, largest_of_each
from dpacct.fl.privacy.masks import Dense, Mask, PublicTopK, RandomK
from dpacct.validate import flag

_LAST_SEED = 10**9


@dataclass(frozen=True)
class FedSMPRandK(Method):
    """Random sparsification: in each round a random share p of each tensor, the same for all.

    ::

        U = sum_i clip(M o Delta_i, C) + M o N(0, (z C)^2)

    M is drawn from a public seed and the round's number. Given M this is the Gaussian mechanism in
    k dimensions with norm bound C: it is charged as DP-FedAvg is. M costs nothing and amplifies
    nothing. Noise energy falls from d (z C)^2 to k (z C)^2. ``fraction=1`` is DP-FedAvg.

    Args:
        fraction: p in (0, 1], published 0.4.
        seed: public, of the masks.
        unbiased: multiply the release by d_l / k_l in each tensor, so that the expectation
            over masks is the whole mean (before the clip).
    Source: Hu, Guo, Gong, "Fed-SMP", arXiv:2202.07178.
    """

    fraction: float = 0.4
    seed: int = 0
    unbiased: bool = False
    mask: Mask = field(init=False, repr=False, default=Dense())

    name = "fed-smp-randk"

    def __post_init__(self) -> None:
        flag("unbiased", self.unbiased)
        whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not whole or not 0 <= self.seed <= _LAST_SEED:
            rule = f"the public seed of the masks is a whole number from 0 to {_LAST_SEED:.0e}"
            raise InvalidParameter("seed", self.seed, rule)
        object.__setattr__(self, "mask", RandomK(self.fraction, self.seed))

    def post(self, noised: Noised, server_state: State) -> Noised:
        """Return the mean, scaled up where it is to be unbiased."""
        del server_state
        if not self.unbiased or noised.kept is None:
            return noised
        kept = noised.layout.restrict(noised.kept).sizes
        factors = [
            noised.vector.new_full((size,), size / max(sent, 1))
            for size, sent in zip(noised.layout.sizes, kept, strict=True)
        ]
        return noised.map(lambda mean: mean * torch.cat(factors))


@dataclass(frozen=True)
class FedSMPTopK(Method):
    """Top-k sparsification with a mask that is public: the largest coordinates of the last release.

    One mask for all comes from earlier releases and is applied before the bound, with noise on kept
    coordinates: charged as DP-FedAvg is.

    Args:
        fraction: p in (0, 1]. Published: 0.4. 1 is DP-FedAvg.
        refresh: the number of rounds between those with all coordinates, the first among them. A
            mask read from a masked release would never change. 0: only the first round has them.
        as_printed: each client picks the coordinates of its own noisy update, as in the published
            code. Papers leave the owner of the mask open.
    Source: as `FedSMPRandK`.
    """

    fraction: float = 0.4
    refresh: int = 10
    as_printed: bool = field(default=False, kw_only=True, repr=False)
    mask: Mask = field(init=False, repr=False, default=Dense())

    name = "fed-smp-topk"
    printed = "each client picks the coordinates of its own noisy update, by its data"

    def __post_init__(self) -> None:
        put = object.__setattr__
        mask = PublicTopK(self.fraction, self.refresh)
        put(self, "fraction", mask.fraction)
        put(self, "mask", Dense() if self.as_printed else mask)

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the sum of the clients' largest noisy coordinates."""
        return largest_of_each(cohort, self.fraction)
