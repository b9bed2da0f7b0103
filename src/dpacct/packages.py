"""The packages of which dpacct is a plug-in: there, and recent enough, or refused at the start."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from typing import Any

from dpacct.errors import Unsupported


def import_package(module: str, distribution: str, at_least: str, extra: str) -> Any:
    """A module of somebody else's package, whose types are its own affair.

    Args:
        module: its dotted name.
        distribution: the name by which pip knows the package.
        at_least: the first version against which the plug-in is written, as ``1.6``.
        extra: of dpacct, the one that brings it.
    Raises:
        Unsupported: the package is not installed, or older than that.
    """
    hint = f"pip install 'dpacct[{extra}]' brings it"
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise Unsupported(f"{distribution} is not installed; {hint}.") from None
    if _release(found) < _release(at_least):
        raise Unsupported(
            f"{distribution} {found} is too old, version {at_least} or later is needed; {hint}."
        )
    return importlib.import_module(module)


def import_opacus(part: str) -> Any:
    """A part of Opacus: its accountants and its loaders are met in different rooms.

    Raises:
        Unsupported: it is not installed, or too old.
    """
    return import_package(f"opacus.{part}", "opacus", "1.6", "opacus")


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with; ``2`` and ``2.0`` are one."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
