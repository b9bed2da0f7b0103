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
from tests.fl.problems import federation, flat, linear, make_clients

M = 50


def nobody(size: int) -> list[fl.ClientData]:
    return [fl.ClientData(torch.empty(0, 6), torch.empty(0, dtype=torch.long)) for _ in range(size)]


def examples(size: int) -> fl.Examples:
    return fl.Examples(torch.zeros(size, 6), torch.zeros(size, dtype=torch.long))


def figures(run: fl.Federation, folder: Any) -> dict[str, Any]:
    """Everything of a run that is printed or stored, but what is random or marked unprotected."""
    reports = [report.to_dict() for report in run]
    reports = [
        {k: v for k, v in row.items() if not k.startswith("unprotected_")} for row in reports
    ]
    content = torch.load(folder / "run.pt", weights_only=True)
    with Ledger.open(folder / "run.pt.ledger", read_only=True) as ledger:
        data = [entry["data"] for entry in ledger.export()]
    return {
        "reports": reports,
        "noise": (run.noise_multiplier, run.rounds, run.planned_epsilon, run.epsilon),
        "setting": content["setting"],
        "states": content["server_state"].keys(),
        "entries": json.dumps([each.get("details") for each in data], default=str),
        "charges": json.dumps([each.get("charged") for each in data], default=str),
    }


def run_of(population: Any, folder: Any, **options: Any) -> dict[str, Any]:
    folder.mkdir()
    settings = {
        "rounds": 2, "noise_multiplier": 3.0, "sampling": Poisson(0.3), "public_size": M,
        "checkpoint": folder / "run.pt", "local": None,
    }  # fmt: skip
    with federation(linear(), population, **(settings | options)) as run:
        assert run.engine.plan.adjacency is Adjacency.ADD_REMOVE
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
    std = 20 / (sampling.sampling_rate * M)
    for size in (40, 39):
        model = nn.Linear(100, 50)
        before, nothing = flat(model), torch.empty(0, dtype=torch.long)
        empty = [fl.ClientData(torch.empty(0, 100), nothing) for _ in range(size)]
        settings = {"sampling": sampling, "public_size": M, "noise_multiplier": 20.0}
        with federation(model, empty, rounds=1, **settings) as run:
            run.run()
        plan = fl.AggregationPlan(clip_norm=1.0, num_clients=size, **settings)
        with Ledger.open(tmp_path / f"{size}.ledger", Budget(50, 1e-5)) as ledger:
            mean = fl.privatize(torch.zeros(0, 5_050), plan, ledger)
        for noise in (flat(model) - before, mean):
            assert float(noise.double().std()) == pytest.approx(std, rel=6 / (2 * 5_050) ** 0.5)


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
            opened = next(iter(server))
            opened.add(range(len(rows)), opened.bound(rows))
            opened.release()
            sums.append(opened.found.total.clone())
    assert torch.equal(*sums)


@pytest.mark.parametrize("sampling", [Poisson(0.3), Full(), Uniform(4, 12)])
def test_add_remove_without_a_public_size_is_refused_with_the_way_out(sampling):
    given: dict[str, Any] = {"sampling": sampling, "adjacency": "add-remove"}
    whole = {"rounds": 1, "noise_multiplier": 1.0, "clip_norm": 1.0}
    for call in (
        lambda: federation(linear(), make_clients([3] * 12), **given),
        lambda: fl.Server(linear(), 12, **given, **whole),
        lambda: fl.AggregationPlan(1.0, 1.0, num_clients=12, **given),
    ):
        with pytest.raises(InvalidParameter, match="public_size="):
            call()


def test_public_sizes_that_make_no_sense_are_refused():
    for sampling, options, words in (
        (Uniform(4, 12), {"public_size": 12}, "divided by the size of the cohort"),
        *((Full(), {"public_size": size}, "public") for size in (0, -3, 1.5, True, "many")),
        # More than a sum can hold, whatever is declared.
        (Full(), {"public_size": 10, "num_clients": 2**33 + 1}, "population"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            fl.AggregationPlan(1.0, 1.0, sampling, **options)
    fixed = Uniform(4, 12)
    assert PublicSize.choose(None, fixed, 12).adjacency(fixed, None) == Adjacency.REPLACE_ONE


@pytest.mark.parametrize("size", [1, 10**12])
def test_a_public_size_far_from_the_truth_costs_accuracy_alone(tmp_path, size):
    plan = fl.AggregationPlan(1.0, 1.0, Full(), public_size=size)
    assert plan.charge.contributions == SECRET_CAPACITY
    rows = torch.eye(30)
    with Ledger.open(tmp_path / "a.ledger", Budget(50, 1e-5)) as ledger:
        mean = fl.privatize(rows, plan, ledger).double() * size
    assert mean.norm() < 4 * 60**0.5
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own
