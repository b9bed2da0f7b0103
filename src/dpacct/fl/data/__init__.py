"""Data sets to train on: a name, or a table of one's own.

``load("digits")`` needs nothing; the others are read from a folder that the user fills.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct.fl.data.adult import load_adult
from dpacct.fl.data.cifar10 import load_cifar10
from dpacct.fl.data.dataset import Dataset, Examples, PartitionedClients, Scaling
from dpacct.fl.data.digits import load_digits
from dpacct.fl.data.femnist import load_femnist
from dpacct.fl.data.mnist import Folder, load_fashion_mnist, load_mnist
from dpacct.fl.data.shakespeare import load_shakespeare
from dpacct.fl.data.table import TableSchema, load_table

__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "PartitionedClients",
    "Scaling",
    "TableSchema",
    "load",
    "load_adult",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_femnist",
    "load_mnist",
    "load_shakespeare",
    "load_table",
]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "femnist": load_femnist,
    "shakespeare": load_shakespeare,
    "adult": load_adult,
}


def load(name: str, folder: Folder = None, **options: Any) -> Dataset:
    """The data set called ``name``.

    Args:
        name: ``digits`` or one of `DATASETS`.
        folder: where its files lie; default the environment's DPACCT_DATA, or ``data``.
        options: those of its reader.

    Raises:
        InvalidParameter: an unknown name, missing or damaged files.
    """
    if name == "digits":
        return load_digits()
    if name not in DATASETS:
        rule = f"a data set is one of digits, {', '.join(DATASETS)}"
        raise InvalidParameter("data", name, rule)
    return DATASETS[name](folder, **options)
