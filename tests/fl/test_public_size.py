"""Neighbors of 40 and 39 clients: nothing printed, stored or released follows the true size."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pytest
import torch
from torch import nn

from dpacct import Budget, Full, Poisson, Uniform, fl
from dpacct.errors import InvalidParameter
from dpacct.fl.methods import METHODS
from dpacct.fl.privacy.sums import add_clipped
from dpacct.fl.public import SECRET_CAPACITY, PublicSize
from dpacct.ledger import Ledger
from dpacct.rounds import Adjacency
from tests.fl.problems import flat, linear, make_clients

M = 50


def nobody(size: int) -> list[fl.ClientData]:
    return [fl.ClientData(torch.empty(0, 6), torch.empty(0, dtype=torch.long)) for _ in range(size)]


def examples(size: int) -> fl.Examples:
    return fl.Examples(torch.zeros(size, 6), torch.zeros(size, dtype=torch.long))


def figures(run: fl.Federation, folder: Any) -> dict[str, Any]:
    """Everything of a run that is printed or stored, but what is random or marked unprotected."""
    reports = [report.to_dict() for report in run]
    for row in reports:
        for key in [key for key in row if key.startswith("unprotected_")]:
            del row[key]
    content = torch.load(folder / "run.pt", weights_only=True)
    with Ledger.open(folder / "run.pt.ledger", read_only=True) as ledger:
        entries = [(e["kind"], e["data"]) for e in ledger.export()]
    for kind, data in entries:
        assert kind
        data.pop("name", None)
    return {
        "reports": reports,
        "noise": (run.noise_multiplier, run.rounds, run.planned_epsilon, run.epsilon),
        "setting": content["setting"],
        "states": content["server_state"].keys(),
        "entries": json.dumps([data.get("details") for _, data in entries], default=str),
        "charges": json.dumps([data.get("charged") for _, data in entries], default=str),
    }


def run_of(population: Any, folder: Any, **options: Any) -> dict[str, Any]:
    folder.mkdir()
    settings: dict[str, Any] = {
        "rounds": 2,
        "noise_multiplier": 3.0,
        "sampling": Poisson(0.3),
        "public_size": M,
        "clip_norm": 1.0,
        "vectorize": False,
    }
    settings |= options
    method = settings.get("method")
    if "bound" in settings or (method is not None and method.bound is not None):
        settings["clip_norm"] = None
    run = fl.Federation(
        linear(), nn.functional.cross_entropy, population, checkpoint=folder / "run.pt", **settings
    )
    with run:
        assert run.player.engine.plan.adjacency is Adjacency.ADD_REMOVE
        return figures(run, folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_prints_and_stores_the_same_for_neighbors(tmp_path, name):
    method = METHODS[name]()
    sampling = Poisson(0.3) if len(name) % 2 else Full()
    found = [
        run_of(nobody(size), tmp_path / str(size), method=method, sampling=sampling, rounds=1)
        for size in (40, 39)
    ]
    assert found[0] == found[1]


def test_the_grid_of_examples_follows_no_number_of_examples(tmp_path, monkeypatch):
    grids = []

    def kept(*arguments, coarsest, **options):
        grids.append((coarsest, arguments[3]))
        return add_clipped(*arguments, coarsest=coarsest, **options)

    monkeypatch.setattr("dpacct.fl.engine.engine.add_clipped", kept)
    for size in (40, 39, 3):
        options = {"sampling": Full(), "rounds": 1, "vectorize": True, "local": fl.SGD(steps=1)}
        run_of(examples(size), tmp_path / str(size), **options)
    assert len(grids) >= 3
    assert len(set(grids)) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("people", "sampling"),
    [(nobody, Poisson(0.3)), (nobody, Full()), (examples, Poisson(0.3)), (examples, Full())],
)
@pytest.mark.parametrize(
    "options",
    [
        {"secure_noise": True},
        {"noise_multiplier": None, "budget": Budget(3, 1e-4)},
        {"bound": fl.AdaptiveClip(0.5, rate=1e-9), "noise_multiplier": 0.5},
    ],
    ids=["secure", "budget", "adaptive"],
)
def test_every_setting_prints_and_stores_the_same_for_neighbors(
    tmp_path, people, sampling, options
):
    found = [
        run_of(people(size), tmp_path / str(size), sampling=sampling, **options)
        for size in (40, 39)
    ]
    for one in found:
        for row in one["reports"]:
            # It follows the noisy count of clipped updates.
            row["clip_norm"] = round(row["clip_norm"], 6)
            row["noise_std"] = round(row["noise_std"], 6)
        one["entries"] = re.sub(
            r"\d\.\d{7,}", lambda number: f"{float(number[0]):.6f}", one["entries"]
        )
    assert found[0] == found[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", [Poisson(0.3), Full()])
def test_the_released_noise_is_as_wide_for_neighbors_and_as_the_public_size_says(
    tmp_path, sampling
):
    rate = sampling.sampling_rate
    for size in (40, 39):
        model = nn.Linear(100, 50)
        before = flat(model)
        empty = [
            fl.ClientData(torch.empty(0, 100), torch.empty(0, dtype=torch.long))
            for _ in range(size)
        ]
        with fl.Federation(
            model, nn.functional.cross_entropy, empty, rounds=1, noise_multiplier=20.0,
            clip_norm=1.0, sampling=sampling, public_size=M,
        ) as run:  # fmt: skip
            run.run()
        std = float((flat(model) - before).double().std())
        assert std == pytest.approx(20 / (rate * M), rel=6 / (2 * 5_050) ** 0.5)
        plan = fl.AggregationPlan(20.0, 1.0, sampling, public_size=M, num_clients=size)
        with Ledger.open(tmp_path / f"{size}.ledger", Budget(50, 1e-5)) as ledger:
            mean = fl.privatize(torch.zeros(0, 5_050), plan, ledger)
        assert float(mean.std()) == pytest.approx(20 / (rate * M), rel=6 / (2 * 5_050) ** 0.5)


def test_plans_of_an_own_loop_for_neighbors_are_told_apart_by_nothing_that_is_shown():
    plans = [
        fl.AggregationPlan(1.0, 1.0, Poisson(0.3), public_size=M, num_clients=size)
        for size in (40, 39, None)
    ]
    assert {repr(plan) for plan in plans} == {repr(plans[0])}
    charges = [plan.charge for plan in plans]
    assert charges[0] == charges[1] == charges[2]
    assert plans[0].round.adjacency is Adjacency.ADD_REMOVE
    with pytest.raises(InvalidParameter, match="public_size need not be"):
        plans[2].draw_cohort()


def test_the_grid_of_a_sum_does_not_follow_a_secret_number():
    # 64 clients need one bit more than 63: a grid that follows rounds everybody's rows otherwise.
    rows = torch.randn(5, 21, generator=torch.Generator().manual_seed(1))
    sums = []
    for size in (64, 63):
        with fl.Server(
            linear(), size, rounds=1, noise_multiplier=1.0, clip_norm=1.0, sampling=Full(),
            public_size=M,
        ) as server:  # fmt: skip
            [opened] = [opened for opened in server if _fill(opened, rows)]
            sums.append(opened.found.total.clone())
    assert torch.equal(*sums)


def _fill(opened: fl.OpenRound, rows: torch.Tensor) -> bool:
    opened.add(range(len(rows)), opened.bound(rows))
    opened.release()
    return True


@pytest.mark.parametrize("sampling", [Poisson(0.3), Full(), Uniform(4, 12)])
def test_add_remove_without_a_public_size_is_refused_with_the_way_out(sampling):
    options: dict[str, Any] = {"rounds": 1, "noise_multiplier": 1.0, "clip_norm": 1.0}
    with pytest.raises(InvalidParameter, match="public_size="):
        fl.Federation(
            linear(), nn.functional.cross_entropy, make_clients([3] * 12),
            sampling=sampling, adjacency="add-remove", **options,
        )  # fmt: skip
    with pytest.raises(InvalidParameter, match="public_size="):
        fl.Server(linear(), 12, sampling=sampling, adjacency="add-remove", **options)
    with pytest.raises(InvalidParameter, match="public_size="):
        fl.AggregationPlan(1.0, 1.0, sampling, num_clients=12, adjacency="add-remove")


def test_a_fixed_size_scheme_takes_no_public_size():
    with pytest.raises(InvalidParameter, match="divided by the size of the cohort"):
        fl.AggregationPlan(1.0, 1.0, Uniform(4, 12), public_size=12)
    assert PublicSize.choose(None, Uniform(4, 12), 12).adjacency(Uniform(4, 12), None) == (
        Adjacency.REPLACE_ONE
    )


@pytest.mark.parametrize("size", [0, -3, 1.5, True, "many"])
def test_a_public_size_is_a_whole_number(size):
    with pytest.raises(InvalidParameter, match="public"):
        fl.AggregationPlan(1.0, 1.0, Full(), public_size=size)


def test_more_clients_than_a_sum_can_hold_are_refused_whatever_is_declared():
    with pytest.raises(InvalidParameter, match="population"):
        fl.AggregationPlan(1.0, 1.0, Full(), public_size=10, num_clients=2**33 + 1)


@pytest.mark.parametrize("size", [1, 10**12])
def test_a_public_size_far_from_the_truth_costs_accuracy_alone(tmp_path, size):
    plan = fl.AggregationPlan(1.0, 1.0, Full(), public_size=size)
    assert plan.charge.contributions == SECRET_CAPACITY
    rows = torch.eye(30)
    with Ledger.open(tmp_path / "a.ledger", Budget(50, 1e-5)) as ledger:
        mean = fl.privatize(rows, plan, ledger).double() * size
    assert mean.norm() < 4 * 60**0.5
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own
