"""Checkpoints: what a run needs to go on, atomically on disk.

Rule 1: a file under its final name is complete. Rule 2: it is read by ``torch.load`` with
``weights_only=True``: it can hold no code. Rule 3: the generator's state is kept for seeded runs
alone; a private run draws afresh, so that noise is never used twice.

A checkpoint holds private values if the method has client memories. Such a file is readable by its
owner alone (mode 0600). Guard it like the data.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, cast

import torch

from dpacct.errors import InvalidParameter
from dpacct.ledger.disk.outputs import write_file

VERSION = 2

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
    """Write a checkpoint, which replaces the one before; whole, or not at all.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
        InvalidParameter: there is a ledger in its place, or a folder.
    """
    whole = {"version": VERSION} | content
    write_file(
        path,
        lambda stream: torch.save(whole, stream),
        name="checkpoint",
        replace=True,
        owner_only=bool(content.get("client_states")),
    )


def read_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any]:
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
    if type(version) is not int or version != VERSION:
        shown = f"of version {version}" if type(version) is int else "no checkpoint"
        rule = f"it is {shown}, and this dpacct reads checkpoints of version {VERSION}"
        raise InvalidParameter("checkpoint", str(path), rule)
    return content
