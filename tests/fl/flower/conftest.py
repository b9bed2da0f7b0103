"""Small runs over Flower's messages."""

from __future__ import annotations

import pytest


class Spent:
    """Stands for an epsilon that takes longer to compute than a small round."""

    upper, delta = 1.0, 1e-5


@pytest.fixture(autouse=True)
def _uncounted_epsilon(monkeypatch, uncounted):
    monkeypatch.setattr("dpacct.fl.report.RoundReport.epsilon", Spent())
