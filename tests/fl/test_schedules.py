"""Runs whose noise, sampling, clip norm and learning rates change by round."""

from __future__ import annotations

import re
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import dpacct
from dpacct import Budget, Full, Ledger, Poisson, Round, Uniform, fl
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.rounds import Schedule
from tests.fl import problems

DELTA = 1e-5
ZERO_OUT = "zero-out"
PLAN = (
    2 * Round(2.0, Poisson(0.5), ZERO_OUT)
    + 1 * Round(1.5, Poisson(0.25), ZERO_OUT)
    + 2 * Round(3.0, Full(), ZERO_OUT)
)


def clients(count: int = 8) -> list[fl.ClientData]:
    return [fl.ClientData(torch.ones(2, 3), torch.ones(2, 4)) for _ in range(count)]


def federation(plan: Schedule | None, **keywords: Any) -> fl.Federation:
    torch.manual_seed(0)
    keywords = {"clip_norm": 0.5, "delta": DELTA, "local": fl.SGD(steps=1)} | keywords
    if "budget" in keywords:
        del keywords["delta"]
    keywords = {"rounds": None, "noise_multiplier": None, "sampling": None} | keywords
    return problems.federation(nn.Linear(3, 4), clients(), mse_loss, schedule=plan, **keywords)


def test_a_schedule_is_charged_as_planned_and_stands_in_the_ledger(tmp_path: Path) -> None:
    file = tmp_path / "a.ledger"
    with federation(PLAN, ledger=file) as run:
        reports = list(run)
        assert [report.noise_multiplier for report in reports] == [2.0, 2.0, 1.5, 3.0, 3.0]
        assert [round(report.noise_std, 9) for report in reports] == [1.0, 1.0, 0.75, 1.5, 1.5]
        exact = dpacct.epsilon(PLAN, delta=DELTA)
        assert run.epsilon.upper == pytest.approx(exact.upper, rel=1e-9)
        assert run.epsilon.lower == pytest.approx(exact.lower, rel=1e-9)
        assert run.planned_epsilon.upper == pytest.approx(exact.upper, rel=1e-9)
        # Each report says what was spent up to then.
        first = dpacct.epsilon(2 * Round(2.0, Poisson(0.5), ZERO_OUT), delta=DELTA)
        assert reports[1].epsilon.upper == pytest.approx(first.upper, rel=1e-9)
    with Ledger.open(file, read_only=True) as ledger:
        assert ledger.runs[0].plan == PLAN
        assert ledger.runs[0].on_plan


@pytest.mark.parametrize(
    ("sampling", "cohorts", "public_size"),
    [
        ([Full(), Poisson(0.5)], [8, 4], None),
        ([Poisson(1.0), Full()], [8, 8], None),
        ([Full(), Poisson(0.5)], [80, 40], 80),
    ],
)
def test_the_sum_is_divided_by_the_cohort_of_its_round(sampling, cohorts, public_size) -> None:
    # Every client moves each coordinate alike; next to no noise is drawn.
    adjacency = ZERO_OUT if public_size is None else "add-remove"
    plan = sum((Round(1e-3, scheme, adjacency) for scheme in sampling), Schedule([]))
    with federation(plan, public_size=public_size, clip_norm=0.1, delta=0.5) as run:
        for report in run:
            expected = 0.1 * report.diagnostics.cohort_size / cohorts[report.round - 1]
            found = float(run.state.released.norm())
            assert found == pytest.approx(expected, rel=0.02, abs=1e-3)


def test_a_budget_scales_the_noise_of_all_rounds() -> None:
    with federation(PLAN, budget=Budget(3.0, DELTA)) as run:
        found = dpacct.calibrate(schedule=PLAN, epsilon=3.0, delta=DELTA).schedule
        assert run.schedule == found
        run.run()
        assert 2.99 < run.epsilon.upper <= 3.0


def test_a_plan_that_does_not_fit_into_its_ledger_is_refused_before_anything_is_drawn(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.ledger"
    with (
        Ledger.open(file, Budget(0.5, DELTA), adjacency=ZERO_OUT) as ledger,
        federation(PLAN, ledger=ledger) as run,
    ):
        with pytest.raises(BudgetExceeded):
            run.run()
        assert ledger.rounds == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schedule": 5}, "a schedule is a sum of rounds"),
        ({"schedule": Schedule()}, "at least one round"),
        ({"schedule": PLAN, "rounds": 4}, "the schedule has 5 rounds"),
        ({"schedule": PLAN, "sampling": Full()}, "sampling"),
        ({"schedule": PLAN, "noise_multiplier": 1.0}, "noise_multiplier"),
        ({"schedule": PLAN, "adjacency": "replace-one"}, "charged under zero-out"),
        ({"schedule": 2 * Round(1.0, Poisson(0.5))}, "public_size"),
        ({"schedule": 2 * Round(1.0, Uniform(2, 9))}, "there are 8 clients"),
        ({"schedule": None}, "rounds"),
        ({"schedule": PLAN, "clip_norm": lambda number: 2.0 - number}, "clip_norm is 0.0"),
        ({"schedule": PLAN, "clip_norm": lambda norms: norms.median()}, "which is public"),
        ({"schedule": PLAN, "server_lr": lambda _: "x"}, "server_lr"),
        ({"schedule": PLAN, "local": fl.SGD(lr=lambda _: -1.0)}, "lr is -1.0"),
    ],
)
def test_what_contradicts_a_schedule_is_refused(settings: dict[str, Any], words: str) -> None:
    given = {"clip_norm": 0.5, "local": fl.SGD(steps=1)} | settings
    with pytest.raises(InvalidParameter) as error:
        fl.Federation(nn.Linear(3, 4), mse_loss, clients(), **given)
    assert words in str(error.value)


def test_clip_norms_change_by_round_and_cost_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.ledger"
    norms = {1: 0.5, 2: 0.25, 3: 1.0, 4: 0.125, 5: 0.5}
    with federation(PLAN, clip_norm=norms.__getitem__, ledger=file) as run:
        reports = list(run)
        assert [report.clip_norm for report in reports] == list(norms.values())
        for report in reports:
            noise = report.noise_multiplier * norms[report.round]
            assert report.noise_std == pytest.approx(noise, rel=1e-9)
        assert run.epsilon.upper == dpacct.epsilon(PLAN, delta=DELTA).upper


def trained(settings: dict[str, Any]) -> list[list[float]]:
    """The model after each of four rounds with next to no noise."""
    plan = 4 * Round(1e-3, Full(), ZERO_OUT)
    given = {"delta": 0.5, "clip_norm": 1e-2} | settings
    with federation(plan, **given) as run:
        start = run.model.weight.detach().clone()
        assert isinstance(start, torch.Tensor)
        return [(run.model.weight.detach() - start).flatten().tolist() for _ in run]


def test_learning_rates_change_by_round() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        halved = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        moves = [trained({"server_lr": lr}) for lr in (halved, lambda number: 2.0 ** (1 - number))]
    for found in moves:
        sizes = [torch.tensor(move).norm() for move in found]
        steps = torch.tensor([1.0, 0.5, 0.25, 0.125]).cumsum(0)
        assert torch.allclose(torch.stack(sizes) / sizes[0], steps, rtol=0.02)
    # The scheduler of the caller stays where it is.
    assert halved.get_last_lr() == [1.0]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(InvalidParameter, match="metric"):
        federation(PLAN, local=fl.SGD(lr=plateau))


def test_local_learning_rates_reach_the_clients() -> None:
    # Without a bound in reach a client's update is proportional to its learning rate, and the
    # noise is the same, by the seed.
    moves: list[torch.Tensor] = []
    for rate in (lambda number: 1e-1 / number, lambda number: 2e-1 / number, 3e-1):
        local = fl.SGD(lr=rate, steps=1, batch_size=None)
        given = {"clip_norm": 100.0, "delta": 0.999, "local": local, "seed": 1}
        with federation(1 * Round(1e-3, Full(), ZERO_OUT), **given) as run:
            before = run.model.weight.detach().clone()
            run.run()
            moves.append(run.model.weight.detach() - before)
    assert torch.allclose(moves[2] - moves[1], moves[1] - moves[0], atol=1e-5)
    assert float((moves[1] - moves[0]).norm()) > 1e-2


def test_a_seeded_schedule_resumed_is_bit_for_bit(tmp_path: Path) -> None:
    local = fl.SGD(lr=lambda number: 0.1 / number, steps=1)

    def build(path: Path | None) -> fl.Federation:
        norms = {"clip_norm": lambda number: 0.5 / number}
        return federation(PLAN, seed=3, checkpoint=path, local=local, **norms)

    problems.goes_on(build, tmp_path / "run.pt", after=2)
    with build(tmp_path / "other.pt") as run:
        list(islice(run, 3))
    with build(tmp_path / "other.pt").resume() as run:
        assert run.noise_multiplier == 3.0
        assert run.bound.clip_norm == 0.5 / 4


def test_a_round_that_a_crash_lost_keeps_its_place_in_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "run.checkpoint"
    with federation(PLAN, checkpoint=file) as run:
        list(islice(run, 1))
        saved = file.read_bytes()
        list(islice(run, 1))
    # The second round is in the ledger, and its checkpoint is lost.
    file.write_bytes(saved)
    with federation(PLAN, checkpoint=file) as run:
        run.resume()
        reports = list(run)
        assert [report.noise_multiplier for report in reports] == [1.5, 3.0, 3.0]
        assert [report.round for report in reports] == [2, 3, 4]
        assert run.epsilon.upper == dpacct.epsilon(PLAN, delta=DELTA).upper
        assert run.stopped_because is not None
        with pytest.raises(BudgetExceeded, match=re.escape(run.stopped_because)):
            run.run()


def test_another_schedule_does_not_go_on(tmp_path: Path) -> None:
    file = tmp_path / "run.checkpoint"
    with federation(PLAN, checkpoint=file) as run:
        list(islice(run, 3))
    for other in (PLAN.scale_noise(1.1), Round(2.0, Full(), ZERO_OUT) + PLAN):
        with federation(other, checkpoint=file) as run, pytest.raises(InvalidParameter):
            run.resume()


def server(plan: Schedule, **keywords: Any) -> fl.Server:
    return fl.Server(nn.Linear(3, 4), 8, schedule=plan, clip_norm=0.5, delta=DELTA, **keywords)


def test_a_server_plays_a_schedule_and_loses_its_open_round(tmp_path: Path) -> None:
    file = tmp_path / "run.checkpoint"
    with server(PLAN, checkpoint=file) as run:
        for opened in run:
            if opened.number == 3:
                break
            opened.release()
    with server(PLAN, checkpoint=file) as run:
        run.resume()
        seen = [opened.release().noise_multiplier for opened in run]
        # The third round was reserved and not released: it stays spent in its place.
        assert seen == [3.0, 3.0]
        assert run.epsilon.upper == dpacct.epsilon(PLAN, delta=DELTA).upper


def test_a_report_leaves_rounds_that_released_nothing_out_of_its_lower_end() -> None:
    kind = Round(2.0, Poisson(0.5), ZERO_OUT)
    with server(4 * kind) as run:
        rounds = iter(run)
        next(rounds)  # It stays spent, and releases nothing.
        reports = [next(rounds).release() for _ in range(2)]
        # Read once more has run: two rounds are charged, and one is released.
        assert reports[0].epsilon.lower == dpacct.epsilon(1 * kind, delta=DELTA).lower
        assert reports[0].epsilon.upper == dpacct.epsilon(2 * kind, delta=DELTA).upper


def test_noise_shares_of_clients_elsewhere_take_equal_rounds_alone() -> None:
    plan = 2 * Round(2.0, Uniform(4, 8)) + Round(3.0, Uniform(4, 8))
    with pytest.raises(Unsupported, match="agree on one noise"):
        server(plan, noise=fl.NoiseShares(2))
    with pytest.raises(Unsupported, match="agree on one noise"):
        fl.Server(
            nn.Linear(3, 4), 8, rounds=2, noise_multiplier=2.0, sampling=Uniform(4, 8),
            noise=fl.NoiseShares(2), clip_norm=lambda number: 1.0 / number,
        )  # fmt: skip


def test_clients_elsewhere_get_the_learning_rate_of_their_round() -> None:
    local = fl.SGD(lr=lambda number: 1.0 / number, lr_decay=0.5, steps=1)
    assert local.over(3).of_round(2) == fl.SGD(lr=0.25, steps=1)
    assert fl.SGD(lr=0.1, lr_decay=0.5).of_round(2) == fl.SGD(lr=0.1, lr_decay=0.5)


def test_cohorts_of_fixed_size_may_change_by_round() -> None:
    plan = Round(2.0, Uniform(2, 8)) + Round(2.0, Uniform(4, 8))
    with federation(plan, accountant="rdp") as run:
        assert [report.diagnostics.cohort_size for report in run] == [2, 4]
        assert run.schedule == plan


def test_examples_play_a_schedule() -> None:
    plan = 2 * Round(1.0, Poisson(0.5), ZERO_OUT) + Round(2.0, Poisson(0.25), ZERO_OUT)
    data = fl.Examples(torch.ones(16, 3), torch.ones(16, 4))
    with fl.Federation(
        nn.Linear(3, 4), mse_loss, data, schedule=plan, clip_norm=0.5, delta=DELTA
    ) as run:
        assert [report.noise_multiplier for report in run] == [1.0, 1.0, 2.0]
        assert run.epsilon.upper == dpacct.epsilon(plan, delta=DELTA).upper
