"""Optional packages: installed and recent enough, or rejected with what to install."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from typing import Any

from dpacct.errors import Unsupported


def import_package(module: str, distribution: str, at_least: str, extra: str) -> Any:
    """Return a module, untyped, that belongs to another package or needs it.

    Args:
        module: its dotted name.
        distribution: the name by which pip knows the package.
        at_least: the oldest version that serves, as ``1.6``.
        extra: the extra of dpacct that installs it.
    Raises:
        Unsupported: the package is not installed, or older than that.
    """
    hint = f"pip install -e '.[{extra}]' brings it."
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise Unsupported(f"{distribution} is not installed; {hint}") from None
    if _release(version) < _release(at_least):
        rule = f"{distribution} {version} is too old, version {at_least} or later is needed"
        raise Unsupported(f"{rule}; {hint}")
    return importlib.import_module(module)


def import_opacus(part: str) -> Any:
    """Return a module of Opacus, which several rooms need."""
    return import_package(f"opacus.{part}", "opacus", "1.6", "opacus")


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with, so that ``2`` equals ``2.0``."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
