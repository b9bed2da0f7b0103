"""Find and read data files. Every error names the file and its expected content.

Rule 1: nothing in a data file is ever executed (numpy reads without pickle).
Rule 2: shape, type and range are checked before a value is used.
Rule 3: no file takes far more memory than it has bytes (`validate.unpacked`).
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter

FOLDER_VARIABLE = "DPACCT_DATA"
Folder = str | os.PathLike[str] | None
Array = NDArray[Any]
# What numpy and zipfile raise on a damaged, an encrypted or an invented archive.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, TypeError, LookupError,
    ArithmeticError, RuntimeError, MemoryError, SyntaxError, OSError,
)  # fmt: skip


def invalid(file: Path, rule: str, hint: str = "", name: str = "data_dir") -> InvalidParameter:
    """Return the error about a file, by default of a named data set."""
    return InvalidParameter(name, str(file), rule, hint)


def find(folder: Folder, dataset: str, names: Sequence[str]) -> Path:
    """Return the first file or folder with one of the names.

    It is looked for in the data folder (the given one, that of the environment, or ``data``), and
    in ``dataset`` below it.
    """
    root = Path(folder or os.environ.get(FOLDER_VARIABLE) or "data")
    for file in (place / name for place in (root, root / dataset) for name in names):
        if file.exists():
            return file
    lacks = f"it does not hold {dataset}" if root.is_dir() else "it does not exist"
    hint = f"--data-dir or {FOLDER_VARIABLE} names the folder."
    raise invalid(root, f"{lacks}. Looked for {'; or '.join(names)}", hint)


def read_archive(file: Path, name: str = "data_dir") -> dict[str, Array]:
    """Return the arrays of an .npz file, read without pickle. Errors are about ``name``."""
    validate.archive(name, file, "an .npz file")
    try:
        # numpy leaves a file open that it cannot read, unless the caller opened it.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (*_DAMAGED, AttributeError) as error:
        # A single array has no names: AttributeError.
        rule = f"it is not an .npz file of plain arrays, or is damaged ({type(error).__name__})"
        raise invalid(file, rule, name=name) from None
    # Without a byte, an array may have any length.
    if empty := [key for key, array in arrays.items() if not array.nbytes]:
        raise invalid(file, f"{empty[0]} is empty", name=name)
    return arrays


def read_arrays(file: Path, keys: Sequence[str]) -> list[Array]:
    """Return some arrays of an .npz file, read without pickle."""
    arrays = read_archive(file)
    lacking = [key for key in keys if key not in arrays]
    if lacking:
        raise invalid(file, f"it holds {', '.join(arrays)}, and lacks {', '.join(lacking)}")
    return [arrays[key] for key in keys]


def check_array(file: Path, key: str, array: Array, shape: tuple[int | None, ...]) -> None:
    """Check that an array holds bytes and has a shape. None stands for any length."""
    if array.dtype != np.uint8:
        raise invalid(file, f"{key} is of type uint8, here it is {array.dtype}")
    if array.ndim != len(shape) or any(
        want not in (None, have) for want, have in zip(shape, array.shape, strict=False)
    ):
        wanted = ", ".join("n" if length is None else str(length) for length in shape)
        raise invalid(file, f"{key} has shape ({wanted}), here {array.shape}")
    if array.size == 0:
        raise invalid(file, f"{key} is empty")


def check_labels(file: Path, key: str, labels: Array, count: int, classes: int) -> None:
    """Check that each of ``count`` examples has one label, below ``classes``."""
    check_array(file, key, labels, (None,))
    if len(labels) != count:
        raise invalid(file, f"there are {count} images and {len(labels)} labels in {key}")
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        first = int(wrong[0])
        label = f"{key}[{first}] is {int(labels[first])}"
        raise invalid(file, f"labels lie in 0..{classes - 1}, and {label}")
