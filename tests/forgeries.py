"""Ledgers that somebody changed who knows the chain: every hash fits, and what it covers does not.

A forger may write any text into any entry and link the chain anew. Nothing here keeps such a file
from being opened; it must be read as what it says, or refused in one line.
"""

from __future__ import annotations

import copy
import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import DpacctError
from dpacct.ledger import Event, Release
from dpacct.ledger.disk.rows import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from dpacct.ledger.record import entries as chain

ROUND = Round(1.3, Poisson(0.1))
BUDGET = Budget(8, 1e-5)
# Rounds at the ends of what is allowed, as they stand in an entry, and some beyond.
EXTREME: tuple[dict[str, Any], ...] = tuple(
    {"noise_multiplier": noise, "adjacency": "add-remove"} | sampling
    for noise in (1e-3, 0.05, 1.3, 9.0, 1e10, 1e11, 0.0)
    for sampling in (
        {"sampling": "full"},
        {"sampling": "poisson", "sampling_rate": 1e-150},
        {"sampling": "poisson", "sampling_rate": 1e-9},
        {"sampling": "poisson", "sampling_rate": 0.5},
        {"sampling": "poisson", "sampling_rate": 1.0},
        {"sampling": "uniform", "cohort_size": 1, "num_clients": 10**30},
        {"sampling": "uniform", "cohort_size": 10**30, "num_clients": 10**30},
        {"sampling": "uniform", "cohort_size": 2, "num_clients": 1},
    )
)


class Raw(str):
    """Text that stands in an entry as it is, JSON or not."""

    __slots__ = ()


# What somebody may put in the place of any value.
EVIL: tuple[Any, ...] = (
    None, True, False, "", "x", "1", "nan", [], {}, [[]], [None], {"x": 1}, 0, 1, -1, 2, 3, 0.0,
    -0.0, 0.5, 1.0, -1.5, 1e-320, 5e-324, 1e308, -1e308, 2**31, 2**63, 2**64, 2**70, 10**30,
    10**400, -(10**400), 1 << 199, 1 << 200, 1 << 201, 1 << 520, 10**12, 10**12 + 1, 1e-5, 8.0,
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e400"), Raw("1" * 5000),
    Raw('{"x":1,"x":2}'), Raw("[" * 3000 + "]" * 3000), Raw("["), Raw("1 "), Raw('"\u00e9"'),
    "\ud800", "\x1b[31mred\x1b[0m", "a\nb\r\u2028c", "\u202eback", "\x00", "y" * 20_000,
    "2026-01-01", "2026-13-45T99:99:99.000000+00:00", "poisson", "uniform", "full", "add-remove",
    "replace-one", "zero-out", "reserve", "commit", "run", "finish",
    {"noise_multiplier": 9.0, "sampling": "full", "adjacency": "add-remove"},
    [{"rounds": 10**12, "noise_multiplier": 9.0, "sampling": "full", "adjacency": "add-remove"}],
    [1.0] * 11, [0] * 11, [-1] * 11, ["0"] * 11, [1 << 210] * 11,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the file: the parsed text, and what stands beside it."""

    content: Any
    closes: Any


def _everyone(path: Path) -> None:
    """Full participation, which composes exactly and quickly: of everything a little."""
    round_, other = Round(9.0), Round(12.0)
    event = Event(round_, (Release("update", 9.5), Release("count", 30.0, 0.5)), {"lr": [1]})
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", 3 * event.charged + 2 * other, details={"a": {"b": 1}})
        run.reserve(event).commit({"loss": 0.5})
        run.reserve(event).abandon("nothing drawn")
        ledger.start_run("chosen").reserve(other).commit()
        ledger.resume_run(1).reserve(other).commit()
        run.reserve(Round(8.0))
        run.finish()
        ledger.start_run("late", 4 * other).reserve(other).commit()


def _part_of_a_plan(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("given up", 3 * Round(9.0)).finish()
        run = ledger.start_run("planned", 9 * Round(9.0))
        for noise in (9.0, 9.0, 9.5, 9.0):
            run.reserve(Round(noise)).commit()
        run.finish()


def _elsewhere(path: Path) -> None:
    with Ledger.open(path, Budget(1, 1e-5)) as ledger:
        ledger.start_run("here").reserve(Round(9.0)).commit()
        ledger.charge("there", 9 * Round(9.0), over_budget=True)


# Ledgers to be forged; reading one takes milliseconds.
QUICK = (_everyone, _part_of_a_plan, _elsewhere)


def read(path: Path) -> list[Row]:
    """All lines of a ledger."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT text, closes FROM entries ORDER BY number").fetchall()
    connection.close()
    return [Row(json.loads(text), closes) for text, closes in rows]


def text_of(content: Any) -> str:
    """The text of an entry; what is `Raw` in it stands there as it is."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(str(value))
            return f"\x01raw{len(raws) - 1}\x01"
        if isinstance(value, dict):
            return {key: marked(part) for key, part in value.items()}
        if isinstance(value, list):
            return [marked(part) for part in value]
        return value

    text = json.dumps(marked(content), sort_keys=True, separators=(",", ":"))
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001raw{number}\\u0001"', raw)
    return text


def put(path: Path, data: bytes) -> None:
    """A file with these bytes, and nothing beside it that remembers another one."""
    for beside in path.parent.glob(f"{path.name}*"):
        beside.unlink()
    path.write_bytes(data)


def write(path: Path, rows: list[Row]) -> None:
    """A ledger file of these lines, every hash as it must be."""
    put(path, b"")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    for statement in SCHEMA:
        connection.execute(statement)
    previous = chain.GENESIS
    for number, row in enumerate(rows, 1):
        text = text_of(row.content)
        previous = chain.link(previous, text)
        # A forger keeps the index in step with the text, as far as SQLite takes it.
        stated = row.content if isinstance(row.content, dict) else {}
        line = (
            _column(stated.get("number"), number), _column(stated.get("run"), 0),
            _column(stated.get("kind"), "x"), row.closes, text, previous,
        )  # fmt: skip
        connection.execute(
            "INSERT OR IGNORE INTO entries (number, run, kind, closes, text, hash) "
            "VALUES (?, ?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?)",
            tuple(v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in line),
        )
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
    connection.close()


def _column(value: Any, fallback: Any) -> Any:
    """A value for a column, or what stands there otherwise."""
    if type(value) is not type(fallback):
        return fallback
    return value if isinstance(value, str) or -(2**63) <= value < 2**63 else fallback


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a JSON value."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        yield (key,)
        for place in places(part):
            yield (key, *place)


def near(value: Any, dice: random.Random) -> Any:
    """Another value of the same type."""
    if type(value) is bool:
        return not value
    if type(value) is int:
        return dice.choice([value + 1, value - 1, value // 2, 2 * value, -value, 0])
    if type(value) is float:
        return dice.choice([2 * value, value / 2, value * 1.001, value * 0.999, -value, 0.0])
    if type(value) is str:
        return dice.choice([value + "x", value[:-1], value.upper()])
    if type(value) is list and value:
        index = dice.randrange(len(value))
        changed = [value[:index] + value[index + 1 :], [*value, value[index]], value[::-1]]
        if all(type(part) in (int, float) for part in value):
            changed += [[part // 2 for part in value], [2 * part for part in value]]
        return dice.choice(changed)
    return dice.choice(EVIL)


def forge(rows: list[Row], dice: random.Random) -> list[Row]:
    """The same ledger with one to three changes; entries are not only dropped from its end."""
    forged = copy.deepcopy(rows)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        index = dice.randrange(len(forged))
        row = forged[index]
        what = dice.choices(("move", "closes", "value", "round", "part"), (14, 6, 2, 8, 70))[0]
        if what == "move":
            _move(forged, index, dice)
        elif what == "closes":
            closes = dice.choice([None, 1, 4, 5, 99, -1, 2.5, "x", b"\xff", row.closes])
            forged[index] = Row(row.content, closes)
        elif what == "round":
            _extreme(dice.choice(forged).content, dice)
        elif what == "value":
            forged[index] = Row(dice.choice(EVIL), row.closes)
        else:
            _change(row.content, dice)
    return forged


def _move(forged: list[Row], index: int, dice: random.Random) -> None:
    """Drop an entry, double it, or change places with another; most are numbered anew."""
    what = dice.choice(("drop", "double", "swap"))
    if what == "drop" and 0 < index < len(forged) - 1:
        del forged[index]
    elif what == "double":
        forged.insert(index, copy.deepcopy(forged[index]))
    else:
        other = dice.randrange(len(forged))
        forged[index], forged[other] = forged[other], forged[index]
    for number, moved in enumerate(forged, 1):
        if isinstance(moved.content, dict) and dice.random() < 0.97:
            moved.content["number"] = number


def _extreme(content: Any, dice: random.Random) -> None:
    """Another round, or plan, or budget, that is allowed or nearly."""
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        return
    if "charged" in data:
        data["charged"] = dict(dice.choice(EXTREME))
    elif "plan" in data:
        rounds = dice.choice((1, 2, 1000, 10**12))
        phases = dice.choice((1, 1, 2, 30))
        data["plan"] = [{"rounds": rounds} | dice.choice(EXTREME) for _ in range(phases)]
    elif "budget" in data:
        epsilon, delta = dice.choice((1e-300, 0.1, 8.0, 1e308)), dice.choice((1e-300, 1e-5, 0.999))
        data["budget"] = {"epsilon": epsilon, "delta": delta}
        if dice.random() < 0.5:
            content["state"]["ledger"]["delta"] = delta
        if dice.random() < 0.3:
            data["orders"] = dice.choice(([1.00001] * 11, [1e7] * 11, [2.0], [1.5, 2.0]))


def _change(content: Any, dice: random.Random) -> None:
    found = list(places(content))
    if not found:
        return
    # Totals, orders and weights are lists of many numbers; each key gets its chance.
    listed = {"spent", "held", "orders", "weights"}
    place = dice.choice(
        [p for p in found if not listed.intersection(p[:-1]) or dice.random() < 0.05] or found
    )
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    key = place[-1]
    what = dice.random()
    if what < 0.1:
        del holder[key]
    elif what < 0.2 and isinstance(holder, dict):
        holder[dice.choice(["extra", "", "\ud800", "x" * 300, "Spent"])] = dice.choice(EVIL)
    elif what < 0.6:
        holder[key] = near(holder[key], dice)
    else:
        holder[key] = copy.deepcopy(dice.choice(EVIL))


def uses(path: Path, names: Iterable[str] = ()) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that can be asked of a file, and done with it."""
    for name in names or _USES:

        def use(name: str = name) -> object:
            with Ledger.open(path, read_only=name not in WRITING) as ledger:
                return _USES[name](ledger)

        yield name, use


def _through_runs(ledger: Ledger) -> object:
    return [
        (r.epsilon(), r.upper_epsilon(), r.guarantee, r.rounds, r.committed, repr(r), r.on_plan,
         r.finished, r.nominal_epsilon(), r.on_plan and r.planned_epsilon())
        for r in ledger.runs
    ]  # fmt: skip


_USES: dict[str, Callable[[Ledger], Any]] = {
    "open": lambda ledger: (ledger.rounds, ledger.adjacency, ledger.head, ledger.guarantee),
    "verify": lambda ledger: ledger.verify(),
    "epsilon": lambda ledger: (ledger.epsilon(), ledger.upper_epsilon()),
    "summary": lambda ledger: ledger.summary(),
    "report": lambda ledger: ledger.report(),
    "markdown": lambda ledger: ledger.report_markdown(),
    "html": lambda ledger: ledger.report_html(),
    "export": lambda ledger: [json.dumps(entry) for entry in ledger.export()],
    "remaining": lambda ledger: ledger.remaining(Round(5.0, Poisson(0.1), ledger.adjacency)),
    "remaining as plan": lambda ledger: ledger.remaining_as_plan(
        Round(5.0, Poisson(0.1), ledger.adjacency)
    ),
    "runs": _through_runs,
    "start": lambda ledger: ledger.start_run("x", 2 * Round(9.0, Poisson(0.01), ledger.adjacency)),
    "resume": lambda ledger: ledger.resume_run(1),
    "reserve": lambda ledger: ledger.resume_run(1).reserve(ROUND).commit(),
    "reserve other": lambda ledger: ledger.resume_run(2).reserve(ROUND).abandon("so"),
    "finish": lambda ledger: ledger.runs[0].finish(),
}
WRITING = ("start", "resume", "reserve", "reserve other", "finish")


def outcome(use: Callable[[], object]) -> tuple[object, str]:
    """What a use gave, or the one line in which it was refused.

    Raises:
        Exception: anything but a refusal of the library's own.
    """
    try:
        return use(), ""
    except DpacctError as error:
        return None, str(error) or "without words"
