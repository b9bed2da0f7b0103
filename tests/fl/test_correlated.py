"""Correlated noise in training: its rows, its one charge, its cohorts, and what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import Budget, fl
from dpacct.correlated import (
    Correlated,
    Strategy,
    banded,
    buffered_toeplitz,
    independent,
    square_root,
)
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.correlated import NoiseStream, row_norm
from dpacct.fl.privacy.randomness import Randomness, Seeded
from dpacct.ledger import Ledger
from tests.fl.problems import federation, flat, goes_on, linear, make_clients, pause, play

CPU = torch.device("cpu")
ROUNDS = 12
CLIENTS = make_clients((4,) * ROUNDS)
BUFFERS = [(0.3, 0.9), (0.1, 0.5)]
STRATEGIES = {
    "independent": independent(ROUNDS),
    "banded": square_root(ROUNDS, 4),
    "full": square_root(ROUNDS),
    "buffers": buffered_toeplitz(ROUNDS, BUFFERS),
    "uneven": banded(np.tril(np.random.default_rng(3).uniform(0.1, 1.0, (ROUNDS, ROUNDS)))),
}
COHORTS = {
    "cyclic": fl.Cyclic(4),
    "queue": fl.MinSeparation(3, 4, cohort=3),
    "full": fl.Full(),
    "drawn": fl.Cyclic(4, sampling_rate=0.5),
}


def correlated(strategy: Strategy = STRATEGIES["banded"], **options: Any) -> fl.Federation:
    """A run of twelve clients in four groups."""
    settings: dict[str, Any] = {"sampling": fl.Cyclic(4), "noise_multiplier": 4.0, "delta": 1e-5}
    settings |= {"noise": fl.CorrelatedNoise(strategy), "rounds": strategy.rounds}
    model = options.pop("model", None) or linear()
    return federation(model, options.pop("clients", CLIENTS), **(settings | options))


def served(**options: Any) -> fl.Server:
    """A server of the same rounds."""
    return fl.Server(
        linear(), 12, noise=fl.CorrelatedNoise(STRATEGIES["banded"]), sampling=fl.Cyclic(4),
        rounds=ROUNDS, noise_multiplier=4.0, clip_norm=1.0, **options,
    )  # fmt: skip


def stream_of(strategy: Strategy, size: int = 7) -> NoiseStream:
    """Rows of a fixed seed."""
    return NoiseStream.start(strategy, Seeded(1), size, CPU)


# The rows


@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_times_the_strategy_are_independent(name: str):
    """Seeded rows W with C W = Z: by numpy, from the row source alone."""
    strategy, size = STRATEGIES[name], 4000
    stream, rows = stream_of(strategy, size), list[np.ndarray]()
    for t in range(ROUNDS):
        assert len(stream.save()["memory"]) <= strategy.memory
        rows.append(stream.take(t).numpy())
    fresh = strategy.matrix() @ np.stack(rows)
    assert np.abs(fresh @ fresh.T / size - np.eye(ROUNDS)).max() < 6 / math.sqrt(size)
    # The released noise has the covariance of C^{-1}, and not that of independent rows.
    inverse = np.linalg.inv(strategy.matrix())
    norms = np.sqrt(np.diag(inverse @ inverse.T))
    assert np.allclose(norms, [row_norm(strategy, t) for t in range(ROUNDS)])
    gap = np.abs(np.cov(rows, bias=True) - inverse @ inverse.T) / np.outer(norms, norms)
    assert gap.max() < 6 / math.sqrt(size)


def test_noise_of_the_models_cancels():
    """The running sum has the error that the strategy claims, below that of independent noise."""
    n, size = 200, 500
    for strategy in (square_root(n, 20), buffered_toeplitz(n, BUFFERS)):
        stream = stream_of(strategy, size)
        sums = np.cumsum([stream.take(t).numpy() for t in range(n)], axis=0)
        found = math.sqrt(float(np.square(sums).mean()))
        assert found == pytest.approx(strategy.prefix_error(1.0), rel=0.1)
        assert found < independent(n).prefix_error(1.0)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_a_saved_stream_goes_on_to_the_bit(name: str, at: int):
    strategy = STRATEGIES[name]
    whole = stream_of(strategy)
    rows = [whole.take(t).clone() for t in range(ROUNDS)]
    stream = stream_of(strategy)
    for t in range(at):
        stream.take(t)
    again = stream_of(strategy).restored(stream.save())
    later = min(at + 2, ROUNDS - 1)
    again.skip_to(later)
    for t in range(later, ROUNDS):
        assert torch.equal(again.take(t), rows[t])


def test_a_row_is_taken_once_and_in_its_place():
    stream = stream_of(STRATEGIES["banded"])
    stream.take(0)
    for row in (0, 2):
        with pytest.raises(Unsupported, match="another round"):
            stream.take(row)
    stream.skip_to(ROUNDS)
    with pytest.raises(Unsupported, match="12 is next"):
        stream.take(ROUNDS)
    with pytest.raises(InvalidParameter, match="rows of 4 numbers"):
        stream_of(STRATEGIES["banded"], 4).restored(stream.save())


# The cohorts


@given(
    st.one_of(
        st.builds(fl.Cyclic, st.integers(1, 9)),
        st.builds(fl.MinSeparation, st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)),
    ),
    st.integers(1, 30),
    st.integers(1, 40),
)
def test_cohorts_keep_their_promise(cohorts: Any, num_clients: int, rounds: int):
    try:
        separation, participations = cohorts.participation(rounds, num_clients)
    except InvalidParameter:
        return
    turns: dict[int, list[int]] = {client: [] for client in range(num_clients)}
    for row in range(rounds):
        members = cohorts.members(row, num_clients, Randomness())
        assert len(set(members)) == len(members)
        assert abs(len(members) - cohorts.cohort_size(num_clients)) < 1
        for client in members:
            turns[client].append(row)
    for own in turns.values():
        assert len(own) <= participations
        assert all(later - earlier >= separation for earlier, later in pairwise(own))


# The charge


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cohorts", COHORTS)
@pytest.mark.parametrize("name", ["banded", "buffers", "uneven"])
def test_one_charge_is_that_of_the_schedule_item(name: str, cohorts: str, tmp_path: Path):
    rule, strategy = COHORTS[cohorts], STRATEGIES[name]
    drawn = cohorts == "drawn"
    if drawn and strategy.bands > 4:
        with pytest.raises(InvalidParameter, match="amplify only"):
            correlated(strategy, sampling=rule)
        return
    run = correlated(strategy, sampling=rule, ledger=tmp_path / "ledger")
    separation = {"cyclic": 4, "queue": 3, "full": 1, "drawn": 4}[cohorts]
    item = Correlated(
        4.0,
        strategy,
        min_separation=separation,
        sampling=fl.Poisson(0.5) if drawn else None,
        adjacency="zero-out",
    )
    assert run.schedule == 1 * item
    whole = dpacct.epsilon(1 * item, delta=1e-5)
    for report in run:
        # All of it, from the first round on.
        assert report.epsilon.upper == pytest.approx(whole.upper, rel=1e-6)
        assert report.epsilon.upper >= whole.lower
    run.close()
    with Ledger.open(tmp_path / "ledger") as ledger:
        [entry] = ledger.runs
        assert entry.latest_row == ROUNDS
        assert entry.finished
        assert entry.rounds == entry.committed == (3 if drawn else 1)
        assert ledger.upper_epsilon() == pytest.approx(whole.upper, rel=1e-6)
        assert ledger.verify().sound


@pytest.mark.parametrize("cohorts", COHORTS)
@pytest.mark.parametrize("adjacency", [None, "replace-one"])
def test_a_budget_is_met(cohorts: str, adjacency: str | None):
    options = {"noise_multiplier": None, "budget": Budget(2, 1e-5), "adjacency": adjacency}
    if cohorts == "drawn" and adjacency:
        with pytest.raises(Unsupported, match="replace-one"):
            correlated(sampling=COHORTS[cohorts], **options)
        return
    run = correlated(sampling=COHORTS[cohorts], **options)
    assert 1.9999 < run.planned_epsilon.upper <= 2
    assert next(iter(run)).epsilon.upper <= 2


def test_nothing_of_the_charge_is_given_back_and_no_plan_goes_beyond_the_budget(tmp_path: Path):
    run = correlated(ledger=tmp_path / "ledger", checkpoint=tmp_path / "run")
    planned = run.planned_epsilon.upper
    next(iter(run))
    run.account.finish()
    run.close()
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.upper_epsilon() == planned
    with Ledger.open(tmp_path / "small", Budget(1, 1e-5), adjacency="zero-out") as ledger:
        with pytest.raises(BudgetExceeded):
            correlated(ledger=ledger).run()
        assert (ledger.rounds, ledger.runs) == (0, ())
    with pytest.raises(BudgetExceeded, match="all its rounds"):
        correlated(budget=Budget(1, 1e-5), delta=None).run()


# Training


def test_releases_are_the_rows():
    """With contributions of zero, the model's moves times the strategy are independent noise."""
    strategy, released = STRATEGIES["banded"], list[np.ndarray]()
    zero = type("Zero", (fl.DPFedAvg,), {"local_update": lambda _, delta, *__: 0.0 * delta})()
    people = make_clients((2,) * 12, 2000, 2)
    run = correlated(strategy, method=zero, model=linear(2000, 2), clients=people)
    for report in run:
        released.append(run.state.released.double().numpy() * 3)
        expected = 4.0 * row_norm(strategy, report.round - 1)
        assert report.noise_std == pytest.approx(expected, rel=1e-9)
    fresh = strategy.matrix() @ np.stack(released)
    covariance = fresh @ fresh.T / fresh.shape[1]
    assert np.abs(covariance - 16 * np.eye(ROUNDS)).max() < 16 * 6 / math.sqrt(fresh.shape[1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cohorts", ["cyclic", "queue", "drawn"])
@pytest.mark.parametrize("name", ["banded", "buffers", "uneven"])
def test_a_resumed_run_is_the_same_to_the_bit(name: str, cohorts: str, tmp_path: Path):
    strategy, path = STRATEGIES[name], tmp_path / "run"
    if cohorts == "drawn" and strategy.bands > 4:
        return
    options: dict[str, Any] = {"sampling": COHORTS[cohorts], "seed": 1}
    _, again = goes_on(lambda path: correlated(strategy, checkpoint=path, **options), path, 5)
    assert path.stat().st_mode & 0o077 == 0
    assert again.has_private_checkpoint


def test_a_resume_with_another_strategy_or_other_cohorts(tmp_path: Path):
    pause(correlated(checkpoint=tmp_path / "run"), 1)
    for other in (
        {"strategy": square_root(ROUNDS, 3)},
        {"sampling": fl.Cyclic(3)},
        {"clients": make_clients((4,) * 16)},
        {"noise": fl.GaussianNoise(), "sampling": fl.Full()},
    ):
        fresh = correlated(checkpoint=tmp_path / "run", **other)
        with fresh, pytest.raises((InvalidParameter, LedgerError), match="setting"):
            fresh.resume()


def test_an_older_checkpoint_takes_no_row_again(tmp_path: Path):
    """Rows that were released after the checkpoint are skipped, with the turns of their clients."""
    path = tmp_path / "run"
    with correlated(checkpoint=path) as run:
        play(run, 1)
        old = path.read_bytes()
        play(run, 4)
    path.write_bytes(old)
    again = correlated(checkpoint=path).resume()
    assert again.round == 1
    rows, opens = list[Any](), again.open

    def opened():
        rows.append(opens())
        return rows[-1]

    again.open = opened
    again.run()
    assert [each.draw.members for each in rows] == [range(row % 4, 12, 4) for row in range(4, 12)]
    assert "are used" in str(again.stopped_because)
    again.close()


def test_two_processes_share_no_row(tmp_path: Path):
    run = correlated(checkpoint=tmp_path / "run")
    next(iter(run))
    other = correlated(checkpoint=tmp_path / "run").resume()
    opened = run.open()
    opened.merge(run.collect(opened.draw))
    taken = other.open()
    assert (opened.draw.members, taken.draw.members) == (range(1, 12, 4), range(2, 12, 4))
    before = flat(run.model)
    with pytest.raises(LedgerError, match="another process"):
        opened.release()
    assert torch.equal(before, flat(run.model))
    taken.release()
    run.close()
    other.close()


def test_a_round_left_open_is_lost_with_its_row():
    run = correlated()
    run.begin()
    left, taken = run.open(), run.open()
    with pytest.raises(Unsupported, match="row 1 of the noise where row 2"):
        left.release()
    taken.release()
    assert run.open().draw.members == range(2, 12, 4)


def test_the_server_refuses_a_client_that_comes_too_early(tmp_path: Path):
    server = served(checkpoint=tmp_path / "run")
    for opened in server:
        row = opened.number - 1
        zeros = opened.bound(torch.zeros(1, server.engine.layout.size))
        with pytest.raises(InvalidParameter, match="is not in round"):
            opened.add([(row + 1) % 4], zeros)
        # Client `row % 4` answers, the rest of its group drops out and has used its turn.
        opened.add([row % 4], zeros)
        with pytest.raises(InvalidParameter, match="has contributed"):
            opened.add([row % 4], zeros)
        opened.release()
        if opened.number == 6:
            break
    server.close()
    with served(checkpoint=tmp_path / "run").resume() as again:
        numbers = [(list(opened.cohort), opened.release())[0] for opened in again]
    assert numbers == [list(range(row % 4, 12, 4)) for row in range(6, 12)]


def test_examples_in_a_fixed_order():
    """DP-SGD: steps of an epoch are groups, and the privacy unit is an example."""
    data = make_clients((36,))[0]
    run = correlated(clients=fl.Examples(data), local=None, sampling=fl.Cyclic(4), server_lr=0.1)
    reports = list(run)
    assert len(reports) == ROUNDS
    assert reports[-1].unit == "example"
    assert {report.diagnostics.cohort_size for report in reports} == {9}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(fl.METHODS))
def test_every_private_method_trains(name: str):
    run = correlated(method=fl.METHODS[name]())
    before = flat(run.model).clone()
    assert play(run, 3).epsilon.upper < 3
    assert not torch.equal(before, flat(run.model))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rounds": 11}, "rounds"),
        ({"rounds": 13}, "rounds"),
        ({"sampling": None}, "sampling"),
        ({"sampling": fl.Poisson(0.5)}, "sampling"),
        ({"sampling": fl.Uniform(3, 12)}, "sampling"),
        ({"sampling": fl.Cyclic(13)}, "groups"),
        ({"sampling": fl.MinSeparation(5, 4, cohort=3)}, "separation"),
        ({"sampling": fl.MinSeparation(3, 2, cohort=3)}, "participations"),
        ({"public_size": 12}, "public_size"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"noise_multiplier": None}, "budget"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"secure_noise": True}, "secure_noise"),
    ],
)
def test_bad_input(options: dict[str, Any], name: str):
    with pytest.raises(InvalidParameter) as refused:
        correlated(**options)
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip_norm": lambda number: 1.0 / number}, "changing clip norm"),
        ({"bound": fl.AdaptiveClip(1.0)}, "changing clip norm"),
        (
            {
                "schedule": 12 * dpacct.Round(1.0), "sampling": None, "noise_multiplier": None,
                "rounds": None,
            },
            "schedule",
        ),
    ],
)  # fmt: skip
def test_refused_with_the_reason(options: dict[str, Any], words: str):
    with pytest.raises(Unsupported, match=words):
        correlated(**options)


def test_what_does_not_go_together_is_refused():
    def build(clients: Any) -> fl.Federation:
        groups = fl.Cyclic(len(clients))
        return correlated(square_root(9), model=linear(60), clients=clients, sampling=groups)

    people, noise = make_clients((4,) * 8, 60), fl.CorrelatedNoise(STRATEGIES["full"])
    for call, words in (
        (lambda: fl.audit_run(build, people, canaries=40, error=0.05), "all rounds together"),
        (lambda: federation(linear(), CLIENTS, sampling=fl.Cyclic(4)), "CorrelatedNoise"),
        (lambda: fl.AggregationPlan(1.0, 1.0, num_clients=12, noise=noise), r"fl\.Server"),
    ):
        with pytest.raises(Unsupported, match=words):
            call()
    with pytest.raises(InvalidParameter, match="strategy"):
        fl.CorrelatedNoise(np.eye(3))  # type: ignore[arg-type]
