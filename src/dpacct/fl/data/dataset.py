"""Labeled examples, data sets of them, and the population of clients that holds them.

Rule 1: raw values stay as they are on disk (images as bytes). Only the examples of a sampled
    client are turned into model inputs.
Rule 2: that transformation has public constants. Nothing is estimated from the examples, because
    the mean of private data is a release that no ledger charges.
Rule 3: a client's examples are those of its own part, never another client's.
Rule 4: a data set declares its public parts. Test data and a label set that are read off private
    examples are marked ``unprotected``, wherever they are printed or stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from dpacct import validate
from dpacct.display import html_table
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, LazyClients
from dpacct.fl.data.partitions import Indices, Partition
from dpacct.fl.tensors import from_array

Protection = Literal["public", "unprotected"]


@dataclass(frozen=True, eq=False)
class Scaling:
    """``factor * value + shift`` in float32, along the first dimension of an example.

    Args:
        factor, shift: public constants, shape () for one pair, (c,) for one per channel.
    """

    factor: Tensor
    shift: Tensor

    @classmethod
    def standardized(cls, mean: Sequence[float], std: Sequence[float]) -> Scaling:
        """Bytes in 0..255 to (value / 255 - mean) / std, channel by channel."""
        scale = torch.tensor(std, dtype=torch.float32)
        return cls(1.0 / (255.0 * scale), -torch.tensor(mean, dtype=torch.float32) / scale)

    @classmethod
    def divided_by(cls, largest: float) -> Scaling:
        """Values in 0..largest to 0..1."""
        return cls(torch.tensor(1.0 / largest), torch.tensor(0.0))

    def __call__(self, values: Tensor) -> Tensor:
        """Return the scaled values, shape (n, ...) in and out."""
        shape = (-1,) + (1,) * (values.ndim - 2) if self.factor.ndim else ()
        factor = self.factor.to(values.device).reshape(shape)
        return values.to(torch.float32) * factor + self.shift.to(values.device).reshape(shape)


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, row by row.

    Args:
        inputs: shape (n, ...), n at least 1.
        targets: int64, shape (n,), or (n, length) if every position has a target.
        scaling: from raw inputs to the model's. None leaves them as they are.

    Raises:
        InvalidParameter: no rows, rows that do not pair up, targets of another type.
    """

    inputs: Tensor
    targets: Tensor
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if len(self.targets) == 0 or len(self.inputs) != len(self.targets):
            rule = f"each of the {len(self.inputs)} inputs, at least one, has one target"
            raise InvalidParameter("targets", len(self.targets), rule)
        if self.targets.dtype is not torch.int64:
            raise InvalidParameter("targets", str(self.targets.dtype), "targets are int64")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.inputs.shape[1:])) or "one number"
        return f"<Examples, {len(self):,} of {shape}>"

    def batch(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return model inputs and targets of some rows."""
        inputs = self.inputs[rows]
        return (inputs if self.scaling is None else self.scaling(inputs)), self.targets[rows]

    def select(self, rows: Tensor) -> Examples:
        """Return those rows alone, still raw."""
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows])

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples for training and testing.

    Args:
        name: as on the command line.
        train, test: the examples of the clients, and those that no client trains on.
        num_classes: targets are in 0, ..., num_classes - 1.
        owners: the natural owner of each training example, int64 of shape (n,), or None. The
            number of an owner does not depend on the other owners.
        test_owners: likewise of the test examples, in the same numbers, or None.
        test_data: "public", or "unprotected" if a figure computed on the test examples is a
            release about private examples, which epsilon does not cover.
        validation: test examples that are looked at while a model trains, or None. What is said
            of test data holds for them.
        label_set: "public", or "unprotected" if the classes were read off private examples.

    Raises:
        InvalidParameter: a target out of range, or owners that do not pair up.
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    owners: Indices | None = None
    test_owners: Indices | None = None
    test_data: Protection = "public"
    label_set: Protection = "public"
    validation: Examples | None = None

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            low, high = int(part.targets.min()), int(part.targets.max())
            if low < 0 or high >= self.num_classes:
                rule = f"labels of {self.name} lie in 0..{self.num_classes - 1}"
                raise InvalidParameter("targets", low if low < 0 else high, rule)
        halves = {"owners": (self.owners, self.train), "test_owners": (self.test_owners, self.test)}
        for name, (owners, part) in halves.items():
            if owners is not None and len(owners) != len(part):
                rule = f"each of the {len(part)} examples has one owner"
                raise InvalidParameter(name, len(owners), rule)

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        owners = None if self.owners is None else len({*self.owners.tolist()})
        return html_table([
            ("data set", self.name, f"{self.num_classes} classes, inputs {self.input_shape}"),
            ("train", f"{len(self.train):,}", "" if owners is None else f"of {owners:,} clients"),
            ("test", f"{len(self.test):,}", self.test_data),
        ])  # fmt: skip

    def __repr__(self) -> str:
        return f"<Dataset {self.name!r}: {len(self.train):,} train, {len(self.test):,} test>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def labels(self) -> Indices:
        """Return one label for each training example, shape (n,).

        Raises:
            InvalidParameter: examples have one target per position.
        """
        if self.train.targets.ndim != 1:
            rule = f"examples of {self.name} have no single label"
            raise InvalidParameter("partition", "dirichlet", rule)
        return self.train.targets.numpy()

    def first(self, num_train: int) -> Dataset:
        """Return the same data set with its first ``num_train`` training examples only.

        Raises:
            InvalidParameter: there are fewer, or the data are private: if an owner left, the
                examples of another one would come in.
        """
        if self.owners is not None or self.test_data != "public":
            rule = f"which examples of {self.name} come first depends on the other owners"
            raise InvalidParameter("num_train", num_train, rule, "Cut the file itself.")
        count = validate.count("num_train", num_train, "the number of training examples")
        if count > len(self.train):
            rule = f"{self.name} has {len(self.train)} training examples"
            raise InvalidParameter("num_train", count, rule)
        return replace(self, train=self.train.select(torch.arange(count)))

    def validated(self, share: float, *, seed: int = 0) -> Dataset:
        """Return the same data set with a random share of its test examples for validation.

        Raises:
            InvalidParameter: the share is not in (0, 1), leaves no example on a side, or the data
                set has a validation part of its own.
        """
        noun = "the share of test examples for validation"
        share = validate.positive_probability("validation", share, noun, below_one=True)
        if self.validation is not None:
            rule = f"{self.name} has a validation part of its own, {len(self.validation)} examples"
            raise InvalidParameter("validation", share, rule, "Leave it out.")
        count = round(share * len(self.test))
        if not 0 < count < len(self.test):
            rule = f"there are {len(self.test)} test examples, and each side has at least one"
            raise InvalidParameter("validation", share, rule)
        order = torch.randperm(len(self.test), generator=torch.Generator().manual_seed(seed))
        looked, tested = order[:count], order[count:].sort().values
        owners = None if self.test_owners is None else self.test_owners[tested.numpy()]
        return replace(
            self, test=self.test.select(tested), validation=self.test.select(looked),
            test_owners=owners,
        )  # fmt: skip


class PartitionedClients(LazyClients):
    """The clients of a partition. Each is built when it is asked for, and not kept.

    Args:
        examples: the training examples.
        partition: of exactly those examples.
        device: where the examples lie and the clients are built.

    Raises:
        InvalidParameter: the partition is one of another number of examples.
    """

    def __init__(
        self, examples: Examples, partition: Partition, device: torch.device | str = "cpu"
    ) -> None:
        if len(partition.order) != len(examples):
            rule = f"it covers exactly the {len(examples)} examples"
            raise InvalidParameter("partition", len(partition.order), rule)
        self._examples = examples.to(device)
        self._partition = partition

    def __len__(self) -> int:
        return len(self._partition)

    def client(self, place: int) -> ClientData:
        """Return the client at a place from 0 on."""
        rows = from_array(self._partition[place]).to(self._examples.targets.device)
        return ClientData(*self._examples.batch(rows))

    @property
    def simulated(self) -> bool:
        """True if the clients are simulated, so that no guarantee holds for a real person."""
        return self._partition.simulated

    @property
    def sizes(self) -> Indices:
        """The number of examples of each client, shape (clients,)."""
        return np.asarray(self._partition.sizes)


Column = str | int


class Rows(Protocol):
    """Rows by number: a torch `Dataset`, a Hugging Face `Dataset`, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_columns(
    rows: Rows, inputs: Column, targets: Column, *, scaling: Scaling | None = None
) -> Examples:
    """Return the examples of a data set, all of them in memory.

    ``from_columns(load_dataset("mnist")["train"], "image", "label")`` reads a data set of Hugging
    Face, ``from_columns(torch_dataset, 0, 1)`` one of torch with pairs as rows. Rows are read in
    their order. Nothing is estimated from them.

    Args:
        rows: each a mapping from column names, or a tuple.
        inputs: the column of the inputs: numbers, arrays or tensors of one shape, or images of
            PIL, which become bytes [channels, height, width].
        targets: the column of the targets: whole numbers, or arrays of them.
        scaling: from raw inputs to the model's, such as ``Scaling.divided_by(255)`` for images.

    Raises:
        InvalidParameter: no rows, a row without the column, shapes that differ, or targets that are
            no whole numbers.
    """
    count = len(rows)
    if not count:
        raise InvalidParameter("rows", 0, "there is at least one row")
    parts: dict[str, list[Tensor]] = {"inputs": [], "targets": []}
    for number in range(count):
        row = rows[number]
        for name, column in (("inputs", inputs), ("targets", targets)):
            value = _tensor(name, _cell(name, row, column))
            if parts[name] and value.shape != parts[name][0].shape:
                rule = f"every row has the shape of the first, {tuple(parts[name][0].shape)}"
                hint = "Crop or pad the rows first."
                raise InvalidParameter(name, f"{tuple(value.shape)} in row {number}", rule, hint)
            parts[name].append(value)
    labels = torch.stack(parts["targets"])
    if labels.is_floating_point() or labels.is_complex():
        raise InvalidParameter("targets", str(labels.dtype), "targets are whole numbers")
    return Examples(torch.stack(parts["inputs"]), labels.to(torch.int64), scaling)


def _cell(name: str, row: Any, column: Column) -> Any:
    if isinstance(row, Mapping):
        held = cast("Mapping[Any, Any]", row)
        if column in held:
            return held[column]
        rule = f"a column is one of {', '.join(map(str, held))}"
        raise InvalidParameter(name, column, rule)
    if isinstance(row, tuple | list) and isinstance(column, int):
        cells = cast("Sequence[Any]", row)
        if 0 <= column < len(cells):
            return cells[column]
    rule = "rows are mappings with named columns, or tuples with columns from 0 on"
    raise InvalidParameter(name, column, rule)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        rule = "it holds numbers, arrays of numbers or images"
        hint = "Turn text into numbers first."
        raise InvalidParameter(name, type(value).__name__, rule, hint)
    if hasattr(value, "getbands"):
        # An image of PIL, with channels last if it has several.
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return from_array(np.array(array))
