"""Examples of any data set with rows: of Hugging Face, of torch, or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Examples, Scaling
from dpacct.fl.tensors import from_array

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
