"""Trainers that leak, one fault each: mistakes found in code that was published as private.

Each could be written against the public protocols (`Bound`, `Noise`, `Method`, `Mask`),
as arguments of `Federation`. `PLANTED` lists them in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpacct import Adjacency, fl
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.bounds import clip_rows, row_norms


@dataclass(frozen=True)
class PerTensorClip:
    """Clips each tensor to the whole norm."""

    clip_norm: float

    def sensitivity(self, adjacency: Adjacency) -> float:
        return fl.Clip(self.clip_norm).sensitivity(adjacency)

    def limits(self, layout: Layout) -> Sequence[tuple[int, int, float]]:
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        for start, stop in layout.segments:
            part = rows[:, start:stop]
            clip_rows(part, row_norms(part), self.clip_norm)
        return rows


@dataclass(frozen=True)
class MedianClip(PerTensorClip):
    """A bound that clips to the median norm of the participants."""

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        return clip_rows(rows, norms, min(float(norms.median()), self.clip_norm))


@dataclass(frozen=True)
class HalfPrecision(PerTensorClip):
    """Clips in half precision, and rounds past the norm."""

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        return clip_rows(rows.half(), norms.half(), self.clip_norm * 1.02).to(rows.dtype)


@dataclass(frozen=True)
class Understated(PerTensorClip):
    """A bound that states half of the true sensitivity."""

    def sensitivity(self, adjacency: Adjacency) -> float:
        return super().sensitivity(adjacency) / 2

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        return clip_rows(rows, norms, self.clip_norm)


class DividedTwice(fl.GaussianNoise):
    """Divides the noise by two on its way."""

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        return super().add(total, limits, std / 2, source)


class Participants(fl.GaussianNoise):
    """Noise in shares of the participants. It is missing if few participate."""

    def encode(self, rows: Tensor, limits: Any, std: float) -> Tensor:
        return rows + std / 40**0.5 * torch.randn(rows.shape)

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        return total


class SameGenerator(fl.GaussianNoise):
    """Noise with a generator that restarts in each round."""

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return total + std * torch.randn(len(total), generator=generator)


class Laplacian(fl.GaussianNoise):
    """Noise of the right spread, and of another law."""

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        return total + torch.distributions.Laplace(0.0, std / 2**0.5).sample(total.shape)


class CountsMore(fl.GaussianNoise):
    """A sum that holds each contribution one and a half times."""

    def encode(self, rows: Tensor, limits: Any, std: float) -> Tensor:
        return 1.5 * super().encode(rows, limits, std)


class NoNoise(fl.GaussianNoise):
    """None."""

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        return total


@dataclass(frozen=True)
class NoiseBeforeClip(fl.Method):
    """Each client adds noise to its update, which is clipped afterwards, noise and all."""

    def local_update(self, delta: Tensor, client_state: Any, context: fl.Context) -> Tensor:
        return delta + torch.randn(delta.shape)


@dataclass(frozen=True)
class OwnTopK(NoiseBeforeClip):
    """Each client keeps the largest coordinates of its own noisy update."""

    def local_update(self, delta: Tensor, client_state: Any, context: fl.Context) -> Tensor:
        noisy = super().local_update(delta, client_state, context)
        least = noisy.abs().topk(max(1, len(noisy) // 10)).values.min()
        return torch.where(noisy.abs() >= least, noisy, 0.0)


@dataclass(frozen=True)
class RawMomentum(fl.Method):
    """Keeps momentum of the updates before noise."""

    aside: list[Tensor] = field(default_factory=list[Tensor])

    def local_update(self, delta: Tensor, client_state: Any, context: fl.Context) -> Tensor:
        self.aside.append(delta.clone())
        return delta

    def server(self, params: Any, noised: Any, server_state: Any) -> Any:
        moved, _ = super().server(params, noised, server_state)
        return moved, {"momentum": self.aside[-1]}


@dataclass(frozen=True)
class RealizedDenominator(fl.Method):
    """Divides by how many came, and not by the planned cohort."""

    came: list[int] = field(default_factory=list[int])

    def local_update(self, delta: Tensor, client_state: Any, context: fl.Context) -> Tensor:
        self.came.append(1)
        return delta

    def post(self, noised: Any, server_state: Any) -> Any:
        came = len(self.came)
        self.came.clear()

        def spread(vector: Tensor) -> Tensor:
            return vector * noised.cohort_size / max(came, 1)

        return noised.map(spread)


@dataclass(frozen=True)
class NoisyMemory(fl.Method):
    """A client's memory holds noise of its own, which its next update takes back."""

    def init_client(self, params: Any) -> Any:
        return {"v": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta: Tensor, client_state: Any, context: fl.Context) -> Tensor:
        own = torch.Generator()
        own.seed()
        return delta + client_state["v"] + 0.1 * torch.randn(delta.shape, generator=own)

    def client_state(self, client_state: Any, bounded: Tensor, context: fl.Context) -> Any:
        return {"v": bounded.clone()}


class Counting(nn.Module):
    """A layer that keeps the mean of its inputs, in a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(20), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * inputs.mean(dim=0))
        return inputs - self.mean


def plain_model(*first: nn.Module) -> nn.Module:
    """Return a small classifier, perhaps behind another layer."""
    return nn.Sequential(*first, nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 4))


class Fault(NamedTuple):
    """A fault: its name on the page, the arguments that bring it in, the model that is trained."""

    name: str
    options: dict[str, Any]
    model: Callable[[], nn.Module] = plain_model


PLANTED = (
    Fault("clipped tensor by tensor", {"clip_norm": None, "bound": PerTensorClip(0.5)}),
    Fault("clipped to the cohort's median", {"clip_norm": None, "bound": MedianClip(0.5)}),
    Fault("clipped in half precision", {"clip_norm": None, "bound": HalfPrecision(0.5)}),
    Fault("sensitivity said to be half", {"clip_norm": None, "bound": Understated(0.5)}),
    Fault("noise divided twice", {"noise": DividedTwice()}),
    Fault("noise of the participants only", {"noise": Participants()}),
    Fault("generator reused in each round", {"noise": SameGenerator()}),
    Fault("Laplace noise", {"noise": Laplacian()}),
    Fault("contributions counted 1.5 times", {"noise": CountsMore()}),
    Fault("noise before the clip", {"method": NoiseBeforeClip(), "noise": NoNoise()}),
    Fault("top-k of each client's noisy update", {"method": OwnTopK(), "noise": NoNoise()}),
    Fault("momentum of updates without noise", {"method": RawMomentum()}),
    Fault("realized denominator", {"method": RealizedDenominator()}),
    Fault("noise hidden in memories", {"method": NoisyMemory()}),
    Fault("seeded cohorts and noise", {"seed": 3}),
    Fault("batch norm", {}, lambda: plain_model(nn.BatchNorm1d(20))),
    Fault("a mean kept in a frozen parameter", {}, lambda: plain_model(Counting())),
)
