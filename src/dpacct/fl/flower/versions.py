"""Which Flower this plug-in works with, said before anything of it is used."""

from __future__ import annotations

import re
from importlib import metadata

OLDEST = (1, 41)


def check_flower() -> str:
    """The version of Flower that is installed.

    Raises:
        ImportError: none, or one that is too old.
    """
    wanted = ".".join(map(str, OLDEST))
    advice = f"this plug-in needs {wanted} or newer: pip install 'dpacct[flower,fl]'"
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ImportError(f"Flower (flwr) is not installed; {advice}") from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise ImportError(f"Flower (flwr) {found} is installed; {advice}")
    return found
