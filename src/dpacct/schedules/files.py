"""Schedules as files: TOML, CSV and JSON with the same words.

Rule 1: a phase has ``rounds`` and ``noise_multiplier``, and describes its sampling by
``sampling_rate``, by ``cohort_size`` with ``num_clients``, or by neither (full participation).
Rule 2: ``sampling`` may name the scheme. It must agree with the keys of Rule 1.
Rule 3: ``adjacency`` belongs to the file (in CSV: the same in each row), never to one phase.
Rule 4: an unknown key is an error, since a misspelt key would change the charge.
Rule 5: a phase with ``mechanism`` is no round. It has ``rounds`` (by default 1) and the arguments
of that mechanism. `ITEMS` lists them by name.
Rule 6: `load_schedule` reads a file of `dump_schedule` back as an equal schedule, to the last bit.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, cast

from dpacct import validate
from dpacct.correlated.entries import ENTRY_KEYS, from_entry, to_entry
from dpacct.correlated.release import Correlated
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import InvalidParameter, located
from dpacct.mechanisms.names import BY_NAME
from dpacct.rounds import (
    Full,
    Phase,
    Poisson,
    Release,
    Round,
    Sampling,
    Schedule,
    Uniform,
    arguments,
    as_schedule,
)

# The sampling schemes by name. Each combination of keys that describes one has its constructor.
SCHEMES: dict[str, dict[tuple[str, ...], Callable[..., Sampling]]] = {
    "poisson": {("sampling_rate",): Poisson},
    "uniform": {
        ("cohort_size", "num_clients"): Uniform,
        ("sampling_rate",): Uniform.at_rate,
    },
    "full": {(): Full},
}
_SCHEME_KEYS = ("cohort_size", "num_clients", "sampling_rate")
# Of Poisson sampling, for users with several records and for truncated cohorts.
_POISSON_KEYS = ("records", "max_cohort")
_ROUND_KEYS = (
    "rounds", "noise_multiplier", "sampling", "sampling_rate", "cohort_size", "num_clients",
)  # fmt: skip
# An error lists so many keys at most.
_MOST_KEYS = 12
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
# The adjacency of a file and its phases, before any check.
_Content = tuple[Any, list[dict[str, Any]]]


class Item(NamedTuple):
    """How a file describes the releases of one kind.

    Attributes:
        kind: their class.
        keys: the keys of their phases, without ``rounds``, ``mechanism`` and the adjacency.
        read: returns the release that the values of such keys and an adjacency (or None) describe.
        write: returns the keys of a release with their values.
    """

    kind: type[Release]
    keys: tuple[str, ...]
    read: Callable[[dict[str, Any], Any], Release]
    write: Callable[[Any], dict[str, Any]]


def item_of(kind: type[Release]) -> Item:
    """Return the form of a dataclass whose arguments are numbers, texts, or lists of numbers."""
    parameters = dict(inspect.signature(kind).parameters)
    parameters.pop("adjacency")
    needed = [n for n, one in parameters.items() if one.default is inspect.Parameter.empty]

    def read(entry: dict[str, Any], adjacency: Any) -> Release:
        _check_present(entry, needed)
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] parsers return Any
        relation = {} if adjacency is None else {"adjacency": adjacency}
        return cast("Any", kind)(**given, **relation)

    # An argument that only helps to make the release is no field, and is not written.
    kept = [field.name for field in fields(cast("Any", kind)) if field.name in parameters]

    def write(release: Any) -> dict[str, Any]:
        values = {name: getattr(release, name) for name in kept}
        return {
            name: [*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value
            for name, value in values.items()
            if value not in ("", None)
        }

    return Item(kind, tuple(parameters), read, write)


# Releases beside the rounds, by the value of the key ``mechanism``.
ITEMS: dict[str, Item] = {
    **{name: item_of(kind) for name, kind in BY_NAME.items()},
    "allocation": item_of(Epoch),
    "shuffle": item_of(ShuffledEpoch),
    "correlated": Item(Correlated, ENTRY_KEYS, from_entry, to_entry),
}


def load_schedule(path: str | os.PathLike[str], *, adjacency: str | None = None) -> Schedule:
    """Return the schedule in a .toml, .csv or .json file.

    Args:
        path: of the file.
        adjacency: of a file that names none. Default: that of each sampling scheme.
    Raises:
        InvalidParameter: the file is missing, cannot be parsed, or breaks a rule above. The
            message names the file, the phase (from 1) and the key.
    """
    file = validate.file_path("path", path)
    parse, _ = _format_of(file)
    text = validate.file_text("schedule", file, "a schedule file")
    with located("schedule", file=str(file)):
        if not text.strip():
            rule = "it is empty, and a schedule has at least one phase"
            raise InvalidParameter("schedule", None, rule)
        try:
            relation, entries = parse(text)
        except InvalidParameter:
            raise
        except (ValueError, csv.Error, RecursionError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            rule = f"it is not valid {file.suffix[1:].upper()} ({reason})"
            raise InvalidParameter("schedule", None, rule) from None
        if not entries:
            raise InvalidParameter("schedule", None, "a schedule has at least one phase")
        phases: list[Phase] = []
        for number, entry in enumerate(entries, start=1):
            with located("schedule", f"in phase {number} "):
                phases.append(read_phase(entry, adjacency if relation is None else relation))
                # `Schedule` checks this as well, but cannot name the phase.
                Schedule([phases[0], phases[-1]])
        return Schedule(phases)


def dump_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a .toml, .csv or .json file that `load_schedule` reads back as an equal schedule.

    Raises:
        InvalidParameter: an unknown suffix, an empty schedule, or a file that cannot be written.
    """
    file = validate.file_path("path", path)
    schedule = as_schedule(schedule)
    _, write = _format_of(file)
    if not schedule.phases:
        rule = "a schedule file has at least one phase, and this schedule is empty"
        raise InvalidParameter("schedule", str(file), rule)
    try:
        file.write_text(write(schedule), encoding="utf-8", newline="\n")
    except OSError as error:
        rule = f"it cannot be written ({error.strerror or 'unknown reason'})"
        raise InvalidParameter("schedule", str(file), rule) from None


# A phase.


def read_phase(entry: dict[str, Any], adjacency: Any) -> Phase:
    """Return the phase with these keys and an adjacency (or None)."""
    if "mechanism" in entry:
        also = ("rounds", "mechanism")
        values = {key: value for key, value in entry.items() if key not in also}
        release = read_release(entry["mechanism"], values, adjacency, also)
    else:
        _check_keys(entry, (*_ROUND_KEYS, *_POISSON_KEYS, "mechanism"))
        _check_present(entry, ("rounds", "noise_multiplier"))
        release = Round(entry["noise_multiplier"], read_sampling(entry), adjacency)
    return Phase(release, validate.rounds(entry.get("rounds", 1)))


def read_release(
    name: object, values: dict[str, Any], adjacency: Any, also: tuple[str, ...] = ()
) -> Release:
    """Return the release of a mechanism by its name, its keys with their values, and adjacency.

    ``also`` names other known keys, for errors.

    Raises:
        InvalidParameter: the name or a key is unknown, a key is missing, or a value is invalid.
    """
    hint = "A round has no such key."
    item = ITEMS[validate.one_of("mechanism", name, "a mechanism", ITEMS, hint)]
    _check_keys(values, (*also, *item.keys))
    return item.read(values, adjacency)


def read_sampling(entry: dict[str, Any]) -> Sampling:
    """Return the sampling that the keys of a phase describe. Other keys are ignored."""
    given = tuple(key for key in _SCHEME_KEYS if key in entry)
    others = {key: entry[key] for key in _POISSON_KEYS if key in entry}
    if "max_cohort" in others and "num_clients" in given:
        # Here the population belongs to the largest cohort.
        others["num_clients"] = entry["num_clients"]
        given = tuple(key for key in given if key != "num_clients")
    default = "poisson" if "sampling_rate" in given else "uniform" if given else "full"
    scheme = validate.one_of("sampling", entry.get("sampling", default), "sampling", SCHEMES)
    if given not in SCHEMES[scheme]:
        nothing = "no rate and no cohort"
        known = ", or ".join(" and ".join(keys) or nothing for keys in SCHEMES[scheme])
        rule = f"that takes {known}, and the phase has {', '.join(given) or nothing}"
        raise InvalidParameter("sampling", scheme, rule)
    if others and scheme != "poisson":
        key = next(iter(others))
        raise InvalidParameter(key, others[key], "it belongs to Poisson sampling")
    return SCHEMES[scheme][given](*(entry[key] for key in given), **others)


def phase_entry(phase: Phase) -> dict[str, Any]:
    """Return a phase in the words of a file.

    Raises:
        InvalidParameter: no file has a name for such a release.
    """
    round_, count = phase
    if isinstance(round_, Round):
        return {
            "rounds": count,
            "noise_multiplier": round_.noise_multiplier,
            "sampling": round_.sampling.name,
            **arguments(round_.sampling),
        }
    for name, item in ITEMS.items():
        if type(round_) is item.kind:
            return {"rounds": count, "mechanism": name, **item.write(round_)}
    rule = "a schedule file has rounds, and mechanisms of the kinds " + ", ".join(ITEMS)
    raise InvalidParameter("schedule", repr(round_), rule)


def _check_keys(keys: Iterable[str], known: tuple[str, ...]) -> None:
    for key in keys:
        if key not in known:
            more = " or a key of a mechanism" if len(known) > _MOST_KEYS else ""
            listed = ", ".join(known[:_MOST_KEYS]) + more
            rule = f"the key {reprlib.repr(key)} is not one of {listed}"
            raise InvalidParameter(key, None, rule)


def _check_present(entry: dict[str, Any], needed: Iterable[str]) -> None:
    for key in needed:
        if key not in entry:
            raise InvalidParameter(key, None, f"{key} is missing")


# The formats.


def _document(data: Any) -> _Content:
    """Return the content of a parsed TOML or JSON document."""
    if not isinstance(data, dict):
        rule = 'a schedule file holds one object with the key "phase"'
        raise InvalidParameter("schedule", None, rule)
    table: dict[str, Any] = {str(key): value for key, value in data.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] parsers return Any
    # A file may call its list of phases "rounds".
    _check_keys(table, ("adjacency", "phase", "rounds"))
    if "phase" in table and "rounds" in table:
        rule = "phase and rounds are two names of one list"
        raise InvalidParameter("rounds", None, rule, "Use one of them.")
    phases = table.get("phase", table.get("rounds", []))
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):  # pyright: ignore[reportUnknownVariableType] parsers return Any
        raise InvalidParameter("phase", None, "phase is a list of tables, one for each phase")
    return table.get("adjacency"), cast("list[dict[str, Any]]", phases)


def _parse_toml(text: str) -> _Content:
    # Commands that read no file start without it.
    import tomllib  # noqa: PLC0415 - see above

    return _document(tomllib.loads(text))


def _write_toml(schedule: Schedule) -> str:
    blocks = [f'adjacency = "{schedule.adjacency}"\n']
    for phase in schedule:
        lines = [f"{key} = {json.dumps(value)}" for key, value in phase_entry(phase).items()]
        blocks.append("\n".join(["[[phase]]", *lines]) + "\n")
    return "\n".join(blocks)


def _parse_json(text: str) -> _Content:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the key {reprlib.repr(key)} occurs twice")
        return dict(pairs)

    return _document(json.loads(text, object_pairs_hook=unique))


def _write_json(schedule: Schedule) -> str:
    phases = [phase_entry(phase) for phase in schedule]
    return json.dumps({"adjacency": schedule.adjacency, "phase": phases}, indent=2) + "\n"


def _columns() -> list[str]:
    """Return the columns that a CSV file may have. It has the first seven in any case."""
    items = (key for item in ITEMS.values() for key in item.keys)
    return list(dict.fromkeys((*_ROUND_KEYS, "adjacency", *_POISSON_KEYS, "mechanism", *items)))


def _parse_csv(text: str) -> _Content:
    rows = [row for row in csv.reader(io.StringIO(text), strict=True) if any(map(str.strip, row))]
    header = [cell.strip() for cell in rows[0]] if rows else []
    _check_keys(header, tuple(_columns()))
    if len(set(header)) < len(header):
        raise InvalidParameter("schedule", None, "the header names a column twice")
    phases: list[dict[str, Any]] = []
    adjacencies: set[str | None] = set()
    for number, row in enumerate(rows[1:], start=1):
        if len(row) > len(header):
            rule = f"phase {number} has {len(row)} cells, and the header has {len(header)}"
            raise InvalidParameter("schedule", None, rule)
        entry = {key: cell.strip() for key, cell in zip(header, row, strict=False) if cell.strip()}
        adjacencies.add(entry.pop("adjacency", None))
        phases.append({key: _cell(cell) for key, cell in entry.items()})
    if len(adjacencies) > 1:
        rule = "all rows of a schedule file have the same adjacency"
        raise InvalidParameter("adjacency", None, rule)
    return adjacencies.pop() if adjacencies else None, phases


def _cell(text: str) -> int | float | str:
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _write_csv(schedule: Schedule) -> str:
    entries = [phase_entry(phase) | {"adjacency": str(schedule.adjacency)} for phase in schedule]
    if any(isinstance(value, list) for entry in entries for value in entry.values()):
        rule = "a cell of a .csv file holds one value, and a release of this schedule has a list"
        raise InvalidParameter("schedule", None, rule, "Write a .toml or .json file.")
    used = {*_ROUND_KEYS, "adjacency"}.union(*entries)
    buffer = io.StringIO()
    columns = [key for key in _columns() if key in used]
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return buffer.getvalue()


_FORMATS: dict[str, tuple[Callable[[str], _Content], Callable[[Schedule], str]]] = {
    ".toml": (_parse_toml, _write_toml),
    ".csv": (_parse_csv, _write_csv),
    ".json": (_parse_json, _write_json),
}


def _format_of(file: Path) -> tuple[Callable[[str], _Content], Callable[[Schedule], str]]:
    """Return the reader and the writer of a file, by its name."""
    suffix = file.suffix.lower()
    if suffix not in _FORMATS:
        rule = "a schedule file ends in " + ", ".join(_FORMATS)
        raise InvalidParameter("schedule", str(file), rule)
    return _FORMATS[suffix]
