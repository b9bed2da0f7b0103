from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def uncounted(monkeypatch):
    """Reports do not say what was spent, which takes longer than small rounds."""
    monkeypatch.setattr("dpacct.fl.privacy.account.Account.spent_so_far", lambda _: float)


@pytest.fixture
def unwatched(monkeypatch):
    """Methods may keep notes, for tests that look over their shoulder."""
    monkeypatch.setattr("dpacct.fl.training.isolation.Isolation._check", lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors: threads cost more than they bring, and workers run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
