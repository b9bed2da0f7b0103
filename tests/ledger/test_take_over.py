"""A round that a process left behind is taken over: it counts once, and one process releases it."""

from __future__ import annotations

import pytest

from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import LedgerError
from dpacct.ledger import Event

EVENT = Event(Round(2.0, Poisson(0.1)), details={"round": 1, "norms": [0.5, 1.0]})


def left(path, plan=5):
    """A run whose process died in its first round."""
    with Ledger.open(path, Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("a", plan=plan and plan * EVENT.charged)
        ticket = run.reserve(EVENT)
        ticket.draw()
    return ticket.number


@pytest.mark.parametrize("plan", [5, None])
def test_it_counts_once(path, plan):
    number = left(path, plan)
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        ticket = run.take_over(EVENT)
        assert (ticket.number, ticket.state) == (number, "drawn")
        ticket.commit()
        assert (run.rounds, run.committed, ledger.rounds) == (1, 1, 1)
        assert run.take_over(EVENT) is None
        assert not ledger.verify().problems
        run.reserve(EVENT).commit()
        assert (run.rounds, run.committed) == (2, 2)


def test_it_cannot_be_given_back(path):
    left(path)
    with Ledger.open(path) as ledger:
        ticket = ledger.resume_run(1).take_over(EVENT)
        with pytest.raises(LedgerError, match="counts as spent"):
            ticket.abandon("changed my mind")


def test_of_two_one_commits(path):
    with Ledger.open(path, Budget(8, 1e-5)) as ledger:
        ours = ledger.start_run("a", plan=5 * EVENT.charged).reserve(EVENT)
        with Ledger.open(path) as again:
            theirs = again.resume_run(1).take_over(EVENT)
            theirs.commit()
        with pytest.raises(LedgerError, match="before"):
            ours.commit()
        assert ledger.runs[0].committed == 1


@pytest.mark.parametrize(
    "other",
    [
        Event(Round(2.0, Poisson(0.1)), details={"round": 2, "norms": [0.5, 1.0]}),
        Event(Round(2.5, Poisson(0.1)), details=EVENT.details),
        Event(Round(2.0, Poisson(0.05)), details=EVENT.details),
        EVENT.charged,
    ],
)
def test_another_round_is_not_taken_for_it(path, other):
    left(path)
    with Ledger.open(path) as ledger:
        assert ledger.resume_run(1).take_over(other) is None


def test_a_round_that_was_settled_or_followed_is_not_left(path):
    with Ledger.open(path, Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("a", plan=5 * EVENT.charged)
        assert run.take_over(EVENT) is None
        run.reserve(EVENT).abandon("not drawn")
        assert run.take_over(EVENT) is None
        run.reserve(EVENT)
        run.reserve(EVENT).commit()
        assert run.take_over(EVENT) is None
        other = ledger.start_run("b", plan=2 * EVENT.charged)
        other.reserve(EVENT)
        assert run.take_over(EVENT) is None


def test_a_round_outside_the_plan_is_not_taken_over(path):
    far = Event(Round(2.0, Poisson(0.5)))
    with Ledger.open(path, Budget(30, 1e-5)) as ledger:
        run = ledger.start_run("a", plan=2 * EVENT.charged)
        run.reserve(far)
        assert run.take_over(far) is None
