"""What a run says that it has spent is no less than what its ledger holds."""

from __future__ import annotations

import pytest

from dpacct import Budget, Poisson, Round
from dpacct.errors import BudgetExceeded, LedgerError
from dpacct.fl.privacy.account import Account
from dpacct.ledger import Event
from dpacct.ledger.disk import store

EVENT = Event(Round(2.0, Poisson(0.1)))


@pytest.fixture
def account(tmp_path):
    made = Account(tmp_path / "run.ledger", Budget(8, 1e-5), private=True)
    made.start("run", EVENT, 5 * EVENT.charged, {})
    yield made
    made.close()


def test_a_reservation_that_failed_on_disk_counts_beside_a_committed_round(account, monkeypatch):
    account.reserve(EVENT).commit()
    before = account.spent_so_far()()

    def full(*_):
        raise LedgerError("the witness cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(store, "update_witness", full)
        with pytest.raises(LedgerError, match="witness"):
            account.reserve(EVENT)
    assert account.spent_so_far()() == account.epsilon()
    assert account.spent_so_far()().upper > before.upper


def test_a_round_that_does_not_fit_changes_nothing_that_was_spent(account):
    for _ in range(5):
        account.reserve(EVENT).commit()
    before = account.spent_so_far()()
    with pytest.raises(BudgetExceeded, match="all 5 rounds"):
        account.reserve(EVENT)
    assert account.spent_so_far()() == before == account.epsilon()
