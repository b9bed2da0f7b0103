"""Checkpoints: what a run needs to go on, atomically on disk.

Rule 1: a file under its final name is complete. Rule 2: it is read by ``torch.load`` with
``weights_only=True``: it can hold no code. Rule 3: the generator's state is kept for seeded runs
alone; a private run draws afresh, so that noise is never used twice.

A checkpoint holds private values where the method has client memories. Guard it like the data.
"""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any, cast

import torch

from dpacct.errors import InvalidParameter

# 1 did not name the ledger of its run.
VERSION = 2
READABLE = (1, 2)

# What torch.load and its readers of zip files and pickles raise on a file that is something else.
_DAMAGED = (
    AssertionError,
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write to a temporary file beside ``path``, flush it to disk, and rename it.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            torch.save({"version": VERSION} | content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `write_checkpoint` wrote, with its tensors on the device.

    Raises:
        InvalidParameter: there is no such file, or it is no checkpoint of this version.
    """
    if not path.is_file():
        raise InvalidParameter("checkpoint", str(path), "there is no such file")
    try:
        with warnings.catch_warnings():
            # torch warns of a foreign pickle before it refuses it; the refusal says enough.
            warnings.simplefilter("ignore", UserWarning)
            loaded = torch.load(path, map_location=device, weights_only=True)
        content = cast("dict[str, Any]", loaded)
        version = content["version"]
    except _DAMAGED as error:
        rule = f"it cannot be read as a checkpoint ({type(error).__name__})"
        raise InvalidParameter("checkpoint", str(path), rule) from None
    if type(version) is not int or version not in READABLE:
        shown = f"of version {version}" if type(version) is int else "no checkpoint"
        rule = f"it is {shown}, and this dpacct reads checkpoints up to version {VERSION}"
        raise InvalidParameter("checkpoint", str(path), rule)
    return content
