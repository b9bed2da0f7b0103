"""What the tests of loaders share."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch


@pytest.fixture(scope="session")
def torchvision() -> None:
    """Torchvision, if it is installed; also a build for CUDA beside a PyTorch for CPUs.

    Such a build cannot load its operators, and breaks off when it describes them. Its readers need
    none of them, so they are declared here.
    """
    pytest.importorskip("PIL")
    for _ in range(20):
        try:
            importlib.import_module("torchvision.datasets")
        except ModuleNotFoundError:
            pytest.skip("torchvision is not installed")
        except RuntimeError as error:
            found = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if found is None:
                raise
            torch.library.define(f"torchvision::{found[1]}", "(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
        else:
            return
