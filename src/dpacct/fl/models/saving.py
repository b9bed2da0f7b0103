"""The parameters of a model on disk."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from dpacct.ledger.disk.outputs import write_file


def save_parameters(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the parameters, on the CPU; complete under their final name, or not at all.

    ``torch.load(path, weights_only=True)`` gives what ``model.load_state_dict`` takes.

    Raises:
        OSError: the file cannot be written; one that was there is untouched.
        InvalidParameter: there is a ledger in its place, or a folder.
    """
    parameters = {name: value.cpu() for name, value in model.state_dict().items()}
    write_file(
        Path(path), lambda stream: torch.save(parameters, stream), name="model", replace=True
    )
