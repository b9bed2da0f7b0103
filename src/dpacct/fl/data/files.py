"""Finding and reading data files; every refusal names the file and what it should hold.

Rule 1: nothing in a data file is ever executed (numpy reads without pickle).
Rule 2: shape, type and range are checked before a value is used.
"""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dpacct.errors import InvalidParameter

FOLDER_VARIABLE = "DPACCT_DATA"
PARAMETER = "data_dir"
# No file that is read here is larger once it is unpacked; more is not what its name says.
MAX_BYTES = 2 * 2**30

Shape = tuple[int | None, ...]


def invalid(file: Path, rule: str, hint: str = "") -> InvalidParameter:
    """The refusal of a file."""
    return InvalidParameter(PARAMETER, str(file), rule, hint)


def folder_of(folder: str | os.PathLike[str] | None) -> Path:
    """The folder with the data: the one given, that of the environment, or ``data``."""
    return Path(folder or os.environ.get(FOLDER_VARIABLE) or "data")


def first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of some files that exists in a folder."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def missing(folder: Path, dataset: str, alternatives: Sequence[str]) -> InvalidParameter:
    """The refusal of a folder that lacks a data set; ``alternatives`` says what was looked for."""
    found = "it does not exist" if not folder.is_dir() else f"it does not hold {dataset}"
    looked = "; or ".join(alternatives)
    return InvalidParameter(
        PARAMETER,
        str(folder),
        f"{found}. Looked for {looked}",
        f"--data-dir or {FOLDER_VARIABLE} names the folder.",
    )


def read_bytes(file: Path) -> bytes:
    """The bytes of a file, unpacked where its name ends with .gz.

    Raises:
        InvalidParameter: it cannot be read, is damaged, or too large.
    """
    try:
        if file.suffix != ".gz":
            if file.stat().st_size > MAX_BYTES:
                raise invalid(file, f"a data file has at most {MAX_BYTES} bytes")
            return file.read_bytes()
        with gzip.open(file) as stream:
            content = stream.read(MAX_BYTES + 1)
    except gzip.BadGzipFile as error:
        raise invalid(file, f"it is not a gzip file ({error})") from None
    except (EOFError, zlib.error):
        raise invalid(file, "its gzip stream is truncated or damaged") from None
    except OSError as error:
        raise invalid(file, f"it cannot be read ({error.strerror or error})") from None
    if len(content) > MAX_BYTES:
        raise invalid(file, f"a data file has at most {MAX_BYTES} bytes")
    return content


def read_text(file: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        InvalidParameter: it cannot be read, or is not text.
    """
    try:
        return read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(file, f"it is not text in UTF-8 (byte {error.start})") from None


def read_arrays(file: Path, keys: Sequence[str]) -> list[NDArray[Any]]:
    """Some arrays of an .npz file, without pickle.

    Raises:
        InvalidParameter: not an .npz file, truncated, an array missing or of Python objects.
    """
    try:
        # numpy leaves a file open that it cannot read, unless it is ours.
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise invalid(file, "an .npz file holds named arrays, this one a single array")
            lacking = [key for key in keys if key not in archive.files]
            if lacking:
                held = ", ".join(archive.files[:8]) or "nothing"
                raise invalid(file, f"it holds {held}, and lacks {', '.join(lacking)}")
            return [archive[key] for key in keys]
    except InvalidParameter:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError) as error:
        raise invalid(file, f"it is not an .npz file, or is damaged ({error})") from None
    except OSError as error:
        raise invalid(file, f"it cannot be read ({error.strerror or error})") from None


def check_array(
    file: Path, key: str, array: NDArray[Any], shape: Shape, kinds: str = "u1"
) -> NDArray[Any]:
    """The array itself, once its type and shape are what they must be; None is any length."""
    name = np.dtype(kinds).name
    if array.dtype != np.dtype(kinds):
        raise invalid(file, f"{key} is of type {name}, here it is {array.dtype}")
    if array.ndim != len(shape) or any(
        want not in (None, have) for want, have in zip(shape, array.shape, strict=False)
    ):
        wanted = ", ".join("n" if length is None else str(length) for length in shape)
        raise invalid(file, f"{key} has shape ({wanted}), here {array.shape}")
    if array.size == 0:
        raise invalid(file, f"{key} is empty")
    return array


def check_labels(file: Path, key: str, labels: NDArray[Any], count: int, classes: int) -> None:
    """One label for each of ``count`` examples, each below ``classes``.

    Raises:
        InvalidParameter: they are not.
    """
    if len(labels) != count:
        raise invalid(file, f"there are {count} images and {len(labels)} labels in {key}")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise invalid(
            file, f"labels lie in 0..{classes - 1}, and {key}[{first}] is {int(labels[first])}"
        )
