"""Teams that share a ledger of a database: their rights, their quotas, and requests for approval.

Rule 1: a right is a grant of the database to a role that exists there. Nothing here makes a role or
knows a password.
Rule 2: the role that logs in decides which team pays. A quota caps what the team's runs have spent
and hold, read by the adaptive bound alone at the budget's delta.
Rule 3: a request is checked when it is approved, and charged in the same transaction. The role that
asked cannot approve it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from dpacct import validate
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.postgres.store import PostgresEntries, Store
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record.events import schedule_from_json, schedule_to_json
from dpacct.ledger.record.plans import PAIRS, schedule_of
from dpacct.rounds import AccountantName, Release, Schedule

Right = Literal["reader", "requester", "writer", "approver", "none"]
RIGHTS: tuple[Right, ...] = get_args(Right)
_READ = ("USAGE ON SCHEMA {s}", "SELECT ON ALL TABLES IN SCHEMA {s}")
_ASK = "EXECUTE ON FUNCTION {s}.ask"
_WRITE = (_ASK, "EXECUTE ON FUNCTION {s}.take, {s}.append")
_GRANTS: dict[Right, tuple[str, ...]] = {
    "reader": _READ,
    "requester": (*_READ, _ASK),
    "writer": (*_READ, *_WRITE),
    "approver": (*_READ, *_WRITE, "EXECUTE ON FUNCTION {s}.approve"),
    "none": (),
}
_ALL = (
    "ALL ON SCHEMA {s}",
    "ALL ON ALL TABLES IN SCHEMA {s}",
    "ALL ON ALL FUNCTIONS IN SCHEMA {s}",
)
T = TypeVar("T")


class Team(NamedTuple):
    """A team: its quota, or None, and the epsilon of what its runs have spent and hold."""

    team: str
    quota: float | None
    epsilon: float


class Request(NamedTuple):
    """A request for releases that waits for approval, or was approved."""

    id: int
    team: str
    name: str
    schedule: Schedule
    accountant: AccountantName
    part: str
    asked_by: str
    asked_at: datetime
    approved_by: str | None


class Organization:
    """The teams of a ledger, by `Ledger.organization`.

    Raises:
        LedgerError: (each method) the ledger is a file, the role lacks the right, or the database
            cannot be reached.
    """

    def __init__(self, store: object, charge: Callable[..., Any]) -> None:
        if not isinstance(store, Store):
            raise LedgerError("teams need a ledger in a database: postgresql://HOST/DATABASE#NAME.")
        self._store, self._charge = store, charge

    def grant(self, role: str, right: Right, teams: Sequence[str] = ()) -> tuple[str, ...]:
        """Give a role of the database one right to this ledger, in place of earlier ones.

        Args:
            role: a person, or a group of which persons are members.
            right: ``reader`` reads, verifies and exports. ``requester`` may ask. ``writer`` charges
                for its teams. ``approver`` also approves what others ask, charges for any team, and
                records rounds beyond the budget. ``none`` takes all rights away.
            teams: of a writer or requester. Default: one team with the name of the role.
        Returns:
            The teams.
        """
        if right not in RIGHTS:
            raise InvalidParameter("right", right, f"a right is one of {', '.join(RIGHTS)}")
        named = tuple(validate.line("team", team, "the name of a team") for team in teams) or (
            role,
        )
        paid = {"writer": named, "requester": named, "approver": ("",)}.get(right, ())
        schema, to = f'"{self._store.address.schema}"', '"' + role.replace('"', '""') + '"'

        def change(_rows: PostgresEntries) -> None:
            for what in _ALL:
                self._store.execute(f"REVOKE {what.format(s=schema)} FROM {to}")
            for what in _GRANTS[right]:
                self._store.execute(f"GRANT {what.format(s=schema)} TO {to}")
            self._store.execute("DELETE FROM members WHERE role = ?", (role,))
            for team in paid:
                self._store.execute("INSERT INTO members VALUES (?, ?)", (role, team))

        self._store.write(change)
        return paid

    def set_quota(self, team: str, epsilon: float) -> None:
        """Cap the epsilon of a team from now on. What it has spent stays spent.

        Raises:
            InvalidParameter: epsilon is not a number of at least 0.
        """
        cap = validate.real("epsilon", epsilon, "a quota is a number")
        if not 0.0 <= cap < float("inf"):
            raise InvalidParameter("epsilon", epsilon, "a quota is at least 0, and finite")
        values = (validate.line("team", team, "the name of a team"), Decimal(repr(cap)))
        query = "INSERT INTO quotas (team, epsilon) VALUES (?, ?)"
        self._store.write(lambda _: self._store.execute(query, values))

    def teams(self) -> list[Team]:
        """Return all teams that have a quota, a member, or a run."""
        query = (
            "SELECT team, (SELECT epsilon FROM quotas AS q WHERE q.team = u.team ORDER BY id DESC "
            "LIMIT 1), total FROM (SELECT team FROM quotas UNION SELECT team FROM members UNION "
            "SELECT team FROM teams) AS u LEFT JOIN teams USING (team) WHERE team <> '' "
            "ORDER BY team"
        )

        def action(rows: PostgresEntries) -> list[Team]:
            opening = cast("chain.Opening", chain.read(rows.entry(1)))
            mixture, delta = opening.mixture, opening.budget.delta
            return [
                Team(team, None if cap is None else float(cap),
                     mixture.epsilon(tuple(map(int, total)), delta) if total else 0.0)
                for team, cap, total in self._store.execute(query).fetchall()
            ]  # fmt: skip

        return self._store.read(action)

    def request(
        self,
        name: str,
        rounds: Schedule | Release,
        *,
        team: str = "",
        accountant: AccountantName = PAIRS,
        part: str = "",
    ) -> int:
        """Ask for releases, and return the number of the request. Nothing is charged yet."""
        plan = schedule_to_json(schedule_of("rounds", rounds))
        named = validate.line("name", name, "the name of a run")
        said = {"name": named, "plan": plan, "accountant": accountant, "part": part}
        # Should the answer be lost, the same text is the same request.
        text = json.dumps({"key": secrets.token_hex(8)} | said)
        return self._store.call("SELECT ask(?, ?)", team, text)

    def requests(self) -> list[Request]:
        """Return all requests, the earliest first, without texts that are none."""
        query = "SELECT id, team, text, asked_by, asked_at, approved_by FROM requests ORDER BY id"
        rows = self._store.read(lambda _: self._store.execute(query).fetchall())
        found: list[Request] = []
        for row in rows:
            # Any role that may ask has written it, and shall not keep others from approval.
            with suppress(LedgerError, InvalidParameter):
                found.append(_request(*row))
        return found

    def approve(self, number: int) -> Any:
        """Charge what another role asked for, and return the run.

        Raises:
            BudgetExceeded: it does not fit into the budget or the quota. The request still waits.
        """
        asked = {request.id: request for request in self.requests()}.get(number)
        if asked is None or asked.approved_by is not None:
            by = "there is no such request" if asked is None else f"{asked.approved_by} approved it"
            raise InvalidParameter("request", number, by)
        details = {"request": number, "requested_by": asked.asked_by}
        with self._store.beginning("SELECT approve(?)", (number,)):
            return self._charge(
                asked.name, asked.schedule, project=asked.team, part=asked.part,
                accountant=asked.accountant, details=details,
            )  # fmt: skip


def _request(
    number: int, team: str, text: str, by: str, at: datetime, approved: str | None
) -> Request:
    with chain.reading():
        said = json.loads(text)
        schedule = schedule_from_json(said["plan"])
        name, part = validate.line("name", said["name"], "a name"), str(said["part"])
        return Request(number, team, name, schedule, said["accountant"], part, by, at, approved)
