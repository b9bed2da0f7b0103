"""Single examples as the population: the privacy unit is an example, not its owner.

Rule 1: two data sets are neighbors if they differ by one example. An owner of ten examples is
protected ten times less. If people hold several examples, clients are the unit to protect.
Rule 2: an example is read by its own number, never through the examples of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, overload

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData
from dpacct.fl.tensors import one_thread
from dpacct.ledger.terms import EXAMPLE


class Batched(Protocol):
    """Examples that are read many at a time, as `dpacct.fl.data.Examples` are."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [n, ...] and targets [n, ...] of some rows, int64 [n]."""
        ...


class Examples(Sequence[ClientData]):
    """A population of examples, for a model that is trained in one place (DP-SGD).

    ``Federation(model, loss, fl.Examples(data), ...)`` then samples examples, bounds the gradient
    of each example, and charges a ledger with the unit "example".

    Args:
        data: inputs (then ``targets`` are given), a `ClientData`, a
            `torch.utils.data.TensorDataset` of two tensors, or an object with ``len`` and
            ``batch(rows)`` like `Batched`. Another data set of pairs is read whole.
        targets: [n, ...] if ``data`` are the inputs [n, ...].
        unit: one example in words: "example", or "patient" if each row is one.

    Raises:
        InvalidParameter: no examples, or another kind of data.
    """

    def __init__(self, data: Any, targets: Tensor | None = None, *, unit: str = EXAMPLE) -> None:
        self.unit = validate.line("unit", unit, "a unit of privacy")
        self._source = _source(data, targets)
        if not len(self._source):
            raise InvalidParameter("data", 0, "there is at least one example")

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, place: int) -> ClientData: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, place: int | slice) -> ClientData | Sequence[ClientData]:
        """Return one example, or a list of single examples."""
        if isinstance(place, slice):
            return [self[row] for row in range(*place.indices(len(self)))]
        row = place + len(self) if place < 0 else place
        if not 0 <= row < len(self):
            raise IndexError(place)
        return self.batch([row])

    def batch(self, rows: Sequence[int]) -> ClientData:
        """Return some examples together, in the order of ``rows``."""
        return ClientData(*self._source.batch(torch.tensor(rows, dtype=torch.int64)))

    def planted(self, row: int) -> Tensor | None:
        """Return the update [d] of an audit's canary, or None for all other examples.

        It takes the place of the trained update, and is masked and bounded like any other.
        """
        del row
        return None


class _Tensors:
    """Inputs and targets in memory."""

    def __init__(self, data: ClientData) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._data.inputs, self._data.targets
        # Torch's other threads, once woken up, would wait for work during the steps that follow.
        with one_thread(inputs.device):
            return (
                inputs.index_select(0, rows.to(inputs.device)),
                targets.index_select(0, rows.to(targets.device)),
            )


def _source(data: Any, targets: Tensor | None) -> Batched:
    if targets is not None:
        return _Tensors(ClientData(data, targets))
    if isinstance(data, ClientData):
        return _Tensors(data)
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple):
        pair = cast("tuple[Any, ...]", tensors)
        if len(pair) != 2:
            rule = "an example is a pair of input and target"
            raise InvalidParameter("data", f"{len(pair)} tensors", rule)
        return _Tensors(ClientData(*pair))
    if isinstance(data, Tensor):
        raise InvalidParameter("targets", None, "inputs come with their targets")
    if callable(getattr(data, "batch", None)) and hasattr(data, "__len__"):
        return cast("Batched", data)
    mapping_or_class = hasattr(data, "keys") or callable(data)
    if mapping_or_class or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        rule = "examples are two tensors, or a data set that can be read by number"
        raise InvalidParameter("data", type(data).__name__, rule)
    return _Tensors(_stacked(data))


def _stacked(data: Any) -> ClientData:
    """Return all pairs of a data set, in memory."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for row in range(len(data)):
        pair = data[row]
        if not isinstance(pair, tuple | list) or len(cast("Sequence[Any]", pair)) != 2:
            rule = "each example is a pair of input and target"
            raise InvalidParameter("data", f"example {row}", rule)
        value, target = cast("Sequence[Any]", pair)
        pairs.append((torch.as_tensor(value), torch.as_tensor(target)))
        if any(a.shape != b.shape for a, b in zip(pairs[0], pairs[-1], strict=True)):
            rule = "all examples have the shapes of the first one. Pad them to a public length"
            raise InvalidParameter("data", f"example {row}", rule)
    if not pairs:
        raise InvalidParameter("data", 0, "there is at least one example")
    inputs, targets = zip(*pairs, strict=True)
    return ClientData(torch.stack(inputs), torch.stack(targets))
