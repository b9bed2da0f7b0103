from __future__ import annotations

import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dpacct
from dpacct import Budget, fl
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.privacy.findings import wrong_mean, wrong_shape, wrong_std
from dpacct.ledger import Ledger
from dpacct.rounds import Full, Poisson, Uniform


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", Budget(50, 1e-5)) as book:
        yield book


PLAN = fl.AggregationPlan(noise_multiplier=1.0, clip_norm=0.5, num_clients=10)


@pytest.mark.parametrize("noise", [fl.GaussianNoise(), fl.SecureGaussianNoise()])
def test_the_aggregate_is_the_clipped_mean_plus_the_noise(ledger, noise):
    plan = fl.AggregationPlan(noise_multiplier=2.0, clip_norm=0.5, num_clients=10, noise=noise)
    deltas = torch.randn(10, 4000)
    rows = deltas * (0.5 / deltas.norm(dim=1, keepdim=True)).clamp(max=1)
    found = [fl.privatize(deltas, plan, ledger) for _ in range(3)]
    residual = np.stack([(one - rows.mean(dim=0)).double().numpy() for one in found])
    for check in (wrong_std, wrong_mean, wrong_shape):
        assert not check(residual, 2.0 * 0.5 / 10)
    assert ledger.rounds == 3
    assert len(ledger.runs) == 1


def test_state_dicts_come_back_as_one(ledger):
    deltas = [{"w": torch.ones(2, 3), "b": torch.zeros(4)} for _ in range(10)]
    found = fl.privatize(deltas, PLAN, ledger)
    assert {name: value.shape for name, value in found.items()} == {"w": (2, 3), "b": (4,)}


def test_what_was_given_is_not_changed(ledger):
    deltas = 100 * torch.ones(3, 5)
    fl.privatize(deltas, PLAN, ledger)
    assert torch.equal(deltas, 100 * torch.ones(3, 5))


def test_an_empty_cohort_gives_noise(ledger):
    plan = fl.AggregationPlan(
        noise_multiplier=1.0, clip_norm=0.5, num_clients=10, sampling=Poisson(0.2)
    )
    found = fl.privatize(torch.zeros(0, 3000), plan, ledger).double()
    assert not wrong_std(found.numpy()[None], 0.5 / 2)


def test_an_empty_list_gives_noise_in_the_layout_that_is_given(ledger):
    plan = fl.AggregationPlan(
        noise_multiplier=1.0, clip_norm=0.5, num_clients=10, sampling=Poisson(0.2)
    )
    for kind, released in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        like = {"w": torch.ones(30, 50, dtype=kind), "b": torch.full((1500,), 7.0, dtype=kind)}
        found = fl.privatize([], plan, ledger, like=like)
        assert {name: value.shape for name, value in found.items()} == {"w": (30, 50), "b": (1500,)}
        assert {value.dtype for value in found.values()} == {released}
        values = torch.cat([value.double().flatten() for value in found.values()]).numpy()[None]
        assert not wrong_std(values, 0.5 / 2)
        assert not wrong_mean(values, 0.5 / 2)
    assert ledger.rounds == 2


@pytest.mark.parametrize("noise", [fl.GaussianNoise(), fl.SecureGaussianNoise()])
def test_a_layout_that_is_given_changes_nothing_where_somebody_came(ledger, noise):
    plan = fl.AggregationPlan(noise_multiplier=1.0, clip_norm=1e3, num_clients=2, noise=noise)
    deltas = [{"w": torch.tensor([9e9])}, {"w": torch.tensor([9e9])}]
    found = [
        float(fl.privatize(deltas, plan, ledger, like={"w": torch.zeros(1)})["w"]) for _ in range(9)
    ]
    assert sum(found) / 9 == pytest.approx(1000, abs=6 * 500 / 3)
    with pytest.raises(InvalidParameter, match="w has shape"):
        fl.privatize(deltas, plan, ledger, like={"w": torch.zeros(3)})
    with pytest.raises(InvalidParameter, match="like"):
        fl.privatize(torch.ones(1, 2), plan, ledger, like={"w": torch.zeros(2)})


class Peak(TorchDispatchMode):
    """Bytes of the tensors that operations have made, at most at one time."""

    def __init__(self, given):
        super().__init__()
        self.given = given.data_ptr()
        self.alive, self.now, self.most = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            storage = found.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            if place != self.given:
                self.now += 0 if self.alive.get(place) else size
                self.alive[place] = self.alive.get(place, 0) + 1
                self.most = max(self.most, self.now)
                weakref.finalize(found, self.free, place, size)
        return found

    def free(self, place, size):
        self.alive[place] -= 1
        self.now -= 0 if self.alive[place] else size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("as_dictionaries", [False, True])
def test_memory_is_a_fraction_of_what_is_given(ledger, as_dictionaries):
    plan = fl.AggregationPlan(noise_multiplier=1.0, clip_norm=0.5, num_clients=300)
    rows = torch.randn(200, 12_000)
    rows[7, 7] = torch.nan
    deltas = [{"w": row} for row in rows] if as_dictionaries else rows
    with Peak(rows) as peak:
        fl.privatize(deltas, plan, ledger)
    assert 0.01 * rows.nbytes < peak.most < 0.3 * rows.nbytes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("as_dictionaries", [False, True])
def test_few_updates_of_a_large_model_take_a_fraction_too(ledger, as_dictionaries):
    plan = fl.AggregationPlan(noise_multiplier=1.0, clip_norm=0.5, num_clients=300)
    rows = torch.ones(14, 400_000)
    deltas = (
        [{"w": row[:-6].view(2, -1), "b": row[-6:]} for row in rows] if as_dictionaries else rows
    )
    with Peak(rows) as peak:
        fl.privatize(deltas, plan, ledger)
    assert 0.01 * rows.nbytes < peak.most < 0.3 * rows.nbytes


def test_the_denominator_is_the_planned_one(ledger):
    plan = fl.AggregationPlan(
        noise_multiplier=1.0, clip_norm=1, sampling=Poisson(0.5), num_clients=1000
    )
    along = torch.full((100, 400), 0.04)
    found = fl.privatize(along, plan, ledger)
    # 100 came where 500 were planned; the noise along this direction is 1/500.
    assert float(found.sum() / 20) == pytest.approx(0.8 * 100 / 500, abs=6 / 500)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (1000, {"sampling": Poisson(0.01), "num_clients": 1000}),
        (40, {"sampling": Poisson(0.01), "num_clients": 1000}),
        (100, {"sampling": Poisson(0.01), "num_clients": 1000, "public_size": 900}),
        (11, {"num_clients": 10}),
        (5, {"sampling": Uniform(4, 9)}),
    ],
)
def test_more_rows_than_a_draw_can_give_are_refused_and_not_charged(ledger, rows, options):
    plan = fl.AggregationPlan(1.0, 1.0, **options)
    with pytest.raises(InvalidParameter, match="deltas"):
        fl.privatize(torch.ones(rows, 3), plan, ledger)
    assert ledger.rounds == 0


@pytest.mark.parametrize("rows", [0, 10, 33])
def test_as_many_rows_as_a_draw_may_give_are_taken(ledger, rows):
    # P(Bin(1000, .01) >= 33) = 5.7e-9, and P(>= 35) = 4.4e-10.
    plan = fl.AggregationPlan(1.0, 1.0, Poisson(0.01), num_clients=1000)
    assert fl.privatize(torch.ones(rows, 3), plan, ledger).shape == (3,)


def test_it_is_charged_before_it_is_released(ledger):
    run = ledger.start_run("mine", plan=2 * PLAN.round)
    fl.privatize(torch.ones(2, 5), PLAN, run)
    fl.privatize(torch.ones(2, 5), PLAN, run)
    assert run.committed == 2
    assert run.on_plan
    assert run.epsilon().upper == pytest.approx(
        dpacct.epsilon(noise_multiplier=1.0, rounds=2, delta=1e-5, accountant="tight").upper
    )


def test_nothing_is_released_beyond_the_budget(tmp_path):
    with Ledger.open(tmp_path / "small.ledger", Budget(6, 1e-5)) as small:
        released = 0
        with suppress(BudgetExceeded):
            for _ in range(6):
                fl.privatize(torch.ones(2, 5), PLAN, small)
                released += 1
        assert released == small.rounds == 1


def test_rows_that_are_not_finite_count_as_zero(ledger):
    deltas = torch.zeros(3, 5)
    deltas[1, 2] = torch.nan
    deltas[2, 0] = torch.inf
    assert torch.isfinite(fl.privatize(deltas, PLAN, ledger)).all()


def test_shares(ledger):
    plan = fl.AggregationPlan(
        noise_multiplier=3.0, clip_norm=1, sampling=Uniform(4, 9), noise=fl.NoiseShares(3)
    )
    assert fl.privatize(torch.ones(3, 5), plan, ledger).shape == (5,)
    before = ledger.rounds
    with pytest.raises(InvalidParameter, match="fewer noise shares"):
        fl.privatize(torch.ones(2, 5), plan, ledger)
    assert ledger.rounds == before


@pytest.mark.parametrize(
    ("deltas", "error"),
    [
        (torch.ones(5), InvalidParameter),
        (torch.ones(11, 5), InvalidParameter),
        (torch.ones(2, 0), InvalidParameter),
        (torch.ones(2, 5, dtype=torch.int64), Unsupported),
        ([], InvalidParameter),
        ([{"w": torch.ones(2)}, {"v": torch.ones(2)}], InvalidParameter),
        ([{"w": torch.ones(2)}, {"w": torch.ones(3)}], InvalidParameter),
        ([{"w": torch.ones(2), "seen": torch.tensor(3)}], Unsupported),
    ],
)
def test_what_is_no_update_is_refused_and_not_charged(ledger, deltas, error):
    with pytest.raises(error):
        fl.privatize(deltas, PLAN, ledger)
    assert ledger.rounds == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_clients": None, "sampling": Full()}, InvalidParameter),
        ({"clip_norm": None}, InvalidParameter),
        ({"bound": fl.Clip(1.0)}, InvalidParameter),
        ({"bound": fl.AdaptiveClip(1.0), "clip_norm": None}, InvalidParameter),
        ({"noise_multiplier": 0}, InvalidParameter),
        ({"sampling": "cyclic"}, Unsupported),
        ({"sampling": Poisson(0.1), "noise": fl.NoiseShares(2)}, Unsupported),
        ({"sampling": Uniform(3, 9)}, InvalidParameter),
        ({"clip_norm": "median"}, Unsupported),
    ],
)
def test_plans_that_make_no_sense_are_refused(options, error):
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0, "num_clients": 10}
    with pytest.raises(error):
        fl.AggregationPlan(**(settings | options))


def test_a_planned_loop_is_charged_as_its_plan_and_ends_with_it(tmp_path):
    plan = fl.AggregationPlan(
        noise_multiplier=2.0, clip_norm=0.5, sampling=Poisson(0.1), num_clients=50
    )
    with Ledger.open(tmp_path / "planned.ledger", Budget(8, 1e-5)) as book:
        run = book.start_run("own", plan=12 * plan.round)
        while run.held:
            fl.privatize(torch.ones(len(plan.draw_cohort()), 3), plan, run)
        assert run.on_plan
        assert run.committed == 12
        planned = book.epsilon().upper
    assert planned == dpacct.epsilon(12 * plan.round, delta=1e-5).upper
    with Ledger.open(tmp_path / "unplanned.ledger", Budget(8, 1e-5)) as book:
        for _ in range(12):
            fl.privatize(torch.zeros(0, 3), plan, book)
        assert book.epsilon().upper > 1.3 * planned


def test_cohorts_are_those_of_the_plan_and_new_each_time():
    fixed = fl.AggregationPlan(1.0, 1.0, sampling=Uniform(20, 1000))
    drawn = [fixed.draw_cohort() for _ in range(4)]
    assert all(len(set(cohort)) == 20 and cohort == sorted(cohort) for cohort in drawn)
    assert len({tuple(cohort) for cohort in drawn}) == 4
    assert fl.AggregationPlan(1.0, 1.0, num_clients=7).draw_cohort() == list(range(7))
    rare = fl.AggregationPlan(1.0, 1.0, sampling=Poisson(1e-9), num_clients=50)
    assert rare.draw_cohort() == []


def test_the_round_of_a_plan_is_what_its_bound_is_charged():
    layered = fl.AggregationPlan(1.5, bound=fl.PerLayerClip((0.3, 0.4)), num_clients=7)
    assert layered.round == dpacct.Round(1.5, Full(), "zero-out")


@pytest.mark.parametrize(
    "deltas",
    [
        None, [torch.ones(3)], {"a": torch.ones(3, 4)}, torch.ones(3, 4).numpy(),
        torch.ones(3, 4).to_sparse(), torch.ones(3, 4, device="meta"), [{"a": None}],
        [{"a": torch.ones(2)}, {"a": torch.ones(2, device="meta")}],
    ],
    ids=["none", "tensors", "one dict", "numpy", "sparse", "meta", "no tensor", "one meta"],
)  # fmt: skip
def test_what_is_no_dense_tensor_is_refused_before_anything_is_charged(deltas, tmp_path):
    plan = fl.AggregationPlan(1.0, 1.0, fl.Full(), num_clients=9)
    with Ledger.open(tmp_path / "a.ledger", Budget(50, 1e-5)) as book:
        with pytest.raises(InvalidParameter, match="updates are dense tensors"):
            fl.privatize(deltas, plan, book)
        assert not book.runs
