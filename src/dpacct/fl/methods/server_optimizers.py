"""Server optimizers: momentum or Adam on the displacements that a method asks for.

Rule 1: an optimizer uses the model before and after the method's own step, and its own state. All
of it follows from releases, so it costs nothing. Rule 2: its state is public, part of the server's
state under names of its own, and in every checkpoint. Rule 3: clients do not receive it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dpacct.fl.layout import Params, State
from dpacct.fl.local.sgd import adam_direction
from dpacct.validate import above_zero, below_one

# Names of tensors of an optimizer and of an average begin so. Parameters of modules hold no colon.
_PREFIX, _AVERAGE = "server optimizer: ", "average: "


class ServerOptimizer(Protocol):
    """Turns the displacement that a method asks for into the one that is made."""

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
