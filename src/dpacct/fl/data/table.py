"""Read your own examples: a CSV table, arrays in an .npz file, or a folder of images.

Rule 1: numbers are made of cells by public rules: ranges and categories are declared, never
    collected from the rows. A table without declarations holds numbers, which are used as they are.
Rule 2: classes are declared, or the data set declares its label set unprotected.
Rule 3: training and test rows are chosen by the owner (`assign_owners`), or declared row by row.
    Either way no row depends on another owner's rows.
Rule 4: every cell is checked, and an error names row and column.
Rule 5: nothing in a file is executed, so pickles are not read.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data.dataset import Dataset, Examples, Scaling
from dpacct.fl.data.files import Folder, find, invalid, read_archive
from dpacct.fl.data.hugging_face import FORMATS, is_saved, read_saved
from dpacct.fl.data.partitions import Indices, assign_owners, canonical
from dpacct.fl.tensors import from_array
from dpacct.packages import import_package, install_command

SPLIT_COLUMN = "split"
_SPLITS = ("train", "test")
# The array of examples in an .npz file.
_INPUTS = "inputs"
# Usual marks of a missing value.
_MISSING = ("", "?", "na", "n/a", "nan", "none", "null")
_DELIMITERS = ",;\t|"
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
# Errors name the file, not its folder.
_invalid = partial(invalid, name="data")
_HINT = "Declare a column of words with its categories (--schema)."
_GAP = "Declare under missing what an empty cell counts as (--schema)."
# A whole number beyond this may be rounded in float32.
_EXACT_BELOW = 2**24

Cells = NDArray[np.str_]


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """The meaning of the columns.

    Args:
        label: the column (of an .npz file, the array) of labels.
        owner: the column with the person a row belongs to, which is a client. None if every row
            is its own owner.
        numeric: columns of numbers and their public range. Values become 0..1, those outside
            the range its ends.
        missing: numeric columns with empty cells, and the public value of their range that an empty
            cell counts as. Each gets a second column, 1 where a cell is empty. A constant, never
            the mean of the rows, which would be a release.
        categorical: columns of words and their public categories. Values become one column of
            zeros and ones for each category, all zeros for any other word.
        classes: the labels in their order, public. Empty takes those that occur, sorted. Then the
            label set is read off private rows and marked as unprotected.
        unused: columns that are left out.
        columns: of a saved data set of Hugging Face, one of numbers or images, or one or two of
            text. length: tokens of a text, at most 512.
        test_share: the probability with which an owner is test data, if there is no column
            ``split`` with ``train`` or ``test``.
        seed: public, for that choice.

    Raises:
        InvalidParameter: an empty range or category list, a share outside (0, 1).
    """

    label: str = "label"
    owner: str | None = None
    numeric: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    missing: Mapping[str, float] = field(default_factory=dict[str, float])
    categorical: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    classes: Sequence[str] = ()
    unused: Sequence[str] = ()
    columns: Sequence[str] = ()
    length: int = 128
    test_share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("numeric", "missing", "categorical"):
            if not isinstance(table := getattr(self, name), Mapping):
                raise InvalidParameter(name, table, "it is a table from column to values")
        for column, ends in self.numeric.items():
            rule = f"the range of column {column} is [low, high] with low < high"
            edges = [
                validate.real("numeric", v, rule) for v in validate.several("numeric", ends, rule)
            ]
            if len(edges) != 2 or not edges[0] < edges[1]:
                raise InvalidParameter("numeric", [*ends], rule)
        for column, value in self.missing.items():
            low, high = self.numeric.get(column, (math.nan, math.nan))
            rule = f"column {column} is numeric, and the value of an empty cell is in its range"
            validate.real("missing", value, rule, lambda number: low <= number <= high)  # noqa: B023
        for column, words in self.categorical.items():
            listed = _words("categorical", words)
            if not listed or len({*listed}) != len(listed):
                rule = f"the categories of column {column} are different words, at least one"
                raise InvalidParameter("categorical", list(words), rule)
        named = {"label": [self.label], "owner": [] if self.owner is None else [self.owner]}
        for name, names in {**named, "unused": self.unused, "columns": self.columns}.items():
            _words(name, names)
        different = len({canonical(word) for word in _words("classes", self.classes)})
        if different != len(self.classes) or different == 1:
            rule = "there are at least two classes, which differ from each other"
            raise InvalidParameter("classes", list(self.classes), rule)
        noun = "the share for testing"
        validate.positive_probability("test_share", self.test_share, noun, below_one=True)


def _words(name: str, values: object) -> list[str]:
    """Return several words as text, which may be numbers."""
    listed = validate.several(name, values, "words")
    for word in listed:
        if isinstance(word, Sequence | Mapping) and not isinstance(word, str):
            raise InvalidParameter(name, str(values), "each is a word or a number")
    return [str(word) for word in listed]


class _RawTable(NamedTuple):
    """A file's rows, before labels and split are judged.

    ``inputs`` have shape (n, ...). ``labels`` and ``split`` (``train`` or ``test``, None if it is
    not declared) are unchanged. ``names`` are those of the owners or of the rows themselves, and
    ``scaling`` belongs to inputs that stay bytes.
    """

    inputs: NDArray[Any]
    labels: Cells
    names: list[str]
    split: Cells | None
    scaling: Scaling | None = None


def load_table(path: str | os.PathLike[str], schema: TableSchema | None = None) -> Dataset:
    """Read your own labeled examples from a file or folder.

    - ``FILE.csv``: float32 vectors. Cells are separated by commas, semicolons, tabs or bars,
      whichever the header has. With semicolons a number may have a decimal comma.
    - ``FILE.npz``: arrays ``inputs`` (uint8 images, scaled to 0..1, or floats, [n, ...]), ``label``
      [n], ``split`` [n], and by the schema an owner's name [n].
    - a folder with a subfolder of images for each class, all of one size. Each
      image is its own owner, named by its path. ``train/CLASS`` and ``test/CLASS`` declare a split.
    - a folder that Hugging Face `datasets` has saved (`dpacct.fl.data.hugging_face`).

    Returns:
        The data set. Its owners are hashes of the names of owners, if there are any. Its test data
        are unprotected, because they are rows of the same private table.
    Raises:
        InvalidParameter: the file is missing or damaged, a column is, or a cell has no value.
        Unsupported: pandas (for CSV) or Pillow (for images) is not installed.
    """
    file, meaning = Path(path), schema or TableSchema()
    if not file.exists():
        raise _invalid(file, "it does not exist")
    read = _npz_rows if file.suffix == ".npz" else _csv_rows
    if file.is_dir():
        read = _saved_rows if is_saved(file) else _folder_rows
    rows = read(file, meaning)
    labels, num_classes = _labels(file, rows.labels, meaning)
    owners, tested = assign_owners(rows.names, meaning.test_share, seed=meaning.seed)
    if rows.split is not None:
        tested = rows.split == "test"
        rule = f"column {SPLIT_COLUMN} says train or test"
        _check_rows(file, ~np.isin(rows.split, _SPLITS), rows.split, rule)
    if tested.all() or not tested.any():
        rule = "a table needs rows to train on and rows to test on"
        raise _invalid(file, rule, "Declare the split in a column, or take a larger table.")
    train, test = (
        Examples(from_array(rows.inputs[chosen]), from_array(labels[chosen]), rows.scaling)
        for chosen in (~tested, tested)
    )
    named = meaning.owner is not None
    return Dataset(
        file.stem,
        train,
        test,
        num_classes,
        owners[~tested] if named else None,
        owners[tested] if named else None,
        test_data="unprotected",
        label_set="public" if meaning.classes else "unprotected",
    )


def _csv_rows(file: Path, meaning: TableSchema) -> _RawTable:
    table = read_cells(file)
    known = [*meaning.numeric, *meaning.categorical, *meaning.unused, meaning.owner]
    for column in (meaning.label, *known):
        if column is not None and column not in table:
            hint = "--label names the column of labels." if column == meaning.label else ""
            rule = f"it has no column {column}. Its columns are {', '.join(table)}"
            raise _invalid(file, rule, hint)
    if meaning.owner is None:
        # Every row is its own owner, named by its content.
        names = ["\x1f".join(row) for row in zip(*table.values(), strict=True)]
    else:
        names = _owner_names(file, meaning.owner, table[meaning.owner])
    inputs = _features(file, table, meaning)
    return _RawTable(inputs, table[meaning.label], names, table.get(SPLIT_COLUMN))


def _npz_rows(file: Path, meaning: TableSchema) -> _RawTable:
    arrays = read_archive(file, "data")
    needed = [_INPUTS, meaning.label, *([meaning.owner] if meaning.owner else [])]
    lacking = [key for key in needed if key not in arrays]
    if lacking:
        rule = f"it lacks {', '.join(lacking)}. Its arrays are {', '.join(arrays)}"
        raise _invalid(file, rule, "--label names the array of labels.")
    used = {key: arrays[key] for key in (*needed, SPLIT_COLUMN) if key in arrays}
    inputs = used.pop(_INPUTS)
    for key, array in used.items():
        if inputs.ndim < 2 or array.shape != (len(inputs),):
            rule = f"{_INPUTS} has shape (n, ...) and {key} shape (n), here {inputs.shape} and "
            raise _invalid(file, f"{rule}{array.shape}")
    scaling = None
    if inputs.dtype == np.uint8:
        scaling = Scaling.divided_by(255)
    elif inputs.dtype.kind == "f" and np.isfinite(inputs).all():
        inputs = inputs.astype(np.float32)
    else:
        raise _invalid(file, f"{_INPUTS} holds bytes or finite floats, here {inputs.dtype}")
    try:
        cells = {key: np.char.strip(array.astype(str)) for key, array in used.items()}
        "".join(str(cell) for column in cells.values() for cell in column).encode()
    except (ValueError, TypeError):
        raise _invalid(file, f"{', '.join(used)} hold numbers or text") from None
    if meaning.owner is None:
        names = [row.tobytes().hex() for row in inputs]
    else:
        names = _owner_names(file, meaning.owner, cells[meaning.owner])
    return _RawTable(inputs, cells[meaning.label], names, cells.get(SPLIT_COLUMN), scaling)


def _saved_rows(file: Path, meaning: TableSchema) -> _RawTable:
    if not meaning.columns:
        hint = "--columns A[,B] names those to train on, --label that of labels."
        raise _invalid(file, "its columns are not named", hint)
    others = [meaning.owner] if meaning.owner else []
    rows = read_saved(file, meaning.columns, meaning.label, others, meaning.length)
    names = [sha256(row.tobytes()).hexdigest() for row in rows.inputs]
    if meaning.owner is not None:
        names = _owner_names(file, meaning.owner, np.array(rows.cells[meaning.owner], str))
    split = None if rows.split is None else np.array(rows.split, str)
    return _RawTable(
        rows.inputs, np.array(rows.cells[meaning.label], str), names, split, rows.scaling
    )


def _folder_rows(file: Path, meaning: TableSchema) -> _RawTable:
    pillow = import_package("PIL.Image", "pillow", "11.3", "fl")
    if meaning.owner is not None:
        rule = "images in a folder are their own owners"
        raise _invalid(file, rule, "An .npz file can name the owners.")
    halves = [file / word for word in _SPLITS]
    declared = all(half.is_dir() for half in halves)
    packed = whole = 0
    images: list[NDArray[np.uint8]] = []
    facts: list[tuple[str, str, str]] = []
    for half in halves if declared else [file]:
        for label, place in _image_files(half):
            validate.check_regular("data", place, "an image")
            try:
                with pillow.open(place, formats=FORMATS) as image:
                    whole += 3 * image.width * image.height
                    packed += place.stat().st_size
                    validate.unpacked("data", file, packed, whole)
                    # Always three colors, whatever the other images have.
                    pixels = np.asarray(image.convert("RGB"), np.uint8).transpose(2, 0, 1)
            except InvalidParameter:
                raise
            except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
                raise _invalid(place, f"it is not an image ({error})") from None
            if images and pixels.shape != images[0].shape:
                rule = f"all images have one size, {images[0].shape[1:]}, here {pixels.shape[1:]}"
                raise _invalid(place, rule)
            images.append(pixels)
            facts.append((label, str(place.relative_to(file)), half.name))
    labels, names, split = (list(column) for column in zip(*facts, strict=True))
    return _RawTable(
        np.stack(images),
        np.array(labels, str),
        names,
        np.array(split, str) if declared else None,
        Scaling.divided_by(255),
    )


def _image_files(folder: Path) -> list[tuple[str, Path]]:
    """Return class and path of each image, in the order of their paths."""
    classes = sorted(place for place in folder.iterdir() if place.is_dir())
    pairs: list[tuple[str, Path]] = []
    for place in classes:
        files = [file for file in place.rglob("*") if file.suffix.lower() in _IMAGES]
        if not files:
            rule = f"it holds a folder of images for each class, and {place.name} has none"
            raise _invalid(folder, rule, f"Images end in {', '.join(_IMAGES)}.")
        pairs += [(place.name, file) for file in sorted(files)]
    if not pairs:
        raise _invalid(folder, "it holds a folder of images for each class, and has no folder")
    return pairs


def _check_rows(
    file: Path, wrong: NDArray[np.bool_], cells: Cells, rule: str, hint: str = ""
) -> None:
    """Reject the first row that is wrong, by its number and its cell."""
    if wrong.any():
        row = int(wrong.argmax())
        raise _invalid(file, f"{rule}, and row {row + 1} has {str(cells[row])!r}", hint)


def read_cells(file: Path) -> dict[str, Cells]:
    """Return the cells of each column, without surrounding spaces."""
    try:
        pandas: Any = import_module("pandas")
    except ModuleNotFoundError:
        raise Unsupported(
            f"CSV files are read with pandas, which is not installed: {install_command('fl')}"
        ) from None
    too_short = _invalid(file, "a table has a header and at least two rows")
    validate.check_regular("data", file, "a table")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = next((line for line in stream if line.strip()), "")
        if not first:
            raise too_short
        # The header decides, which is public. The delimiter is the one that makes most columns.
        columns = {mark: next(csv.reader([first], delimiter=mark), [""]) for mark in _DELIMITERS}
        delimiter = max(_DELIMITERS, key=lambda mark: len(columns[mark]))
        frame: Any = pandas.read_csv(
            file, sep=delimiter, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig"
        )
    except (OSError, ValueError, csv.Error) as error:
        # Errors of pandas are ValueErrors.
        kind = "text in UTF-8" if isinstance(error, UnicodeDecodeError) else "valid CSV"
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise _invalid(file, f"it is not {kind} ({reason})") from None
    if len(frame) < 3:
        raise too_short
    table: dict[str, Cells] = {}
    packed = file.stat().st_size
    for place in frame:
        # The cells of a column get the place of its longest one.
        validate.unpacked("data", file, packed, 4 * len(frame) * int(frame[place].str.len().max()))
        raw: Cells = frame[place].to_numpy(dtype=str)
        name, *cells = (str(cell) for cell in np.char.strip(raw))
        if name in table:
            raise _invalid(file, "its header names a column twice")
        if delimiter == ";":
            cells = [_without_decimal_comma(cell) for cell in cells]
        table[name] = np.array(cells)
    return table


def _without_decimal_comma(cell: str) -> str:
    """Turn ``1,5`` into ``1.5``. A cell that is no number stays as it is."""
    point = cell.replace(",", ".")
    return point if cell.count(",") == 1 and math.isfinite(number_of(point)) else cell


def number_of(text: str) -> float:
    """Return the number that a text is, NaN for other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _owner_names(file: Path, column: str, cells: Cells) -> list[str]:
    """Return one spelling for each owner's name, and reject rows without one."""
    _check_present(file, column, cells, "the owner of the row")
    return [canonical(str(cell)) for cell in cells]


def _check_present(file: Path, column: str, cells: Cells, noun: str) -> None:
    _check_rows(file, gaps_of(cells), cells, f"column {column} is {noun}")


def gaps_of(cells: Cells) -> NDArray[np.bool_]:
    """Return where a cell is empty, or has a usual mark of a missing value."""
    return np.isin(np.char.lower(cells), _MISSING)


def _labels(file: Path, cells: Cells, meaning: TableSchema) -> tuple[Indices, int]:
    """Return the class of each row, and the number of classes."""
    column, hint = meaning.label, "--classes lists all labels."
    words = [canonical(str(cell)) for cell in cells]
    classes = [canonical(str(word)) for word in meaning.classes]
    if classes:
        rule = f"labels are {', '.join(map(str, meaning.classes))}"
        _check_rows(file, ~np.isin(words, classes), cells, rule)
    else:
        _check_present(file, column, cells, "the label")
        spelled: dict[str, str] = {}
        for row, word in enumerate(words, start=1):
            other = spelled.setdefault(word.casefold(), word)
            if other != word:
                rule = f"row {row} has the label {word!r}, another row {other!r}"
                raise _invalid(file, rule, hint)
            if "." in word and math.isfinite(number_of(word)):
                rule = f"labels are classes, and row {row} has the number {word}"
                raise _invalid(file, rule, hint)
        # Numbers in their order, then words in theirs.
        order = {word: number_of(word) for word in set(words)}
        order = {word: value if math.isfinite(value) else math.inf for word, value in order.items()}
        classes = sorted(order, key=lambda word: (order[word], word))
        if len(classes) < 2:
            raise _invalid(file, f"column {column} has the same label in every row")
        if 2 * len(classes) > len(words) and len(words) > 10:
            rule = f"column {column} has {len(classes)} different labels in {len(words)} rows"
            raise _invalid(file, rule, hint)
    places = {word: place for place, word in enumerate(classes)}
    return np.array([places[word] for word in words], np.int64), len(classes)


def _features(file: Path, table: Mapping[str, Cells], meaning: TableSchema) -> NDArray[np.float32]:
    """Return the rows of all columns of features, float32 of shape (rows, features)."""
    declared = bool(meaning.numeric or meaning.categorical)
    not_features = {meaning.label, meaning.owner, SPLIT_COLUMN, *meaning.unused}
    columns: list[NDArray[Any]] = []
    for column, cells in table.items():
        if column in not_features:
            continue
        if column in meaning.categorical:
            words = [str(word) for word in meaning.categorical[column]]
            columns.append(np.stack([cells == word for word in words], axis=1))
            continue
        if declared and column not in meaning.numeric:
            rule = f"column {column} is declared neither as numeric, categorical nor unused"
            raise _invalid(file, rule)
        values = np.array([number_of(cell) for cell in cells])
        # Infinite numbers count as the end of a declared range.
        largest = math.inf if declared else float(np.finfo(np.float32).max)
        rule = f"column {column} holds finite numbers"
        gaps = gaps_of(cells)
        if column in meaning.missing:
            values[gaps] = meaning.missing[column]
        wrong = ~(np.abs(values) <= largest)
        hint = _GAP if wrong.any() and gaps[wrong.argmax()] else _HINT
        _check_rows(file, wrong, cells, rule, hint)
        if declared:
            low, high = meaning.numeric[column]
            values = (np.clip(values, low, high) - low) / (high - low)
        else:
            whole = (np.abs(values) > _EXACT_BELOW) & (values == np.round(values))
            rule = f"column {column} holds numbers that float32 does not round"
            hint = "Is it an identifier? Name it as owner or unused, or declare a numeric range."
            _check_rows(file, whole & (values.astype(np.float32) != values), cells, rule, hint)
        columns.append(values[:, None])
        if column in meaning.missing:
            columns.append(gaps[:, None])
    if not columns:
        raise _invalid(file, "a table has at least one column of features")
    return np.concatenate([part.astype(np.float32) for part in columns], axis=1)


_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native_country": "United-States",
}
# Ranges and categories are those of the published description of the data set, so they are public.
ADULT = TableSchema(
    label="income",
    classes=("<=50K", ">50K"),
    # The sampling weight of the census has no information about the person.
    unused=("fnlwgt", "education"),
    numeric={
        "age": (17, 90),
        "education_num": (1, 16),
        "capital_gain": (0, 20_000),
        "capital_loss": (0, 4_500),
        "hours_per_week": (1, 99),
    },
    categorical={column: tuple(words.split()) for column, words in _CATEGORIES.items()},
)


def load_adult(folder: Folder = None) -> Dataset:
    """Read Adult as vectors of 48 numbers in 0..1: an income over 50 thousand dollars, US 1994.

    The file is ``adult.csv``, with ``income`` and ``split`` among its columns. Rows of unknown
    occupation are kept.

    Raises:
        InvalidParameter: the file is missing or damaged.
    """
    file = find(folder, "adult", ["adult.csv"])
    # The test rows can be downloaded by anyone, and no client holds rows of the same people.
    return replace(load_table(file, ADULT), name="adult", test_data="public")


# More different words than this are no categories.
_MOST_CATEGORIES = 50
_OWNERS = ("owner", "person", "patient", "user", "client", "customer", "id")
HEAD = """\
# A proposal, read off {name}. The data may not decide what is public, so check every entry:
# - a range is known without these rows (an age from 0 to 120, not the largest age that occurs);
# - categories and classes are all that could occur, not only those that do;
# - owner names the column of the person a row belongs to.
# Then train with --schema and the name of this file.
"""
GAPS = (
    "# Columns with empty cells: the value that one counts as, in the range. A second column marks",
    "# it. Choose without these rows (a normal value, or 0). Their mean would be a leak.",
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


GLUE = {
    "cola": ("sentence",), "sst2": ("sentence",), "mrpc": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"), "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"), "wnli": ("sentence1", "sentence2"),
    "mnli": ("premise", "hypothesis"),
}  # fmt: skip


def load_glue(folder: Folder = None, *, task: str = "sst2") -> Dataset:
    """Read a task of GLUE, one of `GLUE`, which Hugging Face `datasets` has saved as ``glue-TASK``.

    ``load_dataset("glue", "sst2").save_to_disk("data/glue-sst2")``, with ``tokenizer.json`` of
    RoBERTa in it or in ``data``. Tests are on its validation part: its test part has no labels.
    """
    validate.one_of("task", task, "a task of GLUE", GLUE)
    place = find(folder, "glue", [f"glue-{task}", task])
    classes = ("0", "1", "2")[: 3 if task == "mnli" else 2]
    read = load_table(place, TableSchema(columns=GLUE[task], classes=classes))
    return replace(read, name=f"glue:{task}", test_data="public")


def propose_schema(path: str | os.PathLike[str], label: str, owner: str | None) -> str | None:
    """Return a schema for a CSV file as TOML, or None if all its features are numbers without gaps.

    Ranges, categories and classes shape the model, so they have to be public. The proposal lists
    the values that occur, and asks a person for each entry.

    Args:
        path: a CSV file with a header.
        label, owner: columns that are known.
    Raises:
        InvalidParameter: the file is missing or damaged.
        Unsupported: pandas is not installed.
    """
    table = read_cells(Path(path))
    features = {
        name: cells for name, cells in table.items() if name not in (label, owner, SPLIT_COLUMN)
    }
    numbers = {name: values for name, cells in features.items() if (values := _numbers(cells))}
    gaps = {name for name in numbers if gaps_of(features[name]).any()}
    if label not in table or (numbers.keys() == features.keys() and not gaps):
        return None
    lines = [HEAD.format(name=Path(path).name), f"label = {_quoted(label)}"]
    if owner is None:
        likely = next((name for name in table if name.lower() in _OWNERS), None)
        if likely is None:
            lines.append('# owner = "?"  # a column with persons; without it each row is a person')
        else:
            lines.append(f"owner = {_quoted(likely)}  # is this the person a row belongs to?")
            features.pop(likely, None)
    else:
        lines.append(f"owner = {_quoted(owner)}")
    lines.append(f"classes = {_listed(table[label])}  # are these all classes?")
    numeric, missing = ["", "[numeric]"], list[str]()
    categorical, unused = ["", "[categorical]"], list[str]()
    for name, cells in features.items():
        key = name if _BARE.fullmatch(name) else _quoted(name)
        if name in numbers:
            low, high = (f"{edge:g}" for edge in (min(numbers[name]), max(numbers[name])))
            numeric.append(f"{key} = [{low}, {high}]  # occurs from {low} to {high}; public range?")
        elif len(set(cells)) <= _MOST_CATEGORIES:
            categorical.append(f"{key} = {_listed(cells)}  # are these all categories?")
        else:
            unused.append(name)
        if name in gaps:
            missing.append(f'{key} = "?"')
    if unused:
        lines.append(f"unused = {_listed(unused)}  # free text: too many different words")
    if missing:
        missing = ["", "[missing]", *GAPS, *missing]
    return "\n".join([*lines, *numeric, *missing, *categorical]) + "\n"


def _numbers(cells: Cells) -> list[float]:
    """Return the numbers of a column, none if a cell is neither a number nor empty."""
    values = [number_of(str(cell)) for cell in cells[~gaps_of(cells)]]
    return values if all(map(math.isfinite, values)) else []


def _listed(words: Iterable[str]) -> str:
    """Return the different words in their order, as a list of TOML."""
    return f"[{', '.join(map(_quoted, sorted({str(word) for word in words})))}]"


def _quoted(text: str) -> str:
    """Return a string of TOML. Control characters of a cell do not reach a terminal."""
    return "".join(
        letter if letter.isprintable() else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
