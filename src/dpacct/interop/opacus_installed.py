"""Opacus, there and recent enough; asked before anything that imports torch, which it brings."""

from __future__ import annotations

from typing import Any

from dpacct.interop.packages import import_package


def library(part: str) -> Any:
    """A part of Opacus.

    Raises:
        Unsupported: it is not installed, or too old.
    """
    return import_package(f"opacus.{part}", "opacus", "1.6", "opacus")


accountants = library("accountants")
