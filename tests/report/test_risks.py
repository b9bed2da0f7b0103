"""People out of a thousand: proven, rounded up, and never more than all of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct import Poisson, Round, Schedule, risk
from dpacct.report.front import (
    FPRS,
    MOST_KINDS,
    PRIORS,
    chosen_of_thousand,
    of_thousand,
    risks_of_promise,
    risks_of_rounds,
)

PLAN = 300 * Round(1.0, Poisson(0.1))


@given(st.floats(0, 1))
def test_people_are_never_fewer_than_the_share(share: float) -> None:
    shown = Fraction(of_thousand(share).replace(",", ""))
    assert 1000 * Fraction(share) <= shown <= 1000
    assert shown - 1000 * Fraction(share) < 1


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.001, "1"), (0.0012, "1.2"), (0.01, "10"), (0.5, "500"), (1.0, "1,000"), (1e-9, "0.1")],
)
def test_what_was_chosen_stays_what_it_is(share: float, words: str) -> None:
    assert chosen_of_thousand(share) == words


def test_the_risks_of_rounds_are_those_of_the_library() -> None:
    found = risks_of_rounds(PLAN, "tight")
    assert found is not None
    assert [row.fpr for row in found.rates] == list(FPRS)
    for row in found.rates:
        truth = risk.true_positive_rate(PLAN, fpr=row.fpr)
        assert truth.lower <= row.tpr <= truth.upper * (1 + 1e-6)
        for prior, (told, right) in zip(PRIORS, row.posteriors, strict=True):
            assert told == prior
            assert right >= risk.posterior(PLAN, prior=prior, fpr=row.fpr).lower
    assert found.best_guess >= risk.best_guess(PLAN, prior=0.5).lower
    plain = risks_of_promise(12.4, 1e-5)
    assert all(a.tpr < b.tpr for a, b in zip(found.rates, plain.rates, strict=True))
    assert found.best_guess < plain.best_guess


def test_many_kinds_of_rounds_are_left_to_the_promise() -> None:
    kinds = Schedule(
        phase for n in range(MOST_KINDS + 1) for phase in 1 * Round(5 + n, Poisson(0.1))
    )
    assert risks_of_rounds(kinds, "tight") is None
    assert risks_of_rounds(Schedule(), "tight") is None
    # An accountant that knows no bound of sampled rounds.
    assert risks_of_rounds(PLAN, "gdp") is None
