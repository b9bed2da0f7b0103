"""A run as a whole: what it charges, releases and refuses."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import dpacct
from dpacct import Budget, fl
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.randomness import draw_cohort
from dpacct.ledger import Ledger
from tests.fl.problems import federation, flat, linear, make_clients, pause, play


def test_the_budget_is_met_by_the_plan_and_spent_round_by_round():
    clients = make_clients([6] * 30)
    options = {"sampling": fl.Poisson(0.3), "rounds": 5}
    with federation(
        linear(), clients, noise_multiplier=None, budget=Budget(4, 1e-5), **options
    ) as run:
        assert run.epsilon == dpacct.Spent(0, 0, 1e-5)
        spent = [report.epsilon.upper for report in run]
        assert all(a < b for a, b in itertools.pairwise(spent))
        assert spent[-1] <= 4
        assert spent[-1] == pytest.approx(4, rel=1e-4)
        assert run.epsilon.lower <= run.epsilon.upper
        assert run.planned_epsilon.upper <= 4
        calibrated = dpacct.calibrate(
            epsilon=4, delta=1e-5, rounds=5, sampling_rate=0.3, accountant="tight"
        )
        assert run.noise_multiplier == calibrated.noise_multiplier


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [
        (fl.Poisson(0.4), "add-remove"),
        (fl.Uniform(4, 12), "replace-one"),
        (fl.Full(), "zero-out"),
        (fl.Full(), "replace-one"),
    ],
)
def test_the_ledger_holds_what_ran(tmp_path, sampling, adjacency):
    path = tmp_path / "run.ledger"
    with federation(
        linear(),
        make_clients([6] * 12),
        sampling=sampling,
        adjacency=adjacency,
        public_size=10 if adjacency == "add-remove" else None,
        noise_multiplier=2.0,
        ledger=path,
        delta=1e-4,
    ) as run:
        reports = list(run)
    with Ledger.open(path, read_only=True) as ledger:
        [kept] = ledger.runs
        expected = 3 * dpacct.Round(2.0, sampling, adjacency)
        assert kept.plan == expected
        assert kept.committed == kept.rounds == 3
        assert kept.finished
        spent = dpacct.epsilon(expected, delta=1e-4, accountant="tight")
        assert reports[-1].epsilon.upper == pytest.approx(spent.upper, rel=1e-6)
        assert ledger.adjacency == adjacency


def test_a_round_is_charged_before_it_is_drawn_and_committed_before_it_is_released(
    tmp_path, monkeypatch
):
    path, seen = tmp_path / "run.ledger", []

    def look(stage, act):
        def looked(*given):
            # Before the rehearsal has ended there is nothing to charge.
            if path.exists():
                with Ledger.open(path, read_only=True) as ledger:
                    seen.append((stage, ledger.runs[0].rounds, ledger.runs[0].committed))
            return act(*given)

        return looked

    monkeypatch.setattr("dpacct.fl.engine.engine.draw_cohort", look("drawn", draw_cohort))
    watching = type("Watching", (fl.GaussianNoise,), {"add": look("noise", fl.GaussianNoise.add)})
    watched = type("Watched", (Method,), {"post": look("post", Method.post)})
    options = {"method": watched(), "noise": watching(), "ledger": path, "rounds": 1}
    with federation(linear(), make_clients([6] * 3), **options) as run:
        run.run()
    assert seen == [("drawn", 1, 0), ("noise", 1, 0), ("post", 1, 1)]


def test_two_runs_share_a_ledger_until_it_is_full(tmp_path):
    with Ledger.open(tmp_path / "run.ledger", Budget(3, 1e-5)) as ledger:
        options = {"noise_multiplier": None, "budget": Budget(2.9, 1e-5), "ledger": ledger}
        with federation(linear(), make_clients([6] * 12), **options) as run:
            run.run()
        second = federation(linear(), make_clients([6] * 12), **options)
        with second, pytest.raises(BudgetExceeded, match="does not fit"):
            second.run()
        assert ledger.epsilon().upper <= 3


def test_a_run_that_was_refused_starts_whole_once_there_is_room(tmp_path):
    plan = 4 * dpacct.Round(2.0, adjacency="zero-out")
    budget = Budget(dpacct.epsilon(plan, delta=1e-5).upper * 1.01, 1e-5)
    options = {"noise_multiplier": 2.0, "budget": budget, "rounds": 4}
    with Ledger.open(tmp_path / "run.ledger", budget) as ledger:
        other = ledger.start_run("in its way", plan)
        with federation(linear(), make_clients([6] * 4), ledger=ledger, **options) as run:
            for _ in range(2):
                with pytest.raises(BudgetExceeded, match="not one round"):
                    run.run()
                assert run.rounds == 4
            other.finish()
            assert run.run().round == 4


def test_a_run_without_a_round_left_is_an_error():
    with federation(linear(), make_clients([6] * 4), rounds=1) as run:
        assert run.run().round == 1
        with pytest.raises(InvalidParameter, match="no round is left"):
            run.run()


def test_epsilon_of_a_report_is_that_of_its_round_whenever_it_is_read():
    options = {"sampling": fl.Poisson(0.3), "rounds": 4}
    with federation(linear(), make_clients([6] * 5), **options) as run:
        late = [report.epsilon for report in list(run)]
    with federation(linear(), make_clients([6] * 5), **options) as run:
        soon = [report.epsilon for report in run]
    for one, two in zip(late, soon, strict=True):
        assert (one.lower, one.upper) == pytest.approx((two.lower, two.upper), rel=1e-6)


def test_empty_cohorts_release_noise_and_are_charged():
    options = {"sampling": fl.Poisson(0.02), "rounds": 6}
    with federation(linear(), make_clients([6] * 3), **options) as run:
        before, moves = flat(run.model), []
        for report in run:
            if not report.diagnostics.cohort_size:
                assert math.isnan(report.clipped_fraction)
                assert report.released
                assert report.noise_std > 0
                moves.append(flat(run.model) - before)
            before = flat(run.model)
        spent = dpacct.epsilon(6 * dpacct.Round(1.0, fl.Poisson(0.02)), delta=1e-5)
        assert run.epsilon.upper == pytest.approx(spent.upper)
    assert len(moves) >= 2
    assert all(bool(move.abs().min() > 0) for move in moves)
    assert not torch.equal(moves[0], moves[1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", [[6], [1], [0], [1, 0, 1]])
@pytest.mark.parametrize("vectorize", [False, True, "auto"])
def test_tiny_populations_train(sizes, vectorize):
    with federation(linear(), make_clients(sizes), vectorize=vectorize) as run:
        last = run.run()
        assert last.diagnostics.cohort_size == len(sizes)
        assert torch.isfinite(flat(run.model)).all()


def test_a_seed_repeats_the_run_and_makes_it_not_private(tmp_path):
    finals = []
    for number, seed in enumerate((11, 11, None)):
        path = tmp_path / f"{number}.ledger"
        options = {"sampling": fl.Poisson(0.5), "seed": seed, "ledger": path}
        with federation(linear(), make_clients([6] * 9), **options) as run:
            last = run.run()
            assert (last.epsilon.upper == math.inf) is (seed is not None)
            assert ("seed" in str(last.not_private_because)) is (seed is not None)
            assert run.planned_epsilon.upper < math.inf
        assert run.epsilon.upper == last.epsilon.upper
        with Ledger.open(path, read_only=True) as ledger:
            assert ledger.runs[0].private is (seed is None)
            assert (ledger.epsilon().upper == math.inf) is (seed is not None)
        finals.append(flat(run.model))
    assert torch.equal(*finals[:2])
    assert not torch.equal(*finals[1:])


def test_a_method_that_is_not_private_plans_no_epsilon():
    class Leaking(fl.DPFedAvg):
        not_private_because = "it prints the data"

    with federation(linear(), make_clients([6] * 4), method=Leaking()) as run:
        assert run.planned_epsilon.upper == run.run().epsilon.upper == math.inf


def test_epsilon_depends_on_nothing_but_noise_sampling_and_rounds():
    spent = set()
    for changes in (
        {},
        {"clip_norm": 7.0},
        {"local": fl.SGD(lr=3.0, steps=9, momentum=0.5)},
        {"server_lr": 0.1},
        {"clip_norm": None, "bound": fl.SmoothedNormalization(0.1)},
        {"clip_norm": None, "bound": fl.PerLayerClip((0.1, 3.0))},
        {"clip_norm": None, "bound": fl.AdaptiveClip(0.1, indicator_noise=9.0)},
        {"secure_noise": True},
    ):
        with federation(linear(), make_clients([6] * 4), **changes) as run:
            spent.add(run.planned_epsilon.upper)
    assert len(spent) == 1


def test_training_leaves_the_global_generators_alone():
    model, clients = linear(), make_clients([6] * 3)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    with federation(model, clients) as run:
        run.run()
        assert torch.equal(torch.rand(3), expected)


def test_a_method_that_is_not_private_says_so():
    because = {"not_private_because": "the published code does so"}
    leaky = type("Leaky", (Method,), because)
    with federation(linear(), make_clients([6] * 3), method=leaky()) as run:
        last = run.run()
        assert last.epsilon.upper == math.inf
        assert last.not_private_because == because["not_private_because"]


def test_updates_that_are_not_finite_become_zero_and_are_counted():
    clients = make_clients([4] * 5)
    clients[2] = fl.ClientData(torch.full((4, 6), torch.nan), clients[2].targets)
    clients[3] = fl.ClientData(torch.full((4, 6), torch.inf), clients[3].targets)
    for vectorize in (False, True):
        model = linear()
        with federation(model, clients, vectorize=vectorize) as run:
            for report in run:
                assert report.diagnostics.dropped_updates == 2
                assert report.diagnostics.cohort_size == 5
                assert report.released
        assert torch.isfinite(flat(model)).all()


@dataclass
class Population:
    """A million clients that are made when they are asked for."""

    made: int = 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, client):
        self.made += 1
        generator = torch.Generator().manual_seed(client)
        return fl.ClientData(
            torch.randn(3, 6, generator=generator), torch.randint(3, (3,), generator=generator)
        )


def test_of_a_million_clients_only_those_drawn_are_made():
    clients = Population()
    options = {"sampling": fl.Poisson(2e-5), "rounds": 1, "noise_multiplier": 4.0}
    with federation(linear(), clients, **options) as run:
        total = sum(report.diagnostics.cohort_size for report in run)
    assert 0 < clients.made <= total + 8


def test_models_that_cannot_be_trained_privately_are_refused():
    for model, words in (
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "running statistics"),
        (nn.Sequential(nn.Linear(6, 3).half()), "float32 or float64"),
        (nn.Sequential(nn.Flatten()), "no parameter"),
        (nn.Sequential(nn.LazyLinear(3)), "no shape yet"),
    ):
        with pytest.raises(Unsupported, match=words):
            federation(model, make_clients([6] * 3))
    model = linear()
    nn.init.constant_(model.weight, math.nan)
    with pytest.raises(InvalidParameter, match="finite"):
        federation(model, make_clients([6] * 3))
    with pytest.raises(InvalidParameter, match="at least one client"):
        federation(linear(), [])
    with pytest.raises(InvalidParameter, match="as many targets"):
        fl.ClientData(torch.zeros(3, 2), torch.zeros(2))


def test_leaving_early_keeps_the_plan_and_tells_the_callbacks():
    told = []

    class Listener(fl.Callback):
        def start(self, run):
            told.append("start")

        def report(self, run, report):
            told.append(report.round)

        def finish(self, run):
            told.append("finish")

    with federation(linear(), make_clients([6] * 3), callbacks=[Listener()]) as run:
        play(run, 2)
        assert told == ["start", 1, 2, "finish"]
        assert [report.round for report in run] == [3]
        assert list(run) == []


# One delta: that of the ledger.


def loose(path, **options):
    Ledger.open(path, Budget(30.0, 0.05), **options).close()
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"noise_multiplier": None, "budget": Budget(4, 1e-5)},
        {"budget": Budget(4, 1e-5)},
        {"delta": 1e-5},
    ],
)
def test_another_delta_than_the_ledgers_is_refused_before_anything_runs(tmp_path, options):
    path = loose(tmp_path / "loose")
    before = path.read_bytes()
    with Ledger.open(path) as opened:
        for ledger in (opened, path):
            with pytest.raises(InvalidParameter, match=r"delta is 1e-05; .* 0\.05") as refused:
                federation(linear(), make_clients([6] * 3), ledger=ledger, **options)
            assert refused.value.name == "delta"
        assert opened.runs == ()
    assert path.read_bytes() == before
    # So is a ledger that comes into being later.
    with federation(linear(), make_clients([6] * 3), ledger=tmp_path / "late", **options) as run:
        loose(tmp_path / "late")
        with pytest.raises(InvalidParameter, match=r"delta is 1e-05; .* 0\.05"):
            run.run()
    with Ledger.open(tmp_path / "late", read_only=True) as ledger:
        assert ledger.runs == ()


def test_without_a_delta_of_its_own_a_run_has_that_of_its_ledger(tmp_path):
    path = loose(tmp_path / "loose")
    with federation(linear(), make_clients([6] * 3), noise_multiplier=2.0, ledger=path) as run:
        last = run.run()
        expected = dpacct.epsilon(3 * dpacct.Round(2.0), delta=0.05)
        for spent in (run.epsilon, last.epsilon, run.planned_epsilon):
            assert spent.delta == last.delta == 0.05
            assert spent.upper == pytest.approx(expected.upper, rel=1e-6)
        assert last.to_dict()["delta"] == 0.05


def test_another_adjacency_than_the_ledgers_is_refused_at_the_start(tmp_path):
    path = loose(tmp_path / "loose", adjacency="replace-one")
    with pytest.raises(InvalidParameter, match="replace-one") as refused:
        federation(linear(), make_clients([6] * 3), ledger=path)
    assert refused.value.name == "adjacency"


def test_what_was_spent_stays_known_when_the_run_is_closed(tmp_path):
    expected = dpacct.epsilon(2 * dpacct.Round(1.0), delta=1e-5).upper
    for options in ({}, {"ledger": tmp_path / "a.ledger"}):
        run = federation(linear(), make_clients([6] * 3), **options)
        pause(run, 2)
        assert run.epsilon.upper == pytest.approx(expected, rel=1e-6)
        # It does not begin again, beside what it has spent.
        with pytest.raises(LedgerError, match="closed"):
            run.run()
        assert run.epsilon.upper == pytest.approx(expected, rel=1e-6)


def test_a_ledger_that_was_closed_first_says_so(tmp_path):
    with Ledger.open(tmp_path / "a.ledger", Budget(30, 1e-5)) as ledger:
        run = federation(linear(), make_clients([6] * 3), ledger=ledger)
        next(iter(run))
    run.close()
    with pytest.raises(LedgerError, match="closed"):
        _ = run.epsilon


def test_a_budget_of_the_runs_own_stops_it_in_a_larger_ledger(tmp_path):
    path = tmp_path / "large.ledger"
    Ledger.open(path, Budget(30, 1e-5)).close()
    options = {"noise_multiplier": 3.0, "rounds": 50, "ledger": path}
    with federation(linear(), make_clients([6] * 3), budget=Budget(3, 1e-5), **options) as run:
        run.run()
        assert 1 <= run.round == run.rounds < 50
        assert run.epsilon.upper <= 3
        one_more = (run.round + 1) * dpacct.Round(3.0)
        assert dpacct.epsilon(one_more, delta=1e-5).upper > 3
    run = federation(linear(), make_clients([6] * 3), budget=Budget(0.1, 1e-5), **options)
    with run, pytest.raises(BudgetExceeded, match="not one round"):
        run.run()
