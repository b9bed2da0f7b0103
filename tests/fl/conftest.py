from __future__ import annotations

import importlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def uncounted(monkeypatch):
    """Reports do not say what was spent, which takes longer than small rounds."""
    monkeypatch.setattr("dpacct.fl.privacy.account.Account.spent_so_far", lambda _: float)


@pytest.fixture
def unwatched(monkeypatch):
    """Methods may keep notes, for tests that look over their shoulder."""
    monkeypatch.setattr("dpacct.fl.training.tasks.check_unwritten", lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors: threads cost more than they bring, and workers run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
