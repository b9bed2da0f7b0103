"""Functions of released, noisy tensors, server optimizers and averages. None changes epsilon.

Laplacian smoothing is the inverse of a circulant matrix, applied by FFT. A_s = I + s L with L the
Laplacian of the cycle graph on d nodes. A_s^{-1} v minimizes |u - v|^2 + s |grad u|^2 over u, the
gradient being the periodic difference.

Estimators take the standard deviation of the noise on their own argument. On a mean of m that is
z C / m, not z C.

Averages of the released iterates often beat the last, noisiest one. Training goes on from the
iterates themselves. A server optimizer turns the displacement that a method asks for into the one
that is made. Rule 1: both use the released models and their own state alone. Rule 2: their state is
public, part of the server's state under names of its own, and in every checkpoint. Rule 3: clients
do not receive it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Params, State
from dpacct.fl.local.sgd import adam_direction
from dpacct.fl.privacy.masks import kept
from dpacct.fl.tensors import norm
from dpacct.validate import above_zero, below_one

__all__ = [
    "DENOISERS", "Adam", "Average", "Momentum", "ServerOptimizer", "james_stein", "keep_largest",
    "noise_gain", "smooth", "soft_threshold",
]  # fmt: skip

AXES = "OIHW"


def smooth(values: Tensor, strength: float, order: str = AXES) -> Tensor:
    """Return A_s^{-1} v for a tensor of any shape, flattened in a chosen order.

    The eigenvalue for the Fourier vector k is 1 + 4 s sin^2(pi k / d), which is
    1 + 2 s (1 - cos(2 pi k / d)) without its cancellation. The mean is preserved. The norm never
    increases.

    Args:
        values: of any shape, d numbers.
        strength: s, at least 0. 0 is the identity.
        order: the order in which axes are flattened, the last one running fastest. ``"OIHW"`` is
            that of the memory of a convolution's kernel [out, in, height, width]. A tensor with
            fewer axes uses those of the letters that it has, one with more its own order.
    Error:
        Relative to |v|: that of a float64 FFT, about 1e-16 log2(d) (a float32 one on devices
        without float64), and the rounding to the dtype of ``values``.
    Source: Osher et al. 2018, arXiv:1806.06317, and docs/derivations/methods.md.
    """
    strength, order = check_strength(strength), check_order(order)
    size = values.numel()
    if strength == 0 or size < 2:
        return values
    axes = [AXES.index(letter) for letter in order if AXES.index(letter) < values.ndim]
    if len(axes) < values.ndim:
        axes = list(range(values.ndim))
    turned = values.permute(axes)
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    flat = turned.flatten().to(dtype)
    wave = torch.arange(size // 2 + 1, dtype=dtype, device=values.device)
    eigenvalues = 1 + 4 * strength * torch.sin(wave * (math.pi / size)).square()
    fft = cast("Any", torch.fft)
    smoothed = cast("Tensor", fft.irfft(fft.rfft(flat) / eigenvalues, n=size))
    back = [axes.index(axis) for axis in range(values.ndim)]
    return smoothed.to(values.dtype).reshape(turned.shape).permute(back)


def noise_gain(size: int, strength: float) -> float:
    """Return the trace of A_s^{-2} / d, the variance of smoothed unit noise, per coordinate.

    For large d it is (1 + 2 s) / (1 + 4 s)^(3/2).
    """
    wave = torch.arange(size, dtype=torch.float64)
    sines = torch.sin(wave * (math.pi / size)).square()
    return float((1 + 4 * check_strength(strength) * sines).pow(-2).mean())


def check_strength(value: object) -> float:
    """Check a smoothing strength."""
    return validate.at_least_zero("smoothing", value, "the strength of smoothing")


def check_order(value: object) -> str:
    """Check an order of axes: a permutation of OIHW."""
    if not isinstance(value, str) or sorted(value) != sorted(AXES):
        rule = f"an order of flattening is a permutation of {AXES}, such as OWHI"
        raise InvalidParameter("order", value, rule)
    return value


def james_stein(values: Tensor, noise_std: float, *, positive_part: bool = False) -> Tensor:
    """Return (1 - (d - 2) s^2 / |v|^2) v, or v for d < 3 and for |v| <= 1e-140 s.

    Args:
        values: v, of any shape, d numbers.
        noise_std: s on each of them.
        positive_part: replace a negative factor by 0, which never makes the risk larger.
    Error: that of the dtype of ``values``. The norm is taken in float64.
    Source: James and Stein 1961. For releases Balle and Wang 2018, arXiv:1805.06530.
    """
    size = values.numel()
    if size < 3:
        return values
    length = float(norm(values.double() if values.device.type != "mps" else values))
    if length <= 1e-140 * noise_std:  # The formula ends in infinities.
        return values
    factor = 1 - (size - 2) * (noise_std / length) ** 2
    return values * (max(factor, 0.0) if positive_part else factor)


def soft_threshold(values: Tensor, noise_std: float) -> Tensor:
    """Return sign(v_j) max(|v_j| - s sqrt(2 ln d), 0).

    Args:
        values: v, of any shape, d numbers (d = 1: threshold 0).
        noise_std: s on each of them.
    Source: Donoho 1995. For releases Balle and Wang 2018, arXiv:1805.06530.
    """
    threshold = noise_std * math.sqrt(2 * math.log(max(values.numel(), 1)))
    return torch.sign(values) * (values.abs() - threshold).clamp(min=0)


def keep_largest(vector: Tensor, sizes: Sequence[int], fraction: float) -> Tensor:
    """Set all but the ceil(p d_l) largest coordinates of each part of a vector to zero.

    Of equal coordinates as many as fit are kept, never more than ceil(p d_l). May run under vmap.

    Args:
        vector: [d], the parts one behind the other.
        sizes: d_l of each part. fraction: p in (0, 1]. 1 is the identity.
    Source: top-k by layer as in DP-FedSAM, Definition 5.
    """
    if fraction == 1:
        return vector
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        part = vector[..., start : start + size]
        places = part.abs().topk(kept(size, fraction), dim=-1).indices
        chosen = torch.zeros_like(part).scatter(-1, places, torch.ones_like(part))
        parts.append(torch.where(chosen > 0, part, 0.0))
        start += size
    return torch.cat(parts, dim=-1)


def top_k(values: Tensor, noise_std: float, fraction: float = 0.4) -> Tensor:
    """Return `keep_largest` of one noisy tensor. The noise level is not used."""
    del noise_std
    return keep_largest(values.flatten(), [values.numel()], fraction).view_as(values)


# Public functions of one released tensor, and of the noise on each of its coordinates.
DENOISERS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "laplacian": lambda values, _: smooth(values, 1.0),
    "james-stein": james_stein,
    "james-stein-plus": partial(james_stein, positive_part=True),
    "soft-threshold": soft_threshold,
    "top-k": top_k,
}


# The number of rounds in an exponential average. Names of parameters hold no colon.
_COUNT = "count:"


@dataclass(frozen=True, slots=True)
class Average:
    """The exponential average sum_s b^{t-s} x_s / sum_s b^{t-s} of the released x_1, ..., x_t.

    Args:
        decay: b, in [0, 1).

    Source: De et al. 2022, arXiv:2204.13650, section 3.
    """

    decay: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", validate.below_one("decay", self.decay, "a decay"))

    def step(self, params: Params, state: State) -> State:
        """Return the next state with the parameters x_t of one more round. The first is empty."""
        count = state.get(_COUNT, torch.zeros((), dtype=torch.float64)) + 1
        weight = (1 - self.decay) / (1 - self.decay ** float(count))
        moved = {n: state[n].lerp(v, weight) if state else v for n, v in params.items()}
        return {_COUNT: count, **moved}

    def value(self, state: State) -> Params:
        """Return the average of a state."""
        return {name: value for name, value in state.items() if name != _COUNT}


# Names of tensors of an optimizer and of an average begin so. Parameters of modules hold no colon.
_PREFIX, _AVERAGE = "server optimizer: ", "average: "


class ServerOptimizer(Protocol):
    """An optimizer of the server: it turns a method's displacement of the model into a step."""

    def step(self, moves: Params, state: State) -> tuple[Params, State]:
        """Return the displacement of the model, and the next state.

        Args:
            moves: the method's displacement of each tensor of the model.
            state: of the optimizer, or empty before the first round.
        """
        ...


@dataclass(frozen=True, slots=True)
class Momentum:
    """Momentum: v <- beta v + move. The model moves by v (by move + beta v with ``nesterov``).

    Args:
        beta: in [0, 1). nesterov: look ahead, as in `torch.optim.SGD`.
    Source: FedAvgM, Hsu, Qi, Brown 2019, arXiv:1909.06335.
    """

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", below_one("beta", self.beta, "a decay"))

    def step(self, moves: Params, state: State) -> tuple[Params, State]:
        """See `ServerOptimizer`."""
        after = {n: self.beta * state[n] + v if n in state else v for n, v in moves.items()}
        if not self.nesterov:
            return after, after
        return {n: v + self.beta * after[n] for n, v in moves.items()}, after


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam, with minus the displacement as the gradient.

    ::

        m <- beta1 m + (1 - beta1) move,  v <- beta2 v + (1 - beta2) move^2
        the model moves by lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + floor)

    The scale of the updates, and with it the run's ``server_lr``, only matters against ``floor``.

    Args:
        lr: above 0. beta1, beta2: in [0, 1). floor: above 0. Published: 1e-3 for means of updates.
    Source: Kingma, Ba 2015, arXiv:1412.6980. FedAdam of Reddi et al. 2021, arXiv:2003.00295, with
        the corrections 1 - beta^t, which that leaves out.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "lr", above_zero("lr", self.lr, "the server's learning rate"))
        put(self, "beta1", below_one("beta1", self.beta1, "a decay"))
        put(self, "beta2", below_one("beta2", self.beta2, "a decay"))
        put(self, "floor", above_zero("floor", self.floor, "the floor of the denominator"))

    def step(self, moves: Params, state: State) -> tuple[Params, State]:
        """See `ServerOptimizer`."""
        direction, after = adam_direction(moves, state, self.beta1, self.beta2, self.floor)
        return {name: self.lr * value for name, value in direction.items()}, after


class ServerState(NamedTuple):
    """The public state of a server, by what it belongs to."""

    method: State
    optimizer: State
    average: State

    @classmethod
    def of(cls, tensors: State) -> ServerState:
        """Split the tensors by the beginning of their names."""
        own = [
            {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}
            for start in (_PREFIX, _AVERAGE)
        ]
        method = {n: v for n, v in tensors.items() if not n.startswith((_PREFIX, _AVERAGE))}
        return cls(method, *own)

    def together(self) -> State:
        """Return all tensors by name, the inverse of `of`."""
        optimizer = {f"{_PREFIX}{name}": value for name, value in self.optimizer.items()}
        average = {f"{_AVERAGE}{name}": value for name, value in self.average.items()}
        return self.method | optimizer | average
