"""Marker types: bounded updates, and a noised aggregate.

Rule 1: only the engine makes them. Rule 2: `Noised` values are all that a method's ``post`` and
``server`` get, so a raw update cannot reach the released model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout, Params


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bounded:
    """Updates behind their bound: ``rows`` [c, k], one client each. Private, not yet noised."""

    rows: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Noised:
    """The released aggregate of one round. Public: computing with it costs nothing more.

    Attributes:
        vector: noisy sum of the updates / planned cohort size, shape [d], in the dtype of the
            parameters. Coordinates outside the round's mask are zero.
        layout: of the vector.
        std: standard deviation of the noise on each kept coordinate of ``vector`` as it was
            released (`map` does not change it).
        kept: the mask's coordinates, int64 [k], or None for all.
        round: 1, 2, ...
        lr: local learning rate of the round.
        steps: local steps where they are the same for all clients by the plan, else None.
        server_lr: of the run.
        cohort_size: planned number of clients in the round (Poisson: q N), the denominator.
        sampling_rate: planned share of the clients, in (0, 1].
    """

    vector: Tensor
    layout: Layout
    std: float
    kept: Tensor | None
    round: int
    lr: float
    steps: int | None
    server_lr: float
    cohort_size: float
    sampling_rate: float

    @property
    def tensors(self) -> Params:
        """Return the vector in the shapes of the model's tensors (views)."""
        return self.layout.unflatten(self.vector)

    def map(self, change: Callable[[Tensor], Tensor]) -> Noised:
        """Return the aggregate with its whole vector changed, [d] -> [d].

        Raises:
            InvalidParameter: the result has another shape.
        """
        vector = change(self.vector)
        if vector.shape != self.vector.shape:
            rule = f"post-processing keeps the shape {tuple(self.vector.shape)}"
            raise InvalidParameter("post", tuple(vector.shape), rule)
        return replace(self, vector=vector)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Noised:
        """Return the aggregate with each tensor changed, given and returned in its own shape."""
        parts = {name: change(tensor) for name, tensor in self.tensors.items()}
        return self.map(lambda _: self.layout.flatten(parts))


def scatter(values: Tensor, kept: Tensor | None, size: int) -> Tensor:
    """Return [..., size] with ``values`` [..., k] at the coordinates ``kept``, zero elsewhere."""
    if kept is None:
        return values
    return values.new_zeros(*values.shape[:-1], size).index_copy_(-1, kept, values)
