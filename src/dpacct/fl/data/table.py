"""Tables: a CSV file with a header, a column of labels, and features in the others.

Rule 1: what turns a cell into a number is public: ranges and categories are declared, never
collected from the rows. A table without declarations holds numbers, which are used as they are.
Rule 2: the names of the classes are public, too; where they are not declared they are those that
occur.
Rule 3: every cell is checked, and a refusal names row and column.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Dataset, Examples, tensor_of
from dpacct.fl.data.files import read_text
from dpacct.fl.data.partitions import Indices

SPLIT_COLUMN = "split"
_SPLITS = ("train", "test")
_Convert = Callable[[str], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """What the columns mean.

    Args:
        label: the column of labels.
        owner: the column that says who a row belongs to; None where nobody does by nature.
        numeric: columns of numbers and their public range; values become 0..1, those outside
            the range its ends.
        categorical: columns of words and their public categories; values become one column of
            zeros and ones for each category, all zeros for any other word.
        classes: the labels in their order; empty for those that occur, sorted.
        unused: columns that are left out.
        test_share: the part of the rows that is tested on, where no column ``split`` says
            ``train`` or ``test``.
        seed: public, for that part.

    Raises:
        InvalidParameter: an empty range or category list, a share outside (0, 1).
    """

    label: str = "label"
    owner: str | None = None
    numeric: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    categorical: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    classes: Sequence[str] = ()
    unused: Sequence[str] = ()
    test_share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for column, (low, high) in self.numeric.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                rule = f"the range of column {column} is [low, high] with low < high"
                raise InvalidParameter("numeric", f"[{low}, {high}]", rule)
        for column, words in self.categorical.items():
            if not words or len(set(words)) != len(words):
                rule = f"the categories of column {column} are different words, at least one"
                raise InvalidParameter("categorical", list(words), rule)
        if len(set(self.classes)) != len(self.classes):
            raise InvalidParameter("classes", list(self.classes), "classes differ from each other")
        rule = "the share for testing lies in (0, 1)"
        share = validate.real("test_share", self.test_share, rule)
        if not 0.0 < share < 1.0:
            raise InvalidParameter("test_share", self.test_share, rule)


def load_table(path: str | os.PathLike[str], schema: TableSchema | None = None) -> Dataset:
    """The rows of a CSV file as float32 vectors; owners are those of the owner column.

    Raises:
        InvalidParameter: the file is missing or damaged, a column is, or a cell is no number.
    """
    file, meaning = Path(path), schema or TableSchema()
    header, rows = _read_rows(file)
    known = [meaning.label, *meaning.numeric, *meaning.categorical, *meaning.unused]
    for column in known if meaning.owner is None else [*known, meaning.owner]:
        if column not in header:
            rule = f"it has no column {column}; its columns are {', '.join(header)}"
            raise invalid(file, rule)
    labels, classes = _labels(file, header, rows, meaning)
    inputs = tensor_of(_features(file, header, rows, meaning))
    targets = tensor_of(labels)
    tested = _test_rows(file, header, rows, meaning)
    owners: Indices | None = None
    test_owners: Indices | None = None
    if meaning.owner is not None:
        at = header.index(meaning.owner)
        _, which = np.unique([row[at] for row in rows], return_inverse=True)
        owners, test_owners = (which.astype(np.int64)[part] for part in (~tested, tested))
    train, test = (
        Examples(inputs[chosen], targets[chosen])
        for chosen in (tensor_of(~tested), tensor_of(tested))
    )
    return Dataset(file.stem, train, test, len(classes), owners, test_owners)


def invalid(file: Path, rule: str, hint: str = "") -> InvalidParameter:
    """The refusal of a table, which is named by itself, not by its folder."""
    return InvalidParameter("data", str(file), rule, hint)


def _read_rows(file: Path) -> tuple[list[str], list[list[str]]]:
    if not file.is_file():
        raise invalid(file, "it does not exist")
    try:
        lines = list(csv.reader(io.StringIO(read_text(file)), strict=True))
    except csv.Error as error:
        raise invalid(file, f"it is not valid CSV ({error})") from None
    filled = [[cell.strip() for cell in line] for line in lines if line]
    if len(filled) < 3:
        raise invalid(file, "a table has a header and at least two rows")
    header, rows = filled[0], filled[1:]
    if len(set(header)) != len(header):
        raise invalid(file, "its header names a column twice")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            rule = f"row {number} has {len(row)} cells, and the header {len(header)}"
            raise invalid(file, rule)
    return header, rows


def _labels(
    file: Path, header: list[str], rows: list[list[str]], meaning: TableSchema
) -> tuple[Indices, list[str]]:
    at = header.index(meaning.label)
    words = [row[at] for row in rows]
    classes = list(meaning.classes) or sorted(set(words), key=_by_number)
    if len(classes) < 2:
        raise invalid(file, f"column {meaning.label} has the same label in every row")
    places = {word: place for place, word in enumerate(classes)}
    for number, word in enumerate(words, start=1):
        if word not in places:
            rule = f"labels are {', '.join(classes)}, and row {number} has {word!r}"
            raise invalid(file, rule)
    return np.array([places[word] for word in words], np.int64), classes


def _by_number(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


def _features(
    file: Path, header: list[str], rows: list[list[str]], meaning: TableSchema
) -> NDArray[np.float32]:
    declared = bool(meaning.numeric or meaning.categorical)
    not_features = {meaning.label, meaning.owner, SPLIT_COLUMN, *meaning.unused}
    columns: list[NDArray[np.float32]] = []
    for at, column in enumerate(header):
        if column in not_features:
            continue
        convert: _Convert
        if column in meaning.numeric:
            convert = _scaled(*meaning.numeric[column])
        elif column in meaning.categorical:
            convert = _one_hot(meaning.categorical[column])
        elif declared:
            rule = f"column {column} is declared neither as numeric, categorical nor unused"
            raise invalid(file, rule)
        else:
            convert = _plain
        columns.append(_column(file, column, [row[at] for row in rows], convert))
    if not columns:
        raise invalid(file, "a table has at least one column of features")
    return np.concatenate(columns, axis=1)


def _column(file: Path, column: str, cells: list[str], convert: _Convert) -> NDArray[np.float32]:
    values: list[Sequence[float]] = []
    for number, cell in enumerate(cells, start=1):
        try:
            values.append(convert(cell))
        except ValueError:
            hint = "Columns of words are declared with their categories."
            rule = f"column {column} holds finite numbers, and row {number} has {cell!r}"
            raise invalid(file, rule, hint) from None
    return np.array(values, np.float32)


def _plain(cell: str) -> Sequence[float]:
    value = float(cell)
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError(cell)
    return (value,)


def _scaled(low: float, high: float) -> _Convert:
    def convert(cell: str) -> Sequence[float]:
        value = float(cell)
        if math.isnan(value):
            raise ValueError(cell)
        return ((min(max(value, low), high) - low) / (high - low),)

    return convert


def _one_hot(words: Sequence[str]) -> _Convert:
    rows = {word: [float(word == other) for other in words] for word in words}
    nothing = [0.0] * len(words)
    return lambda cell: rows.get(cell, nothing)


def _test_rows(
    file: Path, header: list[str], rows: list[list[str]], meaning: TableSchema
) -> NDArray[np.bool_]:
    if SPLIT_COLUMN in header:
        at = header.index(SPLIT_COLUMN)
        for number, row in enumerate(rows, start=1):
            if row[at] not in _SPLITS:
                rule = f"column {SPLIT_COLUMN} says train or test, and row {number} {row[at]!r}"
                raise invalid(file, rule)
        tested = np.array([row[at] == "test" for row in rows])
    else:
        order = np.random.default_rng(meaning.seed).permutation(len(rows))
        tested = order < max(1, round(meaning.test_share * len(rows)))
    if tested.all() or not tested.any():
        raise invalid(file, "it has rows to train on and rows to test on")
    return tested
