"""The database checks the theorem itself: a client whose arithmetic lies spends nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.postgres_server import Server
from dpacct import (
    ApproximateDP,
    Budget,
    BudgetExceeded,
    Laplace,
    Ledger,
    LedgerError,
    Poisson,
    Round,
)
from dpacct.ledger.postgres.address import Address
from dpacct.ledger.postgres.store import PostgresEntries
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.entries import Entry, canonical, digest_of, link
from dpacct.ledger.record.plans import PlanRoom
from dpacct.renyi.odometer import Mixture, design_mixture, times
from ledgers import BUDGET, ROUND, play

LOUD = Round(0.8, Poisson(0.5))


def ask(server: Server, address: str, query: str, *values: object, user: str = "owner") -> Any:
    """The first value of a statement of somebody without this library."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(server.url(user)) as connection:
        connection.execute(f'SET search_path = "{Address.parse(address).schema}"')
        return connection.execute(query, values).fetchone()[0]


@given(
    epsilon=st.floats(0.05, 50),
    delta=st.floats(-14, -2).map(lambda power: 10**power),
    noise=st.floats(0.5, 20),
    rate=st.floats(-3, 0).map(lambda power: 10**power),
    rounds=st.integers(1, 2000),
)
def test_the_inequality_is_that_of_the_odometer(
    server: Server, tmp_path_factory: pytest.TempPathFactory,
    epsilon: float, delta: float, noise: float, rate: float, rounds: int,
):  # fmt: skip
    mixture = design_mixture(Budget(epsilon, delta))
    total = times(rounds, mixture.cost(Round(noise, Poisson(rate))))
    reading = mixture.epsilon(total, delta)
    address = f"{server.url()}#{tmp_path_factory.mktemp('same').name}"
    Ledger.open(address, Budget(epsilon, delta)).close()

    def proves(most: float) -> bool:
        values = [Decimal(part) for part in total], Decimal(repr(most)), Decimal(repr(delta))
        return ask(server, address, "SELECT proves(%s, %s, %s)", *values)

    assert proves(reading)
    assert not proves(reading * (1 - 1e-9))


@pytest.fixture
def believes() -> Iterator[pytest.MonkeyPatch]:
    """A client for which everything fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "fits", lambda *_: True)
        patch.setattr("dpacct.ledger.writing.exceeds", lambda *_: False)
        yield patch


@pytest.mark.usefixtures("believes")
@pytest.mark.parametrize(
    "spend",
    [
        lambda ledger: ledger.charge("x", 50 * LOUD),
        lambda ledger: play(ledger.start_run("x"), LOUD, 50),
        lambda ledger: ledger.start_run("x", 50 * LOUD),
        lambda ledger: ledger.charge("x", 100 * Laplace(epsilon=2.0)),
        lambda ledger: ledger.charge("x", ApproximateDP(epsilon=0.1, delta=1e-5)),
    ],
)
def test_a_client_that_checks_nothing_does_not_overspend(
    address: str, spend: Callable[[Ledger], object]
):
    with Ledger.open(address, BUDGET, promised_delta=1e-6) as ledger:
        ledger.charge("first", ROUND)
        with pytest.raises(BudgetExceeded, match="the database refuses"):
            spend(ledger)
        assert ledger.upper_epsilon() <= BUDGET.epsilon
        assert ledger.verify().sound


@pytest.mark.parametrize("at_once", [True, False])
def test_nor_does_its_first_plan(address: str, believes: pytest.MonkeyPatch, *, at_once: bool):
    """Without a share of delta that the other accountants need, the database checks it too."""
    room = PlanRoom(True, 1e-5, 0.0, 0.0)
    believes.setattr("dpacct.ledger.writing.plan_room", lambda *_: room)
    with Ledger.open(address, BUDGET) as ledger:
        with pytest.raises(BudgetExceeded, match="the database refuses"):
            ledger.charge("x", 500 * LOUD) if at_once else ledger.start_run("x", 500 * LOUD)
        assert ledger.runs == ()


def test_pure_releases_beside_a_tight_plan_end_where_condition_b_ends(
    address: str, believes: pytest.MonkeyPatch
):
    with Ledger.open(address, Budget(2.0, 1e-5)) as ledger:
        # Delta is divided: the plan meets the budget by the tight accountant alone.
        plan = ledger.start_run("plan", 100 * Round(2.3, Poisson(0.1)))
        play(plan, Round(2.3, Poisson(0.1)), 1)
        count = 0
        with contextlib.suppress(BudgetExceeded):
            while count < 200:
                ledger.charge("pure", Laplace(epsilon=0.01))
                count += 1
        assert 0 < count < 200
        believes.undo()
        assert ledger.verify().sound
        assert ledger.remaining(Laplace(epsilon=0.01)) == 0


Change = Callable[[dict[str, Any], dict[str, Any]], None]


def less(which: str, place: int = 0) -> Change:
    def change(ledger: dict[str, Any], run: dict[str, Any]) -> None:
        for state in (ledger, run):
            state[which][place] -= 10**9

    return change


def of_ledger(**values: object) -> Change:
    return lambda ledger, _run: ledger.update(values)


def of_run(**values: object) -> Change:
    return lambda _ledger, run: run.update(values)


def only_one(which: str) -> Change:
    def change(ledger: dict[str, Any], _run: dict[str, Any]) -> None:
        ledger[which][3] -= 1

    return change


LIES = {
    "spent less": less("spent"),
    "spent less by masses": less("spent", -5),
    "spent less beside the plans": less("spent", -2),
    "held less than nothing": less("held"),
    "another sum of what is spent": only_one("spent"),
    "another sum of what is held": only_one("held"),
    "not started": of_ledger(started=False),
    "more delta": of_ledger(delta=1e-4),
    "another division": of_ledger(delta=1e-6, plan_delta=9e-6),
    "more promises": of_ledger(promised_delta=1e-5),
    "another kind of plan": lambda _ledger, run: run.update(planned=not run["planned"]),
    "an initial plan": of_run(initial=True),
    "totals of another length": lambda ledger, run: (ledger["spent"].pop(), run["spent"].pop()),
    "no totals": lambda ledger, run: (ledger.pop("spent"), run.pop("spent")),
    "no numbers": lambda _ledger, run: run["spent"].__setitem__(0, None),
    "no finite numbers": lambda *both: [one["spent"].__setitem__(0, "NaN") for one in both],
}


def lying(monkeypatch: pytest.MonkeyPatch, kind: str, change: Change) -> None:
    """Let the client write other totals behind entries of a kind, with digest and hash."""
    honest = PostgresEntries.add

    def add(self: PostgresEntries, entry: Entry, totals: str | None) -> None:
        if entry.kind == kind and totals is not None:
            state = json.loads(totals)
            change(state["ledger"], state["run"])
            totals = canonical(state)
            text = canonical(json.loads(entry.text) | {"d": digest_of(totals)})
            entry = replace(entry, text=text)
            entry = replace(entry, hash=link(self.head().hash, entry))
        honest(self, entry, totals)

    monkeypatch.setattr(PostgresEntries, "add", add)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("kind", ["reserve", "charge"])
def test_a_client_that_adds_wrongly_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str, lie: str, kind: str
):
    with Ledger.open(address, BUDGET) as ledger:
        ledger.charge("first", Laplace(epsilon=0.1))
        run, before = ledger.start_run("x"), ledger.position
        lying(monkeypatch, kind, LIES[lie])
        with pytest.raises(LedgerError):
            ledger.charge("y", ROUND) if kind == "charge" else run.reserve(ROUND)
        assert ledger.position == before
        assert ledger.verify().sound


@pytest.mark.parametrize("kind", ["commit", "finish", "resume", "abandon", "row"])
def test_nor_does_an_entry_without_a_charge_give_anything_back(
    monkeypatch: pytest.MonkeyPatch, address: str, kind: str
):
    with Ledger.open(address, BUDGET) as ledger:
        run = ledger.start_run("x", 3 * ROUND)
        ticket = run.reserve(ROUND)
        steps: dict[str, Callable[[], object]] = {
            "commit": ticket.commit,
            "finish": run.finish,
            "resume": lambda: ledger.resume_run(run.id),
            "abandon": lambda: ticket.abandon("a test"),
            "row": run.take_row,
        }
        lying(monkeypatch, kind, less("spent"))
        with pytest.raises(LedgerError, match="too low"):
            steps[kind]()
        assert ledger.verify().sound


def test_no_round_costs_less_than_nothing_and_no_kind_belongs_to_a_run(address: str):
    with Ledger.open(address, BUDGET) as ledger:
        run = ledger.start_run("x", 3 * ROUND)
        run.reserve(ROUND).commit()
        state, now = run.totals(), ledger._file.now()
        ((kind, _),), zero = state.released, now.mixture.zero()
        data = {"k": kind, "s": 1, "cost": [-part for part in state.spent]}
        less = now.state._replace(spent=zero), state._replace(spent=zero)
        again = {key: value for key, value in now.entry(kind).data.items() if key != "t"}
        before = ledger.position
        with pytest.raises(LedgerError, match="less than nothing"):
            ledger._file.write(lambda opened: opened.append("reserve", run.id, data, less))
        with pytest.raises(LedgerError, match="of no run"):
            ledger._file.write(lambda opened: opened._add("kind", 2, again))
        assert ledger.position == before


def test_a_round_is_settled_once_by_its_own_run(address: str, monkeypatch: pytest.MonkeyPatch):
    with Ledger.open(address, BUDGET) as ledger:
        run, other = ledger.start_run("x"), ledger.start_run("y")
        ticket = run.reserve(ROUND)
        monkeypatch.setattr(PostgresEntries, "is_closed", lambda *_: False)
        ticket.commit()
        reservation = ticket._reservation
        for wrong in (reservation, reservation._replace(run=other.id)):
            with pytest.raises(LedgerError):
                ledger._file.write(lambda opened, wrong=wrong: opened.abandon(wrong, "again"))
        assert (ledger.verify().sound, run.rounds) == (True, 1)


def test_a_lie_about_a_cost_is_found_by_verify(address: str, monkeypatch: pytest.MonkeyPatch):
    with Ledger.open(address, BUDGET) as ledger:
        honest = Mixture.cost
        cheap = lambda self, round_: tuple(part // 2 for part in honest(self, round_))  # noqa: E731
        monkeypatch.setattr(Mixture, "cost", cheap)
        play(ledger.start_run("x"), ROUND, 2)
        monkeypatch.setattr(Mixture, "cost", honest)
        assert not ledger.verify().sound


ROLES = {
    "outsider": "none",
    "auditor": "reader",
    "asker": "requester",
    "teammate": "writer",
    "lead": "approver",
}
DEEDS = [
    "DELETE FROM entries",
    "UPDATE entries SET text = '{}'",
    "TRUNCATE entries",
    "ALTER TABLE entries DISABLE TRIGGER ALL",
    "DROP TABLE entries",
    "INSERT INTO entries (number, run, kind, text, hash) VALUES (99, 1, 'commit', '{}', '\\x00')",
    "UPDATE head SET number = 1",
    "UPDATE states SET text = '{}'",
    "UPDATE terms SET epsilon = 100",
    "DELETE FROM teams",
    "UPDATE teams SET total = '{}'",
    "INSERT INTO members VALUES (current_user, '')",
    "INSERT INTO quotas (team, epsilon) VALUES ('teammate', 100)",
    "DELETE FROM quotas",
    "UPDATE requests SET approved_by = 'lead'",
    "CREATE FUNCTION x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION take() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "SELECT admit(h, 2, 1, 'row', NULL, '{}', '{}', NULL) FROM head AS h",
]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_changes_what_is_written(server: Server, address: str, role: str):
    psycopg = pytest.importorskip("psycopg")
    server.psql(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")
    with Ledger.open(address, BUDGET) as ledger:
        ledger.charge("x", ROUND)
        ledger.organization.grant(role, ROLES[role])  # pyright: ignore[reportArgumentType]
        with psycopg.connect(server.url(role), autocommit=True) as connection:
            connection.execute(f'SET search_path = "{Address.parse(address).schema}"')
            for deed in DEEDS:
                with pytest.raises(psycopg.Error):
                    connection.execute(deed)
            # Tables of its own do not stand in for those of the ledger.
            connection.execute("CREATE TEMP TABLE head AS SELECT 0 AS number, '\\x'::bytea AS hash")
            connection.execute(
                "CREATE TEMP TABLE members AS SELECT current_user AS role, '' AS team"
            )
            with pytest.raises(psycopg.Error):
                connection.execute("SELECT append(1, 0, 'kind', NULL, '{}', '\\x', NULL, NULL)")
        assert ledger.verify().sound
        ledger.organization.grant(role, "none")
        server.psql(f"DROP ROLE {role}")


def test_nor_does_the_owner_by_mistake(server: Server, address: str):
    with Ledger.open(address, BUDGET) as ledger:
        ledger.charge("x", ROUND)
        schema = Address.parse(address).schema
        for deed in DEEDS[:3]:
            with pytest.raises(RuntimeError, match="never changed"):
                server.psql(deed, schema=schema)
        # What an owner does on purpose is found.
        server.psql("UPDATE terms SET epsilon = 100", schema=schema)
        assert "another budget" in ledger.verify().problems[0]


def test_each_transaction_pins_its_settings(server: Server, address: str):
    psycopg = pytest.importorskip("psycopg")
    Ledger.open(address, BUDGET).close()
    with psycopg.connect(server.url(), options="-c synchronous_commit=off") as connection:
        connection.execute(f'SET search_path = "{Address.parse(address).schema}"')
        connection.execute("SELECT take()")
        names = ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout")
        found = [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]
        assert found == ["on", "1min", "30s"]
