"""`privatize`: a bounded, noised, divided and charged aggregate for a loop of one's own."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch

import dpacct
from dpacct import Budget, fl
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.privacy.findings import wrong_mean, wrong_shape, wrong_std
from dpacct.ledger import Ledger
from dpacct.rounds import Full, Poisson, Uniform
from tests.fl.problems import Recorded

NOISES = pytest.mark.parametrize("noise", [fl.GaussianNoise(), fl.SecureGaussianNoise()])


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", Budget(50, 1e-5)) as book:
        yield book


def planned(**options):
    settings = {"noise_multiplier": 1.0, "clip_norm": 0.5, "num_clients": 10}
    return fl.AggregationPlan(**(settings | options))


PLAN = planned()


@NOISES
def test_the_aggregate_is_the_clipped_mean_plus_the_noise(ledger, noise):
    plan, deltas = planned(noise_multiplier=2.0, noise=noise), torch.randn(10, 4000)
    before = deltas.clone()
    rows = deltas * (0.5 / deltas.norm(dim=1, keepdim=True)).clamp(max=1)
    found = [fl.privatize(deltas, plan, ledger) for _ in range(3)]
    residual = np.stack([(one - rows.mean(dim=0)).double().numpy() for one in found])
    for check in (wrong_std, wrong_mean, wrong_shape):
        assert not check(residual, 2.0 * 0.5 / 10)
    assert ledger.rounds == 3
    assert len(ledger.runs) == 1
    assert torch.equal(deltas, before)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "bound", [fl.Clip(0.3), fl.PerLayerClip((0.7,)), fl.SmoothedNormalization(0.1)]
)
def test_the_noise_is_that_of_the_charge(ledger, bound, rows):
    noise = Recorded()
    plan = planned(noise_multiplier=1.7, clip_norm=None, bound=bound, noise=noise)
    fl.privatize(torch.ones(rows, 70), plan, ledger)
    entry = next(entry for entry in ledger.export() if entry["kind"] == "reserve")["data"]
    [(_, std)] = noise.draws
    assert entry["charged"]["noise_multiplier"] == 1.7
    assert std == entry["details"]["noise_std"] >= 1.7 * bound.clip_norm


def test_a_rare_cohort_is_refused_only_where_the_refusal_tells_nothing(ledger):
    """400 of 1,000 at rate .3 have a probability of 1e-11: enough to tell a secret number."""
    options = {"sampling": Poisson(0.3), "num_clients": 1000}
    rows = torch.zeros(400, 3)
    with pytest.raises(InvalidParameter, match="probability below 1e-09"):
        fl.privatize(rows, planned(**options), ledger)
    secret = planned(**options, public_size=1000, adjacency="add-remove")
    assert fl.privatize(rows, secret, ledger).shape == (3,)
    with pytest.raises(InvalidParameter, match="probability below 1e-30"):
        fl.privatize(torch.zeros(480, 3), secret, ledger)


def test_an_empty_cohort_gives_noise_of_the_type_of_the_updates(ledger):
    plan = planned(sampling=Poisson(0.2))
    single, double = torch.float32, torch.float64
    for kind, released in ((torch.float16, single), (single, single), (double, double)):
        found = fl.privatize(torch.zeros(0, 3000, dtype=kind), plan, ledger)
        assert found.dtype == released
        values = found.double().numpy()[None]
        assert not wrong_std(values, 0.5 / 2)
        assert not wrong_mean(values, 0.5 / 2)


def test_the_denominator_is_the_planned_one(ledger):
    plan = planned(clip_norm=1, sampling=Poisson(0.5), num_clients=1000)
    mean = fl.privatize(torch.full((100, 400), 0.04), plan, ledger)
    # 100 came where 500 were planned; the noise along this direction is 1/500.
    assert float(mean.sum() / 20) == pytest.approx(0.8 * 100 / 500, abs=6 / 500)


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
    with pytest.raises(InvalidParameter, match="deltas"):
        fl.privatize(torch.ones(rows, 3), fl.AggregationPlan(1.0, 1.0, **options), ledger)
    assert ledger.rounds == 0
    # P(Bin(1000, .01) >= 33) = 5.7e-9 is taken, and P(>= 35) = 4.4e-10 is not.
    plan = planned(sampling=Poisson(0.01), num_clients=1000)
    assert fl.privatize(torch.ones(33, 3), plan, ledger).shape == (3,)


def test_it_is_charged_before_it_is_released_and_not_beyond_the_budget(ledger, tmp_path):
    run = ledger.start_run("mine", plan=2 * PLAN.round)
    for _ in range(2):
        fl.privatize(torch.ones(2, 5), PLAN, run)
    assert run.committed == 2
    assert run.on_plan
    expected = dpacct.epsilon(noise_multiplier=1.0, rounds=2, delta=1e-5)
    assert run.epsilon().upper == pytest.approx(expected.upper)
    with Ledger.open(tmp_path / "small.ledger", Budget(6, 1e-5)) as small:
        released = 0
        with suppress(BudgetExceeded):
            for _ in range(6):
                fl.privatize(torch.ones(2, 5), PLAN, small)
                released += 1
        assert released == small.rounds == 1


def test_rows_that_are_not_finite_count_as_zero(ledger):
    deltas = torch.zeros(3, 5)
    deltas[1, 2], deltas[2, 0] = torch.nan, torch.inf
    assert torch.isfinite(fl.privatize(deltas, PLAN, ledger)).all()


def test_too_few_shares_release_nothing(ledger):
    plan = fl.AggregationPlan(3.0, 1.0, sampling=Uniform(4, 9), noise=fl.NoiseShares(3))
    assert fl.privatize(torch.ones(3, 5), plan, ledger).shape == (5,)
    with pytest.raises(InvalidParameter, match="fewer noise shares"):
        fl.privatize(torch.ones(2, 5), plan, ledger)
    assert ledger.rounds == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_no_update_is_refused_and_not_charged(ledger):
    for deltas, words in (
        (torch.ones(5), "one update a row"),
        (torch.ones(11, 5), "at most 10 clients"),
        (torch.ones(2, 0), "at least one coordinate"),
        (torch.ones(2, 5, dtype=torch.int64), "int64"),
        (None, "dense"),
        ([torch.ones(3)], "dense"),
        (torch.ones(3, 4).numpy(), "dense"),
        (torch.ones(3, 4).to_sparse(), "dense"),
        (torch.ones(3, 4, device="meta"), "dense"),
        (torch.nested.nested_tensor([torch.ones(3)]), "dense"),
    ):
        with pytest.raises((InvalidParameter, Unsupported), match=words):
            fl.privatize(deltas, PLAN, ledger)
    assert ledger.rounds == 0
    assert not ledger.runs


def test_plans_that_make_no_sense_are_refused():
    for options, error in (
        ({"num_clients": None, "sampling": Full()}, InvalidParameter),
        ({"clip_norm": None}, InvalidParameter),
        ({"bound": fl.Clip(1.0)}, InvalidParameter),
        ({"bound": fl.AdaptiveClip(1.0), "clip_norm": None}, InvalidParameter),
        ({"noise_multiplier": 0}, InvalidParameter),
        ({"sampling": "cyclic"}, Unsupported),
        ({"sampling": Poisson(0.1), "noise": fl.NoiseShares(2)}, Unsupported),
        ({"sampling": Uniform(3, 9)}, InvalidParameter),
        ({"clip_norm": "median"}, Unsupported),
    ):
        with pytest.raises(error):
            planned(**options)


def test_a_planned_loop_is_charged_as_its_plan_and_ends_with_it(tmp_path):
    plan = planned(noise_multiplier=2.0, sampling=Poisson(0.1), num_clients=50)
    with Ledger.open(tmp_path / "planned.ledger", Budget(8, 1e-5)) as book:
        run = book.start_run("own", plan=6 * plan.round)
        while run.held:
            fl.privatize(torch.ones(len(plan.draw_cohort()), 3), plan, run)
        assert run.on_plan
        assert run.committed == 6
        spent = book.epsilon().upper
    assert spent == dpacct.epsilon(6 * plan.round, delta=1e-5).upper
    with Ledger.open(tmp_path / "unplanned.ledger", Budget(8, 1e-5)) as book:
        for _ in range(6):
            fl.privatize(torch.zeros(0, 3), plan, book)
        assert book.epsilon().upper > 1.2 * spent


def test_cohorts_are_those_of_the_plan_and_new_each_time():
    fixed = fl.AggregationPlan(1.0, 1.0, sampling=Uniform(20, 1000))
    drawn = [fixed.draw_cohort() for _ in range(4)]
    assert all(len(set(cohort)) == 20 and cohort == sorted(cohort) for cohort in drawn)
    assert len({tuple(cohort) for cohort in drawn}) == 4
    assert planned(num_clients=7).draw_cohort() == list(range(7))
    assert planned(sampling=Poisson(1e-9)).draw_cohort() == []
    layered = fl.AggregationPlan(1.5, bound=fl.PerLayerClip((0.3, 0.4)), num_clients=7)
    assert layered.round == dpacct.Round(1.5, Full(), "zero-out")
