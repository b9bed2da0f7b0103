"""Schedules as files: TOML, CSV and JSON with the same words.

Rule 1: a phase has the keys of `dpacct.items`.
Rule 2: ``adjacency`` belongs to the file (in CSV: the same in each row), never to one phase.
Rule 3: a file with the keys of one phase alone is that phase. An answer of `dpacct --json` is read
for its phases. Settings of other tools are rejected with the phase that they mean.
Rule 4: `load_schedule` reads a file of `dump_schedule` back as an equal schedule, to the last bit.

A settings file of another tool has noise, rate and rounds side by side, in words of its own. It
leaves open how batches are drawn and which data sets are neighbors. So it is not read: the error
proposes a phase.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import reprlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, located
from dpacct.items import KEYS, PHASE, check_known, part_entry, phase_entry, read_part
from dpacct.outputs import schema_around
from dpacct.rounds import Adjacency, AdjacencyName, Phase, Repeated, Schedule, as_schedule
from dpacct.synonyms import ELSEWHERE, bare

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
# The first columns of a CSV file, which are always there, and all columns that it may have.
_ALWAYS = (
    "rounds", "noise_multiplier", "sampling", "sampling_rate", "cohort_size", "num_clients",
    "adjacency",
)  # fmt: skip
_COLUMNS = tuple(dict.fromkeys((*_ALWAYS, *KEYS)))
# Different rounds of a file. Each takes milliseconds to compose.
MAX_KINDS = 10_000
# The adjacency of a file and its phases, before any check.
_Content = tuple[Any, list[dict[str, Any]]]


def load_schedule(
    path: str | os.PathLike[str], *, adjacency: Adjacency | AdjacencyName | None = None
) -> Schedule:
    """Return the schedule in a .toml, .csv or .json file.

    Args:
        path: of the file.
        adjacency: of a file that names none. Default: that of each sampling scheme.
    Raises:
        InvalidParameter: the file is missing, cannot be parsed, or breaks a rule above. The
            message names the file, the phase (from 1) and the key.
    """
    file = validate.file_path("path", path)
    if file.suffix.lower() in _OF_OTHERS:
        text = validate.file_text("schedule", file, "a settings file")
        raise InvalidParameter("schedule", str(file), _ENDINGS, meant_phase(text))
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
        phases: list[Phase | Repeated] = []
        for number, entry in enumerate(entries, start=1):
            with located("schedule", f"in phase {number} "):
                phases.append(read_part(entry, adjacency if relation is None else relation))
                # `Schedule` checks this as well, but cannot name the phase.
                Schedule([*dict.fromkeys((phases[0], phases[-1]))])
        return check_kinds(Schedule(phases))


def check_kinds(schedule: Schedule) -> Schedule:
    """Return the schedule of a file, if its epsilon takes seconds and not hours.

    Raises:
        InvalidParameter: it has more than `MAX_KINDS` different rounds.
    """
    if (kinds := len(schedule.distinct())) > MAX_KINDS:
        rule = (
            f"a schedule of a file has at most {MAX_KINDS:,} different rounds, and this {kinds:,}"
        )
        hint = "Round noise and rates to fewer values, or compose it in Python (dpacct.epsilon)."
        raise InvalidParameter("schedule", None, rule, hint)
    return schedule


def dump_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a .toml, .csv or .json file that `load_schedule` reads back as an equal schedule.

    Raises:
        InvalidParameter: an unknown suffix, an empty schedule, more than `MAX_KINDS` different
            rounds, or a file that cannot be written.
    """
    file = validate.file_path("path", path)
    schedule = as_schedule(schedule)
    _, write = _format_of(file)
    if not schedule.phases:
        rule = "a schedule file has at least one phase, and this schedule is empty"
        raise InvalidParameter("schedule", str(file), rule)
    with located("schedule", file=str(file)):
        check_kinds(schedule)
    try:
        file.write_text(write(schedule), encoding="utf-8", newline="\n")
    except OSError as error:
        rule = f"it cannot be written ({error.strerror or 'unknown reason'})"
        raise InvalidParameter("schedule", str(file), rule) from None


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a schedule file in TOML or JSON."""
    phases = {"type": "array", "minItems": 1, "items": PHASE}
    adjacency = {"enum": [*map(str, Adjacency)]}
    table = {"type": "object", "additionalProperties": False}
    ways: list[dict[str, Any]] = [
        {**table, "properties": {"adjacency": adjacency, name: phases}, "required": [name]}
        for name in ("phase", "rounds")
    ]
    return schema_around("A schedule file", {"anyOf": [*ways, PHASE]})


# The formats.


def _document(data: Any) -> _Content:
    """Return the content of a parsed TOML or JSON document."""
    if not isinstance(data, dict):
        rule = 'a schedule file holds one object with the key "phase"'
        raise InvalidParameter("schedule", None, rule)
    table: dict[str, Any] = {str(key): value for key, value in data.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] parsers return Any
    if "phases" in table and "schema" in table:
        table = {"adjacency": table.get("adjacency"), "phase": table["phases"]}
    known = ("adjacency", "phase", "rounds")
    if "phase" not in table and not isinstance(table.get("rounds"), list):
        if table.keys() & {*KEYS} and table.keys() <= {"adjacency", *KEYS}:
            return table.pop("adjacency", None), [table]
        if meant := meant_phase(json.dumps(table, default=str)):
            rule = "it has settings in the words of another tool, and no phase"
            raise InvalidParameter("schedule", None, rule, meant)
    check_known(table, known)
    # A file may call its list of phases "rounds".
    if "phase" in table and "rounds" in table:
        rule = "phase and rounds are two names of one list"
        raise InvalidParameter("rounds", None, rule, "Use one of them.")
    phases = table.get("phase", table.get("rounds", []))
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):  # pyright: ignore[reportUnknownVariableType] parsers return Any
        raise InvalidParameter("phase", None, "phase is a list of tables, one for each phase")
    return table.get("adjacency"), cast("list[dict[str, Any]]", phases)


def _write_toml(schedule: Schedule) -> str:
    blocks = [f'adjacency = "{schedule.adjacency}"\n']
    for part in schedule.parts:
        lines = [f"{key} = {_toml(value)}" for key, value in part_entry(part).items()]
        blocks.append("\n".join(["[[phase]]", *lines]) + "\n")
    return "\n".join(blocks)


def _toml(value: Any) -> str:
    """Return a value in TOML, on one line."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in table.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, cast("list[Any]", value))) + "]"
    return json.dumps(value)


def _parse_json(text: str) -> _Content:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                raise ValueError(f"the key {reprlib.repr(key)} occurs twice")
            table[key] = value
        return table

    return _document(json.loads(text, object_pairs_hook=unique))


def _write_json(schedule: Schedule) -> str:
    phases = [part_entry(part) for part in schedule.parts]
    return json.dumps({"adjacency": schedule.adjacency, "phase": phases}, indent=2) + "\n"


def _parse_csv(text: str) -> _Content:
    rows = [row for row in csv.reader(io.StringIO(text), strict=True) if any(map(str.strip, row))]
    header = [cell.strip() for cell in rows[0]] if rows else []
    check_known(header, _COLUMNS)
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
    if any(isinstance(value, list | dict) for entry in entries for value in entry.values()):
        rule = "a cell of a .csv file holds one value, and a release of this schedule has several"
        raise InvalidParameter("schedule", None, rule, "Write a .toml or .json file.")
    used = {*_ALWAYS}.union(*entries)
    buffer = io.StringIO()
    columns = [key for key in _COLUMNS if key in used]
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return buffer.getvalue()


_FORMATS: dict[str, tuple[Callable[[str], _Content], Callable[[Schedule], str]]] = {
    ".toml": (lambda text: _document(validate.toml(text)), _write_toml),
    ".csv": (_parse_csv, _write_csv),
    ".json": (_parse_json, _write_json),
}

_ENDINGS = "a schedule file ends in " + ", ".join(_FORMATS)
# Endings of settings of other tools.
_OF_OTHERS = (".yaml", ".yml", ".ini", ".cfg")


def _format_of(file: Path) -> tuple[Callable[[str], _Content], Callable[[Schedule], str]]:
    """Return the reader and the writer of a file, by its name."""
    suffix = file.suffix.lower()
    if suffix not in _FORMATS:
        raise InvalidParameter("schedule", str(file), _ENDINGS)
    return _FORMATS[suffix]


# What a key of such a file means.
_MEANS = {
    "accumulated": "gradientaccumulationsteps accumulationsteps accumulatedbatches",
    **ELSEWHERE,
    "examples": f"numclients {ELSEWHERE['examples']} {ELSEWHERE['num_clients']}",
    "batch": f"cohortsize {ELSEWHERE['batch']} {ELSEWHERE['cohort_size']}",
}
_KEYS = {
    word: key for key, words in reversed(_MEANS.items()) for word in (*words.split(), bare(key))
}
# Possessive, and only at the start of a word: the time grows with the length of the text.
_SETTING = re.compile(r"(?<![\w-])([A-Za-z][\w-]*+)[\"']?\s*+[:=]\s*+[\"']?([+-]?[\d.][\w.+-]*)")
_OPTIONS = {"noise_multiplier": "--noise", "sampling_rate": "--q", "rounds": "--rounds"}


def meant_phase(text: str) -> str:
    """Return a question that shows the phase that flat settings mean, and the same as options.

    The text may be TOML, JSON or YAML. Empty if it holds no noise and no rate.
    """
    settings: dict[str, float] = {}
    for word, value in _SETTING.findall(text):
        key = _KEYS.get(bare(word))
        with suppress(ValueError):
            if math.isfinite(number := float(value)):
                settings.setdefault(key or "", number)
    batch = settings.get("batch", 0.0) * settings.get("accumulated", 1.0)
    if "sampling_rate" not in settings and 0.0 < batch <= settings.get("examples", 0.0):
        settings["sampling_rate"] = batch / settings["examples"]
    rate, epochs = settings.get("sampling_rate", 0.0), settings.get("epochs", 0.0)
    if "rounds" not in settings and rate > 0.0 and 0.0 < epochs / rate < math.inf:
        settings["rounds"] = math.ceil(epochs / rate)
    if not settings.keys() & {"noise_multiplier", "sampling_rate"}:
        return ""
    shown = {key: f"{settings[key]:.12g}" if key in settings else "..." for key in _OPTIONS}
    phase = ", ".join(f"{key} = {value}" for key, value in shown.items())
    options = " ".join(f"{_OPTIONS[key]} {value}" for key, value in shown.items())
    delta = f" --delta {settings['delta']:.12g}" if "delta" in settings else ""
    of_steps = ", with the batch of one optimizer step" if "batch" in settings else ""
    return f"Did you mean [[phase]] with {phase}{of_steps}? As options: {options}{delta}."
