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
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from dpacct import validate
from dpacct.correlated.entries import ENTRY_KEYS, from_entry, to_entry
from dpacct.correlated.release import Correlated
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import InvalidParameter, shown
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
    as_schedule,
)

PHASE_KEYS: tuple[str, ...] = (
    "rounds", "noise_multiplier", "sampling", "sampling_rate", "cohort_size", "num_clients",
)  # fmt: skip
# An error lists so many keys at most.
_MOST_KEYS = 12
# Of Poisson sampling, for users with several records and for truncated cohorts.
_POISSON_KEYS = ("records", "max_cohort")
# A file may call its list of phases "rounds".
FILE_KEYS = ("adjacency", "phase", "rounds")
CSV_COLUMNS: tuple[str, ...] = (*PHASE_KEYS, "adjacency")
# The keys that describe each scheme: any one of the combinations.
SCHEME_KEYS: dict[str, tuple[frozenset[str], ...]] = {
    "poisson": (frozenset({"sampling_rate"}),),
    "uniform": (frozenset({"cohort_size", "num_clients"}), frozenset({"sampling_rate"})),
    "full": (frozenset(),),
}
_SCHEME_KEYS = frozenset({"sampling_rate", "cohort_size", "num_clients"})
_Handler = TypeVar("_Handler")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)


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
    parameters = inspect.signature(kind).parameters
    keys = tuple(name for name in parameters if name != "adjacency")
    needed = [n for n in keys if parameters[n].default is inspect.Parameter.empty]

    def read(entry: dict[str, Any], adjacency: Any) -> Release:
        _check_present(entry, needed)
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] parsers return Any
        relation = {} if adjacency is None else {"adjacency": adjacency}
        return cast("Any", kind)(**given, **relation)

    def write(release: Any) -> dict[str, Any]:
        values = {part.name: getattr(release, part.name) for part in fields(release)}
        written = {
            name: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name in keys
        }
        return {name: value for name, value in written.items() if value not in ("", None)}

    return Item(kind, keys, read, write)


# Releases beside the rounds, by the value of the key ``mechanism``.
ITEMS: dict[str, Item] = {
    **{name: item_of(kind) for name, kind in BY_NAME.items()},
    "allocation": item_of(Epoch),
    "shuffle": item_of(ShuffledEpoch),
    "correlated": Item(Correlated, ENTRY_KEYS, from_entry, to_entry),
}


class _Content(NamedTuple):
    """The parsed content of a file, before any check."""

    adjacency: Any
    phases: list[dict[str, Any]]


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
    parse = _by_suffix(file, _PARSERS)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _invalid(file, f"it cannot be read ({error.strerror or 'unknown reason'})") from None
    except UnicodeDecodeError:
        raise _invalid(file, "a schedule file is text in UTF-8") from None
    if not text.strip():
        raise _invalid(file, "it is empty, and a schedule has at least one phase")
    try:
        content = parse(text)
    except InvalidParameter as error:
        raise _invalid(file, error.rule) from None
    except (ValueError, csv.Error, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _invalid(file, f"it is not valid {file.suffix[1:].upper()} ({reason})") from None
    if not content.phases:
        raise _invalid(file, "a schedule has at least one phase")
    phases: list[Phase] = []
    for number, entry in enumerate(content.phases, start=1):
        try:
            relation = adjacency if content.adjacency is None else content.adjacency
            phases.append(read_phase(entry, relation))
            # `Schedule` checks this as well, but cannot name the phase.
            Schedule([phases[0], phases[-1]])
        except InvalidParameter as error:
            raise _invalid(file, f"in phase {number} {clause(error)}", error.hint) from None
    try:
        return Schedule(phases)
    except InvalidParameter as error:
        raise _invalid(file, clause(error), error.hint) from None


def dump_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a .toml, .csv or .json file that `load_schedule` reads back as an equal schedule.

    Raises:
        InvalidParameter: an unknown suffix, an empty schedule, or a file that cannot be written.
    """
    file = validate.file_path("path", path)
    schedule = as_schedule(schedule)
    render = _by_suffix(file, _RENDERERS)
    if not schedule.phases:
        raise _invalid(file, "a schedule file has at least one phase, and this schedule is empty")
    try:
        file.write_text(render(schedule), encoding="utf-8", newline="\n")
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise _invalid(file, f"it cannot be written ({reason})") from None


def read_phase(entry: dict[str, Any], adjacency: Any) -> Phase:
    """Return the phase with these keys and an adjacency (or None)."""
    if "mechanism" in entry:
        also = ("rounds", "mechanism")
        values = {key: value for key, value in entry.items() if key not in also}
        release = read_release(entry["mechanism"], values, adjacency, also)
        count = entry.get("rounds", 1)
    else:
        _check_keys(entry, (*PHASE_KEYS, *_POISSON_KEYS, "mechanism"))
        _check_present(entry, ("rounds", "noise_multiplier"))
        release = Round(entry["noise_multiplier"], read_sampling(entry), adjacency)
        count = entry["rounds"]
    # `Schedule` checks the count.
    return Schedule([Phase(release, count)]).phases[0]


def read_release(
    name: object, values: dict[str, Any], adjacency: Any, also: tuple[str, ...] = ()
) -> Release:
    """Return the release of a mechanism by its name, its keys with their values, and adjacency.

    ``also`` names other known keys, for errors.

    Raises:
        InvalidParameter: the name or a key is unknown, a key is missing, or a value is invalid.
    """
    if not isinstance(name, str) or name not in ITEMS:
        rule = "a mechanism is one of " + ", ".join(ITEMS)
        raise InvalidParameter("mechanism", name, rule, "A round has no such key.")
    _check_keys(values, (*also, *ITEMS[name].keys))
    return ITEMS[name].read(values, adjacency)


def read_sampling(entry: dict[str, Any]) -> Sampling:
    """Return the sampling that the keys of a phase describe. Other keys are ignored."""
    given = _SCHEME_KEYS & entry.keys()
    others = {key: entry[key] for key in _POISSON_KEYS if key in entry}
    if "max_cohort" in others and "num_clients" in given:
        # Here the population belongs to the largest cohort.
        others["num_clients"] = entry["num_clients"]
        given = given - {"num_clients"}
    default = "poisson" if "sampling_rate" in given else "uniform" if given else "full"
    scheme = entry.get("sampling", default)
    if not isinstance(scheme, str) or scheme not in SCHEME_KEYS:
        raise InvalidParameter("sampling", scheme, "sampling is one of " + ", ".join(SCHEME_KEYS))
    if given not in SCHEME_KEYS[scheme]:
        nothing = "no rate and no cohort"
        known = [" and ".join(sorted(keys)) or nothing for keys in SCHEME_KEYS[scheme]]
        found = ", ".join(sorted(given)) or nothing
        rule = f"that takes {', or '.join(known)}, and the phase has {found}"
        raise InvalidParameter("sampling", scheme, rule)
    if scheme == "poisson":
        return Poisson(entry["sampling_rate"], **others)
    if others:
        key = next(iter(others))
        raise InvalidParameter(key, others[key], "it belongs to Poisson sampling")
    if scheme == "full":
        return Full()
    if "sampling_rate" in given:
        return Uniform.at_rate(entry["sampling_rate"])
    return Uniform(entry["cohort_size"], entry["num_clients"])


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


def _document(data: Any) -> _Content:
    """Return the content of a parsed TOML or JSON document."""
    if not isinstance(data, dict):
        rule = 'a schedule file holds one object with the key "phase"'
        raise InvalidParameter("schedule", None, rule)
    table: dict[str, Any] = {str(key): value for key, value in data.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] parsers return Any
    _check_keys(table, FILE_KEYS)
    if "phase" in table and "rounds" in table:
        rule = "phase and rounds are two names of one list"
        raise InvalidParameter("rounds", None, rule, "Use one of them.")
    phases = table.get("phase", table.get("rounds", []))
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):  # pyright: ignore[reportUnknownVariableType] parsers return Any
        raise InvalidParameter("phase", None, "phase is a list of tables, one for each phase")
    return _Content(table.get("adjacency"), phases)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {reprlib.repr(twice)} occurs twice")
    return table


def _parse_csv(text: str) -> _Content:
    rows = [row for row in csv.reader(io.StringIO(text), strict=True) if any(map(str.strip, row))]
    header = [cell.strip() for cell in rows[0]] if rows else []
    _check_keys(header, (*CSV_COLUMNS, *_POISSON_KEYS, "mechanism", *_item_keys()))
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
    return _Content(adjacencies.pop() if adjacencies else None, phases)


def _item_keys() -> list[str]:
    """Return the keys that only phases with a mechanism have."""
    keys = (key for item in ITEMS.values() for key in item.keys)
    return list(dict.fromkeys(key for key in keys if key not in CSV_COLUMNS))


def _cell(text: str) -> int | float | str:
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def phase_entry(phase: Phase) -> dict[str, Any]:
    """Return a phase in the words of a file: `PHASE_KEYS`, or those of an item.

    Raises:
        InvalidParameter: no file has a name for such a release.
    """
    round_, count = phase
    if not isinstance(round_, Round):
        for name, item in ITEMS.items():
            if type(round_) is item.kind:
                return {"rounds": count, "mechanism": name, **item.write(round_)}
        rule = "a schedule file has rounds, and mechanisms of the kinds " + ", ".join(ITEMS)
        raise InvalidParameter("schedule", repr(round_), rule)
    scheme = round_.sampling
    return {
        "rounds": count,
        "noise_multiplier": round_.noise_multiplier,
        "sampling": scheme.name,
        **(scheme.fields() if isinstance(scheme, Poisson) else asdict(scheme)),
    }


def _render_toml(schedule: Schedule) -> str:
    blocks = [f'adjacency = "{schedule.adjacency}"\n']
    for phase in schedule:
        lines = [f"{key} = {json.dumps(value)}" for key, value in phase_entry(phase).items()]
        blocks.append("\n".join(["[[phase]]", *lines]) + "\n")
    return "\n".join(blocks)


def _render_json(schedule: Schedule) -> str:
    phases = [phase_entry(phase) for phase in schedule]
    return json.dumps({"adjacency": schedule.adjacency, "phase": phases}, indent=2) + "\n"


def _render_csv(schedule: Schedule) -> str:
    entries = [phase_entry(phase) | {"adjacency": str(schedule.adjacency)} for phase in schedule]
    if any(isinstance(value, list) for entry in entries for value in entry.values()):
        rule = "a cell of a .csv file holds one value, and a release of this schedule has a list"
        raise InvalidParameter("schedule", None, rule, "Write a .toml or .json file.")
    used = {key for entry in entries for key in entry}
    others = (*_POISSON_KEYS, "mechanism", *_item_keys())
    columns = [*CSV_COLUMNS, *(key for key in others if key in used)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return buffer.getvalue()


def _parse_toml(text: str) -> _Content:
    # Commands that read no file start without it.
    import tomllib  # noqa: PLC0415 - see above

    return _document(tomllib.loads(text))


_PARSERS: dict[str, Callable[[str], _Content]] = {
    ".toml": _parse_toml,
    ".csv": _parse_csv,
    ".json": lambda text: _document(json.loads(text, object_pairs_hook=_without_duplicates)),
}
_RENDERERS: dict[str, Callable[[Schedule], str]] = {
    ".toml": _render_toml,
    ".csv": _render_csv,
    ".json": _render_json,
}


def _by_suffix(file: Path, choices: dict[str, _Handler]) -> _Handler:
    try:
        return choices[file.suffix.lower()]
    except KeyError:
        raise _invalid(file, "a schedule file ends in " + ", ".join(choices)) from None


def _invalid(file: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter("schedule", str(file), rule, hint)


def clause(error: InvalidParameter) -> str:
    """Return the fault as a clause. An error without a value has it in its rule."""
    if error.value is None:
        return error.rule
    return f"{error.name} is {shown(error.value)}: {error.rule}"
