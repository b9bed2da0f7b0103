"""Users with several records: at most k of each are drawn, one by one, and charged as a user's."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import Budget, Ledger, Poisson, Round, fl
from dpacct.correlated import square_root
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import kept_records
from dpacct.fl.privacy.randomness import Seeded, draw_cohort
from tests.fl.problems import federation, linear, make_clients

OWNERS = ["a", "b", "a", "c", "a", "b", "a", "d", "d", "d"]


def examples(**settings: object) -> fl.Examples:
    [data] = make_clients([len(OWNERS)])
    return fl.Examples(data, owners=OWNERS, **settings)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 6), st.data())
def test_the_first_records_of_each_owner_are_kept_whoever_else_is_there(
    owners: list[int], most: int, data: st.DataObject
) -> None:
    stated, kept = kept_records(len(owners), owners, most)
    assert kept is not None
    assert stated == most
    counts = Counter(owners[place] for place in kept)
    assert all(counts[name] == min(most, n) for name, n in Counter(owners).items())
    # Without one owner the records of the others are the same.
    gone = data.draw(st.sampled_from(owners))
    places = [place for place, name in enumerate(owners) if name != gone]
    if places:
        _, rest = kept_records(len(places), [owners[place] for place in places], most)
        assert [places[place] for place in rest or ()] == [k for k in kept if owners[k] != gone]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_owners_may_be_names_or_numbers(kind: object) -> None:
    numbers = [ord(name) for name in OWNERS]
    [data] = make_clients([len(OWNERS)])
    found = fl.Examples(data, owners=kind(numbers), records=2)  # type: ignore[operator]
    assert len(found) == 7
    assert torch.equal(found.batch([0, 2, 6]).inputs, data.inputs[[0, 2, 8]])
    assert torch.equal(found[-1].inputs, data.inputs[8:9])
    assert (found.unit, found.records) == ("client", 2)
    assert fl.Examples(data).unit == "example"


def test_the_same_owner_is_one_owner_in_every_form():
    for owners in ([*torch.tensor([1, 1, 1])], [*np.array([1, 1, 1])], [1.0, 1, True]):
        assert kept_records(3, owners, 1) == (1, [0])


def test_owners_that_cannot_be_compared_are_refused():
    # NaN is not equal to itself: each would be an owner of its own.
    for owners in (
        [math.nan] * 3, torch.tensor([math.nan] * 3), [None] * 3, [object(), object(), object()],
        ["1", 1, 1], [torch.tensor([1, 2])] * 3,
    ):  # fmt: skip
        with pytest.raises(InvalidParameter, match="owner"):
            kept_records(3, owners, 1)


def test_groups_that_take_turns_have_one_record_of_a_user():
    with pytest.raises(Unsupported, match="records=1"):
        federation(
            linear(), examples(records=3), sampling=fl.Cyclic(4, 0.5), rounds=8, local=None,
            noise=fl.CorrelatedNoise(square_root(8, 2)), noise_multiplier=4.0, delta=1e-5,
        )  # fmt: skip


def test_a_run_is_charged_for_users_of_k_records(tmp_path: Path) -> None:
    path = tmp_path / "x.ledger"
    with federation(
        linear(), examples(records=3, unit="patient"), sampling=fl.Poisson(0.25), rounds=4,
        noise_multiplier=2.0, delta=1e-5, ledger=path,
    ) as run:  # fmt: skip
        report = run.run()
        assert (report.unit, report.adjacency) == ("patient", "zero-out")
        # Nine of ten records remain, which is public.
        assert run.engine.plan.cohort_size == 0.25 * 9
        assert run.engine.plan.sampling == Poisson(0.25, records=3)
    whole = 4 * Round(2.0, Poisson(0.25, records=3), "zero-out")
    wanted = dpacct.epsilon(whole, delta=1e-5)
    with Ledger.open(path) as ledger:
        assert ledger.unit == "patient"
        assert ledger.runs[0].plan == whole
        spent = ledger.epsilon()
        assert (spent.lower, spent.upper) == pytest.approx((wanted.lower, wanted.upper), rel=1e-9)
        assert ledger.verify().sound
    one = dpacct.epsilon(4 * Round(2.0, Poisson(0.25)), delta=1e-5)
    assert spent.lower > 2 * one.upper


def test_users_with_several_clients() -> None:
    clients = make_clients([3] * len(OWNERS))
    owned = fl.Owned(clients, OWNERS, records=2)
    assert len(owned) == 7
    assert owned[6] is clients[8]
    assert [client is clients[k] for client, k in zip(owned[1:3], (1, 2), strict=True)]
    options = {"sampling": fl.Poisson(0.5), "budget": Budget(8, 1e-5), "noise_multiplier": None}
    with federation(linear(), owned, **options) as run:
        assert run.engine.plan.sampling == Poisson(0.5, records=2)
        assert 8 * (1 - 1e-4) <= run.planned_epsilon.upper <= 8
        run.run()


@pytest.mark.usefixtures("uncounted")
def test_no_more_than_k_records_of_a_user_are_ever_drawn() -> None:
    with federation(linear(), examples(records=2), sampling=fl.Poisson(1.0), rounds=1) as run:
        assert run.run().diagnostics.cohort_size == 7
    # One record of each is one example, so that examples can be allocated.
    with federation(linear(), examples(records=1), sampling=fl.Allocation(2), rounds=4) as run:
        assert run.engine.num_clients == 4
        run.run()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": fl.Uniform(3, 9)}, "Uniform sampling of owners"),
        ({"sampling": fl.Full()}, "Full sampling of owners"),
        ({"sampling": fl.Allocation(3)}, "Allocation sampling of owners"),
        ({"sampling": Poisson(0.5, records=2)}, "up to 3 records"),
        ({"adjacency": "replace-one"}, "replace-one|come or go"),
        (
            {"schedule": 3 * Round(1.0, Poisson(0.5), "zero-out"), "sampling": None,
             "noise_multiplier": None, "rounds": None},
            "records=3",
        ),
    ],
)  # fmt: skip
def test_what_is_not_proven_for_several_records_is_refused(
    settings: dict[str, object], words: str
) -> None:
    whole: dict[str, object] = {"sampling": fl.Poisson(0.5), "rounds": 3, "local": None}
    with pytest.raises((InvalidParameter, Unsupported), match=words):
        federation(linear(), examples(records=3), **whole | settings)


def test_owners_and_records_belong_together() -> None:
    [data] = make_clients([len(OWNERS)])
    for given_, words in (
        ({"owners": OWNERS}, "Give records="),
        ({"records": 2}, "Give owners="),
        ({"owners": OWNERS[1:], "records": 2}, "has an owner"),
        ({"owners": OWNERS, "records": 0}, "records"),
        ({"owners": OWNERS, "records": 1.5}, "records"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            fl.Examples(data, **given_)
    # Without owners nobody keeps a user to two records.
    for clients in (fl.Examples(data), make_clients([3] * 5)):
        with pytest.raises(InvalidParameter, match="whose its records are"):
            federation(linear(), clients, sampling=Poisson(0.5, records=2), local=None)
    with pytest.raises(InvalidParameter, match="whose the updates are"):
        fl.AggregationPlan(noise_multiplier=1.0, sampling=Poisson(0.5, records=2), num_clients=9)


def test_truncated_cohorts_are_cut_to_their_largest_size() -> None:
    scheme = Poisson(0.5, max_cohort=8, num_clients=40)
    cohorts = [draw_cohort(scheme, 40, Seeded(k)) for k in range(200)]
    assert max(map(len, cohorts)) == 8
    assert all(cohort == sorted(set(cohort)) for cohort in cohorts)
    counts = Counter(member for cohort in cohorts for member in cohort)
    assert len(counts) == 40
    assert max(counts.values()) < 80
    with federation(
        linear(), make_clients([3] * 40), sampling=scheme, public_size=40, rounds=2
    ) as run:
        report = run.run()
        assert report.diagnostics.cohort_size <= 8
    with pytest.raises(InvalidParameter, match="num_clients"):
        federation(linear(), make_clients([3] * 41), sampling=scheme, public_size=40)
