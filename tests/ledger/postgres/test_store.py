"""A ledger in a database says what a file says, and its address never shows a password."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.postgres_server import Server
from dpacct import (
    ApproximateDP,
    Budget,
    BudgetExceeded,
    InvalidParameter,
    Laplace,
    Ledger,
    LedgerError,
    Poisson,
    Round,
)
from dpacct.ledger.postgres.address import Address
from ledgers import BUDGET, ROUND, SMALL, WIDE, play

STRONG, PURE = Round(5.0, Poisson(0.1)), Laplace(epsilon=0.1)


def facts(ledger: Ledger) -> dict[str, Any]:
    """What a ledger says, without its place and its times."""
    found = {**ledger.summary(), "path": "", "head": "", "last_written": ""}
    return found | {"runs": [{**run, "started": "", "latest": ""} for run in found["runs"]]}


def give_up(ledger: Ledger) -> None:
    run = ledger.start_run("gives up", 2 * ROUND)
    run.reserve(ROUND).abandon("a test")
    run.reserve(PURE).abandon("a test")


def charge_parts(ledger: Ledger) -> None:
    ledger.charge("part", 3 * STRONG, part="country=DE")
    ledger.charge("part", 4 * STRONG, part="country=FR")


WAYS: dict[str, Callable[[Ledger], object]] = {
    "plan": lambda ledger: play(ledger.start_run("plan", 4 * ROUND), ROUND, 2),
    "loose": lambda ledger: play(ledger.start_run("loose"), STRONG, 2),
    "ahead": lambda ledger: ledger.start_run("ahead", 9 * ROUND).reserve(ROUND, ahead=5).commit(),
    "charge": lambda ledger: ledger.charge("elsewhere", 20 * STRONG, project="p"),
    "pure": lambda ledger: ledger.charge("pure", 5 * PURE),
    "abandon": give_up,
    "finish": lambda ledger: [run.finish() for run in ledger.runs if not run.finished],
    "promise": lambda ledger: ledger.charge("promise", ApproximateDP(epsilon=0.1, delta=1e-7)),
    "part": charge_parts,
}


def act(ledger: Ledger, action: str) -> str:
    """Do something, and return what was refused."""
    try:
        WAYS[action](ledger)
    except BudgetExceeded as refusal:
        return str(refusal)
    return ""


@settings(max_examples=max(4, settings.default.max_examples // 2))
@given(
    actions=st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=8),
    epsilon=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_a_database_says_what_a_file_says(
    server: Server, tmp_path_factory: pytest.TempPathFactory, actions: list[str], epsilon: float
):
    folder = tmp_path_factory.mktemp("same")
    given = {"promised_delta": 1e-6, "partitions": {"country": ["DE", "FR"]}}
    budget = Budget(epsilon, 1e-5)
    with (
        Ledger.open(folder / "a.ledger", budget, **given) as file,
        Ledger.open(f"{server.url()}#{folder.name}", budget, **given) as shared,
    ):
        for action in actions:
            one, other = (act(book, action).replace(str(book.path), "") for book in (file, shared))
            assert one == other.replace("'' ", " ").replace("''`", "`")
        assert facts(file) == facts(shared)
        assert shared.verify().problems == ()
        if file.remaining(PURE):
            assert shared.would_read(1 * PURE) == file.would_read(1 * PURE)


def test_opened_again_it_has_the_same_terms(address: str):
    with Ledger.open(address, BUDGET, unit="patient") as ledger:
        ledger.charge("x", ROUND)
    with Ledger.open(address, read_only=True) as again:
        assert (again.unit, again.rounds, str(again.path)) == ("patient", 1, address)
        with pytest.raises(LedgerError, match="reading only"):
            again.charge("x", ROUND)
    with pytest.raises(InvalidParameter, match="chosen once"):
        Ledger.open(address, WIDE)


def test_what_is_not_there_is_not_made_without_a_budget(address: str):
    with pytest.raises(LedgerError, match="no ledger can be opened"):
        Ledger.open(address)


def test_many_may_make_it_at_the_same_time(address: str):
    failures: list[BaseException] = []

    def make() -> None:
        try:
            Ledger.open(address, BUDGET).close()
        except BaseException as error:  # noqa: BLE001 - it is shown below
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Ledger.open(address) as ledger:
        assert ledger.position.entry == 1


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:hunter2@db.example/health?sslmode=require#census",
        "postgres://ann:hunter2@db.example:5433/health?password=hunter2#census",
        "postgresql://ann@db.example/health?sslpassword=hunter2#census",
    ],
)
def test_a_password_is_never_shown(text: str):
    address = Address.parse(text)
    assert "hunter2" in address.url
    for shown in (str(address), repr(address), address.without_secrets(f"no: {text}\n!")):
        assert "hunter2" not in shown
        assert shown.isprintable()
    assert "hunter2" not in str(address.state())


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:hunter2@db.example/health",
        "postgresql://ann:hunter2@db.example#census",
        "postgresql://ann:hunter2@db.example/health#Census; DROP",
        "postgresql://ann:hunter2@[db/health#census",
        "postgresql://ann:hunter2@127.0.0.1:1/health#census",
    ],
)
def test_nor_in_a_refusal(text: str):
    pytest.importorskip("psycopg")
    with pytest.raises((InvalidParameter, LedgerError)) as refusal:
        Ledger.open(text, BUDGET)
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_wrong_address_is_said_at_once(server: Server):
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(f"{server.url(database='nowhere')}#x", BUDGET)


def test_an_open_ledger_belongs_to_its_process_and_thread(address: str):
    with Ledger.open(address, WIDE) as ledger:
        run = ledger.start_run("x")
        ticket = run.reserve(SMALL)
        failures: list[str] = []

        def other() -> None:
            with pytest.raises(LedgerError) as refusal:
                run.reserve(SMALL)
            failures.append(str(refusal.value))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "another thread" in failures[0]
        with pytest.raises(LedgerError, match="copied"):
            pickle.dumps(ledger)
        if (child := os.fork()) == 0:
            try:
                run.reserve(SMALL)
            except LedgerError:
                ledger.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        # The child has not closed the connection of its parent.
        ticket.commit()
        assert ledger.verify().sound


def test_an_interrupted_call_leaves_no_lock(server: Server, address: str):
    psycopg = pytest.importorskip("psycopg")
    with Ledger.open(address, WIDE) as ledger, Ledger.open(address) as other:
        run = ledger.start_run("x")

        def interrupt(_signal: int, _frame: object) -> None:
            with pytest.raises(LedgerError, match="interrupted"):
                _ = ledger.rounds
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            # Another session holds the head.
            with psycopg.connect(server.url()) as holder:
                schema = Address.parse(address).schema
                holder.execute(f'SELECT "{schema}".take()')
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    run.reserve(SMALL)
        finally:
            signal.signal(signal.SIGALRM, before)
        play(other.resume_run(1), SMALL, 1)
        play(run, SMALL, 1)
        assert ledger.verify().sound


def test_a_machine_keeps_up_to_where_it_verified(address: str, state: Path):
    with Ledger.open(address, WIDE) as ledger:
        ledger.charge("x", 5 * SMALL)
        assert ledger.verify(keep=True).sound
        ledger.charge("y", 5 * SMALL)
        again = ledger.verify(all_entries=False, keep=True)
        assert (again.sound, again.rounds) == (True, 10)
        assert "verified before" in again.remarks[0]
    # What was kept is no proof, and is left out where it is damaged.
    (kept,) = state.glob("*.verified")
    kept.write_text("no")
    with Ledger.open(address, read_only=True) as ledger:
        assert ledger.verify(all_entries=False).remarks == ()
