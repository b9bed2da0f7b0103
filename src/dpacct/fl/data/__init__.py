"""Data sets by name (`load`), from your own table (`load_table`) or by columns (`from_columns`).

``load("digits")`` needs no file. The others are read from a folder that the user fills.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct.fl.data.adult import load_adult
from dpacct.fl.data.columns import from_columns
from dpacct.fl.data.dataset import Dataset, Examples, PartitionedClients, Scaling
from dpacct.fl.data.files import Folder
from dpacct.fl.data.images import (
    load_cifar10,
    load_cifar100,
    load_digits,
    load_emnist,
    load_fashion_mnist,
    load_femnist,
    load_mnist,
    load_svhn,
)
from dpacct.fl.data.shakespeare import load_shakespeare
from dpacct.fl.data.table import TableSchema, load_table

__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "PartitionedClients",
    "Scaling",
    "TableSchema",
    "from_columns",
    "load",
    "load_adult",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_emnist",
    "load_fashion_mnist",
    "load_femnist",
    "load_mnist",
    "load_shakespeare",
    "load_svhn",
    "load_table",
]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "emnist": load_emnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "femnist": load_femnist,
    "shakespeare": load_shakespeare,
    "adult": load_adult,
}


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
