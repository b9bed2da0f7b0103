"""Data sets by name (`load`), from your own table (`load_table`) or by columns (`from_columns`).

``load("digits")`` needs no file. The others are read from a folder that the user fills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Dataset, Examples, PartitionedClients, Scaling, from_columns
from dpacct.fl.data.files import Folder, find
from dpacct.fl.data.images import IMAGES, image_files, load_digits, load_femnist, load_images
from dpacct.fl.data.shakespeare import load_shakespeare
from dpacct.fl.data.table import TableSchema, load_adult, load_glue, load_table

__all__ = [
    "DATASETS", "Dataset", "Examples", "PartitionedClients", "Scaling", "TableSchema",
    "from_columns", "load", "load_adult", "load_digits", "load_femnist", "load_glue",
    "load_shakespeare", "load_table",
]  # fmt: skip

DATASETS: dict[str, Callable[..., Dataset]] = {
    **{name: partial(load_images, name) for name in IMAGES},
    "femnist": load_femnist,
    "shakespeare": load_shakespeare,
    "adult": load_adult,
    "glue": load_glue,
}


# Of the data sets beside `IMAGES`.
_FILES = {
    "adult": "adult.csv", "femnist": "femnist_writers.npz", "shakespeare": "shakespeare_roles.json",
}  # fmt: skip


def is_there(name: str, folder: Folder = None) -> bool:
    """Return True if a file of the data set lies in the folder (see `load`). It is not read."""
    name, _, part = name.partition(":")
    glue = [f"glue-{part or 'sst2'}", part or "sst2"] if name == "glue" else []
    try:
        find(folder, name, glue or ([_FILES[name]] if name in _FILES else image_files(name)))
    except (InvalidParameter, KeyError):
        return name == "digits"
    return True


def load(name: str, folder: Folder = None, **options: Any) -> Dataset:
    """Read the data set called ``name``.

    Args:
        name: ``digits`` or one of `DATASETS`.
        folder: with its files. Default: the environment's DPACCT_DATA, or ``data``.
        options: of its loader.

    Raises:
        InvalidParameter: an unknown name, missing or damaged files.
    """
    if name == "digits":
        return load_digits()
    if name not in DATASETS:
        rule = f"data are a .csv file, a .npz file, or one of digits, {', '.join(DATASETS)}"
        raise InvalidParameter("data", name, rule)
    return DATASETS[name](folder, **options)
