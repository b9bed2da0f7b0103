"""Which Flower this plug-in works with, said before anything of it is used."""

from __future__ import annotations

from typing import Any

from dpacct.packages import import_package

OLDEST = "1.41"


def check_flower() -> str:
    """The version of Flower that is installed.

    Raises:
        Unsupported: none, or one that is too old.
    """
    flower: Any = import_package("flwr", "flwr", OLDEST, "flower,fl")
    return str(flower.__version__)
