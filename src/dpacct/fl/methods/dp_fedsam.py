"""DP-FedSAM: local steps by sharpness-aware minimization. DP-FedSAM-top-k: sparsified as well."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dpacct.fl.layout import Layout, Noised, Params, State
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods.protocol import Cohort, Context, Method, largest_of_each, step_along
from dpacct.fl.postprocess import keep_largest
from dpacct.fl.privacy.masks import Dense, Mask, PublicTopK, fraction_kept
from dpacct.validate import at_least_zero, flag, one_of

PLACEMENTS = ("server", "shared", "client")


@dataclass(frozen=True)
class DPFedSAM(Method):
    """Each local step uses the gradient at a point moved by rho along the local gradient.

    On one batch, with the norm over all parameters together::

        g = grad F_i(w),  e = rho g / |g|  (0 where g = 0),  w <- w - lr grad F_i(w + e)

    Adaptive SAM measures the step in units of the weights, all products by coordinate::

        e = rho w^2 g / |w g|  (0 where w g = 0)

    The paper prints the first form. Its published program runs the second one by default.
    Two gradients a step. rho = 0 is DP-FedAvg. Nothing before the bound matters for privacy, so
    epsilon is that of DP-FedAvg, not less.

    Args:
        rho: radius, at least 0. Published: 0.5.
        adaptive: adaptive SAM.
    Source: "DP-FedSAM", journal version, Option I. SAM: Foret et al. 2021, arXiv:2010.01412.
        Adaptive SAM: Kwon et al. 2021, arXiv:2102.11600, equation 8 without its offset.
    """

    rho: float = 0.5
    adaptive: bool = field(default=False, kw_only=True)

    name = "dp-fedsam"

    def __post_init__(self) -> None:
        rho = at_least_zero("rho", self.rho, "the radius of the perturbation")
        object.__setattr__(self, "rho", rho)
        flag("adaptive", self.adaptive)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return grad F_i(w + e)."""
        del context
        here = loss.gradient(params, batch)
        if self.rho == 0:
            return here
        if self.adaptive:
            unit = step_along({name: w * here[name] for name, w in params.items()}, self.rho)
            away = {name: w * unit[name] for name, w in params.items()}
        else:
            away = step_along(here, self.rho)
        return loss.gradient({name: w + away[name] for name, w in params.items()}, batch)


@dataclass(frozen=True)
class DPFedSAMTopK(DPFedSAM):
    """DP-FedSAM that keeps a share p of the coordinates of each tensor, by magnitude.

    The coordinates are chosen by ``placement``:

    - ``"server"``: of the noisy mean, which is post-processing. The default.
    - ``"shared"``: one mask for all, read from the last release, with noise on kept coordinates.
    - ``"client"``: each client's own, before the bound, with noise on all coordinates.

    Args:
        fraction: p in (0, 1]. Published: 0.4. 1 is DP-FedSAM in every placement.
        placement: as above.
        refresh: with ``"shared"``, the number of rounds between those with all coordinates. 0:
            only the first round has them.
        as_printed: each client picks the coordinates of its own noisy update (Option II), which no
            central guarantee covers. ``placement`` does not matter then.
    Source: as `DPFedSAM`, Option II and Definition 5.
    """

    fraction: float = 0.4
    placement: str = "server"
    refresh: int = 10
    as_printed: bool = field(default=False, kw_only=True, repr=False)
    mask: Mask = field(init=False, repr=False, default=Dense())

    name = "dp-fedsam-topk"
    printed = "each client picks the coordinates of its own noisy update, by its data"

    def __post_init__(self) -> None:
        super().__post_init__()
        put = object.__setattr__
        put(self, "fraction", fraction_kept(self.fraction))
        if self.as_printed:
            put(self, "placement", "printed")
        else:
            one_of("placement", self.placement, "a placement", PLACEMENTS)
        mask = PublicTopK(self.fraction, self.refresh)
        if self.placement == "shared":
            put(self, "mask", mask)

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """Return the client's own largest coordinates, where they are its own."""
        del client_state
        if self.placement != "client":
            return delta
        return keep_largest(delta, Layout.of(context.anchor).sizes, self.fraction)

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the sum of the clients' largest noisy coordinates."""
        return largest_of_each(cohort, self.fraction)

    def post(self, noised: Noised, server_state: State) -> Noised:
        """Return the largest coordinates of the noisy mean."""
        del server_state
        if self.placement != "server":
            return noised
        sizes = noised.layout.sizes
        return noised.map(lambda mean: keep_largest(mean, sizes, self.fraction))
