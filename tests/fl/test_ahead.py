"""Rounds reserved ahead: kill -9 at every stage loses the round it was in, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, fl
from dpacct.errors import InvalidParameter
from dpacct.fl.engine import run as run_module
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.federation import Federation
from dpacct.ledger import Ledger, Run, Ticket
from tests.fl.problems import (
    KILLED,
    federation,
    flat,
    forked,
    killer,
    linear,
    make_clients,
    pause,
    play,
)  # fmt: skip

ROUNDS, AHEAD = 10, 4
CLIENTS = make_clients((3,) * 6)
POISSON = fl.Poisson(0.5)
TWO = 5 * dpacct.Round(1.0, POISSON, "zero-out") + 5 * dpacct.Round(2.0, POISSON, "zero-out")
PLANS = {
    "equal": {"rounds": ROUNDS, "noise_multiplier": 1.0, "sampling": POISSON},
    "two": {"schedule": TWO, "rounds": None, "noise_multiplier": None, "sampling": None},
}


def run_of(folder: Path, plan: str = "equal", **options: Any) -> fl.Federation:
    settings = {"checkpoint": folder / "run", "ahead": AHEAD, **PLANS[plan], **options}
    return federation(linear(), CLIENTS, **settings)


def in_a_process(folder: Path, plan: str, prepare: Any) -> int:
    """Start or resume the run in a process of its own. Each release is logged as it leaves."""

    def act() -> None:
        move = Rounds.write_model

        def logged(run: Any) -> None:
            # The commit is on disk, and the noisy value is about to reach the model.
            if run.state.released is not None and run.account.saved().committed:
                with (folder / "log").open("a") as file:
                    position, committed = run.account.position, run.account.saved().committed
                    noise = run.engine.plan.noise_multiplier
                    file.write(json.dumps([position, committed, noise]) + "\n")
            move(run)

        Rounds.write_model = logged
        prepare()
        with run_of(folder, plan) as run:
            if (folder / "run").exists():
                run.resume()
            for _ in run:
                pass

    return forked(act)


# What is killed, at which call, and whether before or behind it. The first reservation holds rounds
# 1 to 4, so that round 3 is taken ahead, and round 5 is reserved with others.
STAGES = {
    "before the first reservation": (Run, "reserve", 1, False),
    "reserved": (Run, "reserve", 1, True),
    "before the next reservation": (Run, "reserve", 5, False),
    "reserved again": (Run, "reserve", 5, True),
    "taken": (Run, "reserve", 3, True),
    "drawn": (Ticket, "draw", 3, True),
    "training": (Federation, "collect", 3, False),
    "noise added": (Engine, "release", 5, True),
    "before its commit": (Ticket, "commit", 3, False),
    "committed": (Ticket, "commit", 3, True),
    "model moved": (Rounds, "write_model", 3, True),
    "in the checkpoint": (run_module, "write_checkpoint", 4, False),
    "behind the checkpoint": (run_module, "write_checkpoint", 4, True),
    "at the end": (Run, "finish", 1, False),
}
# At most one round is lost: that in which the process was, or which it would have drawn next.
NOTHING_LOST = ["before the first reservation", "before the next reservation", "at the end"]
BEYOND = ["committed", "model moved", "in the checkpoint"]  # committed, and not in the checkpoint


@pytest.mark.needs("posix")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("plan", PLANS)
def test_a_killed_run_loses_one_round_at_most_and_releases_none_twice(
    plan: str, stage: str, tmp_path: Path
) -> None:
    owner, name, calls, after = STAGES[stage]
    assert in_a_process(tmp_path, plan, killer(owner, name, calls, after=after)) == KILLED
    with Ledger.open(tmp_path / "run.ledger", read_only=True) as ledger:
        charged = ledger.runs[0].rounds
    # What left was charged before.
    log = tmp_path / "log"
    assert len(log.read_text().splitlines() if log.exists() else []) <= charged
    assert in_a_process(tmp_path, plan, lambda: None) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lost = 0 if stage in NOTHING_LOST else 1
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        [run] = ledger.runs
        released = ROUNDS - (lost if stage not in BEYOND else 1)
        assert (run.rounds, run.committed, run.held, run.on_plan) == (ROUNDS, released, 0, True)
        assert ledger.verify().sound
        # The whole plan is spent, not more, and the lower end counts what was released.
        whole = dpacct.epsilon(run.plan, delta=1e-5)
        assert run.epsilon().upper == pytest.approx(whole.upper, rel=1e-9)
        assert run.epsilon().lower <= whole.lower
        assert (run.epsilon().lower == whole.lower) is (released == ROUNDS)
    # Each place of the plan is released once at most, in its order, with the noise of the place.
    places = [place for place, _, _ in lines]
    assert places == sorted(set(places))
    assert all(noise == (2.0 if plan == "two" and at > 5 else 1.0) for at, _, noise in lines)


def test_the_report_counts_what_ran_and_the_ledger_what_is_reserved(tmp_path: Path) -> None:
    alone = run_of(tmp_path / "..", ahead=1, checkpoint=None, ledger=tmp_path / "alone")
    with run_of(tmp_path) as run, alone:
        for ours, theirs in zip(run, alone, strict=True):
            assert ours.epsilon == theirs.epsilon
            assert run.epsilon == alone.epsilon
            with Ledger.open(tmp_path / "run.ledger", read_only=True) as ledger:
                reserved = ledger.runs[0].rounds
                assert reserved in (4, 8, 10)
                assert ledger.runs[0].committed == ours.round <= reserved
        kept = [entry["kind"] for entry in Ledger.open(tmp_path / "run.ledger").export()]
        assert (kept.count("reserve"), kept.count("abandon")) == (3, 0)


def test_a_run_that_is_closed_gives_back_what_it_did_not_use(tmp_path: Path) -> None:
    """Resumed, also in the same process, it plays all its rounds, with bits of a run one by one."""
    with run_of(tmp_path, ahead=1, seed=3, checkpoint=None) as whole:
        whole.run()
    pause(run_of(tmp_path, seed=3), 2)
    with Ledger.open(tmp_path / "run.ledger", read_only=True) as ledger:
        assert (ledger.rounds, ledger.runs[0].committed) == (2, 2)
    with run_of(tmp_path, seed=3, ahead=3).resume() as run:
        play(run, 4)
        run.resume()
        assert run.run().round == ROUNDS
        assert run.stopped_because is None
    assert flat(run.model).equal(flat(whole.model))
    with Ledger.open(tmp_path / "run.ledger", read_only=True) as ledger:
        assert (ledger.rounds, ledger.runs[0].committed, ledger.verify().sound) == (10, 10, True)


def test_after_an_error_of_a_client_nothing_ahead_is_taken_that_a_crash_could_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_of(tmp_path) as run:
        play(run, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "collect", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run.play()
        [own] = run.account._ledger.runs  # type: ignore[union-attr]
        assert (own.rounds, own.committed) == (4, 1)
        play(run, 2)
        # The lost one, two that ran: the others were given back, and the next was reserved alone.
        assert (own.rounds, own.committed, own.held) == (3, 2, 7)
        assert run.run().round == ROUNDS - 1


def test_epsilon_counts_places_of_the_plan_that_are_lost_without_a_round(tmp_path: Path) -> None:
    """Rounds that are given back behind another process's round leave their places unused."""
    plan = 5 * dpacct.Round(4.0, POISSON, "zero-out") + 5 * dpacct.Round(1.0, POISSON, "zero-out")
    with run_of(tmp_path, "two", schedule=plan) as run:
        play(run, 1)
        with Ledger.open(tmp_path / "run.ledger") as other:
            other.runs[0].reserve(plan.phases[0].round).commit()
        run.resume()
        next(iter(run))
        # Two rounds of the first phase and one of the second ran.
        ran = 2 * plan.phases[0].round + 1 * plan.phases[1].round
        assert run.account.spent_so_far()().upper >= dpacct.epsilon(ran, delta=1e-5).lower
        position = run.account.position
        run.account.finish()
        assert run.account.position == position == 6


@pytest.mark.parametrize(
    "options",
    [
        {"bound": fl.AdaptiveClip(1.0, indicator_noise=3.0)},
        {"clip_norm": lambda round_: 1.0 / round_},
        {"sampling": fl.Allocation(5)},
    ],
    ids=["adaptive", "by round", "epochs"],
)
def test_rounds_that_are_not_alike_cannot_be_reserved_ahead(tmp_path: Path, options: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"^ahead is 4; .* Leave it out"):
        run_of(tmp_path, **options)
    run_of(tmp_path, ahead=1, **options).close()


def test_an_own_loop_and_privatize_reserve_ahead_too(tmp_path: Path) -> None:
    server = fl.Server(
        linear(), 6, clip_norm=1.0, noise_multiplier=2.0, rounds=5, sampling=POISSON,
        ledger=tmp_path / "server", ahead=5,
    )  # fmt: skip
    with server:
        reports = [opened.release() for opened in server]
    plan = fl.AggregationPlan(noise_multiplier=2.0, clip_norm=1.0, num_clients=6)
    with Ledger.open(tmp_path / "own", Budget(20, 1e-5)) as ledger:
        run = ledger.start_run("own", 5 * plan.round, ahead=5)
        for _ in range(5):
            fl.privatize(flat(linear()).expand(2, -1), plan, run)
        assert len(reports) == run.committed == 5
    for name in ("server", "own"):
        with Ledger.open(tmp_path / name, read_only=True) as ledger:
            assert [entry["kind"] for entry in ledger.export()].count("reserve") == 1
            assert ledger.verify().sound
