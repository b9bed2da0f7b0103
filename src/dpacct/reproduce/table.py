"""A table of a paper as a file in TOML: the options of its runs, and its printed values.

``[printed]`` and ``[guessed]`` hold options of `dpacct train` by their names, with _ for -, and
``method``: what the paper prints, and what it leaves open. Each ``[[column]]`` and ``[[row]]`` adds
``options`` of its own. A row's ``by_column`` has a list of values for each option, one a column.
``[tiny]`` changes options for a run that takes seconds.

Rule 1: an unknown key is an error, because a misspelled key would play something else.
Rule 2: later options replace earlier ones: printed, guessed, column, row, by_column, tiny. An empty
text removes an option. No option is both printed and guessed.
Rule 3: reading runs nothing and fetches nothing. Whoever plays a table checks its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, located
from dpacct.items import check_known, check_needed
from dpacct.reproduce.records import LARGEST, is_figure
from dpacct.synonyms import meant_name

Options = dict[str, Any]

MEASURES = {
    "accuracy": "test accuracy [%]",
    "best_accuracy": "best accuracy of all evaluations [%]",
    "validation_accuracy": "validation accuracy at the end [%]",
    "train_accuracy": "training accuracy [%]",
    "gap": "training accuracy - test accuracy [%]",
    "rounds_to": "rounds to the target accuracy",
    "epsilon": "proven epsilon",
}
# Horizontal axes of figures, with their labels.
FIGURES = {
    "column": "", "round": "round", "epsilon": "epsilon spent, proven", "messages": "messages",
    "megabytes": "megabytes sent and received by all clients",
}  # fmt: skip
MOST_RUNS, MOST_SEEDS, LONGEST = 10_000, 100, 1000
# Tables whose keys are merged one by one.
NESTED = ("method_options", "data_options", "server_options", "model_options")
_TABLE = (
    "title", "source", "note", "cost", "measure", "target", "every", "figure", "seeds",
    "printed_runs", "printed", "guessed", "tiny", "row", "column", "claim",
)  # fmt: skip
_ROW = ("name", "options", "by_column", "printed", "spread")
_COLUMN = ("name", "value", "options")
_CLAIM = ("says", "better", "than", "columns")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting that is played once for each seed.

    Attributes:
        row, column: their names.
        options: of `dpacct train`, and ``method``.
        printed, spread: mean and standard deviation as printed, None if the paper has none.
    """

    row: str
    column: str
    options: Options
    printed: float | None = None
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class OrderClaim:
    """A sentence of the paper: one row is above another, in the mean over some columns."""

    says: str
    better: str
    than: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table or figure of a paper.

    Attributes:
        name: ``paper/table``, or the path of a file.
        title, source, note, cost: texts: what is compared, where it is printed, what differs from
            the paper, and how long the runs take.
        measure: one of `MEASURES`. target: of ``rounds_to``, in percent.
        every: rounds between evaluations; None: ten in a run.
        figure: the horizontal axis, one of `FIGURES`.
        seeds: of partition and initial model, one run each. Cohorts and noise are always fresh.
        printed_runs: the number of runs behind a printed value.
        rows, columns: their names. values: of the columns, empty if they are no numbers.
        cells: by row, then by column. tiny: the changes of a run that takes seconds.
    """

    name: str
    title: str
    source: str
    note: str
    cost: str
    measure: str
    target: float | None
    every: int | None
    figure: str
    seeds: tuple[int, ...]
    printed_runs: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[float, ...]
    cells: tuple[Cell, ...]
    claims: tuple[OrderClaim, ...]
    tiny: Options

    def settings(self, *, tiny: bool = False) -> Iterator[tuple[Cell, Options]]:
        """Yield each cell with the options of a run, seed by seed, so that runs stay paired.

        The options are those of `dpacct train`, ``method``, and ``evaluate_every`` if it is set.
        """
        own = {} if self.every is None else {"evaluate_every": self.every}
        for seed in self.seeds[:1] if tiny else self.seeds:
            for cell in self.cells:
                options = merged(cell.options, self.tiny) if tiny else cell.options
                yield cell, options | own | {"public_seed": seed}


def load_table(path: str | os.PathLike[str]) -> PaperTable:
    """Read a table from a file.

    Raises:
        InvalidParameter: the file cannot be read, is not TOML, lacks a key or has a value out of
            range. The message names the file, the key and its range.
    """
    file = validate.file_path("path", path)
    return parse_table(validate.file_text("table", file, "a paper's table"), str(file))


def parse_table(text: str, name: str) -> PaperTable:
    """Read a table from TOML text. ``name`` stands for the file in errors, as in `load_table`."""
    try:
        content = validate.toml(text)
    except (ValueError, RecursionError) as error:
        rule = f"it is not valid TOML ({' '.join(str(error).split())})"
        raise InvalidParameter("table", name, rule) from None
    with located("table", file=name):
        return _table(content, name)


def shipped_names() -> list[str]:
    """Return the names of the tables in this package."""
    return sorted(f"{paper}/{file.name[:-5]}" for paper, file in _shipped())


def shipped_table(name: str) -> PaperTable:
    """Return a table of this package by its name, ``paper/table``."""
    for paper, file in _shipped():
        if f"{paper}/{file.name[:-5]}" == name:
            return parse_table(file.read_text(encoding="utf-8"), name)
    known = shipped_names()
    near = meant_name(name, known)
    hint = f"Did you mean {near}?" if near else "dpacct reproduce lists all of them."
    raise InvalidParameter("table", name, "there is no such file, and no shipped table", hint)


def _shipped() -> Iterator[tuple[str, Traversable]]:
    for paper in (files("dpacct.reproduce") / "papers").iterdir():
        if paper.is_dir():
            yield from ((paper.name, file) for file in paper.iterdir() if file.name[-5:] == ".toml")


def merged(*layers: Mapping[str, Any]) -> Options:
    """Return options over each other, the last ones on top (Rule 2)."""
    options: Options = {}
    for layer in layers:
        for key, value in layer.items():
            if key in NESTED and isinstance(value, dict):
                held = options.get(key)
                options[key] = (held if isinstance(held, dict) else {}) | value
            else:
                options[key] = value
    return {key: value for key, value in options.items() if value != ""}


# Reading.


def _table(content: Options, name: str) -> PaperTable:
    check_known(content, _TABLE)
    check_needed(content, ("title", "source", "seeds", "printed", "row", "column"))
    texts = {key: _line(content, key) for key in ("title", "source", "note", "cost")}
    measure = validate.one_of("measure", content.get("measure", "accuracy"), "a measure", MEASURES)
    target = content.get("target")
    if (target is None) is (measure == "rounds_to"):
        raise InvalidParameter("target", target, "it belongs to measure rounds_to, which needs it")
    if target is not None and not 0 < _number("target", target) < 100:
        raise InvalidParameter("target", target, "an accuracy in percent lies between 0 and 100")
    every = content.get("every")
    if every is not None:
        every = validate.count("every", every, "the number of rounds between evaluations")
    base = _options(content, "printed")
    guessed = _options(content, "guessed")
    if twice := [key for key in guessed if key in base and key not in NESTED]:
        raise InvalidParameter("guessed", twice[0], "an option is either printed or guessed")
    columns, rows = _tables(content, "column", _COLUMN), _tables(content, "row", _ROW)
    seeds = _seeds(content["seeds"])
    if (runs := len(rows) * len(columns) * len(seeds)) > MOST_RUNS:
        rule = f"rows x columns x seeds are at most {MOST_RUNS:,} runs"
        raise InvalidParameter("seeds", runs, rule)
    names = tuple(_names(columns, "column"))
    cells = tuple(
        cell
        for row, title in zip(rows, _names(rows, "row"), strict=True)
        for cell in _row(row, title, names, [merged(base, guessed, _options(c)) for c in columns])
    )
    values = tuple(_number("value", c["value"]) for c in columns if "value" in c)
    if values and len(values) != len(columns):
        raise InvalidParameter("value", None, "each column has a value, or none has one")
    usual = "column" if len(values) > 1 else "round"
    figure = validate.one_of("figure", content.get("figure", usual), "a figure's axis", FIGURES)
    if figure == "column" and not values:
        raise InvalidParameter("figure", figure, "it needs a value of each column")
    noun = "the number of runs behind a printed value"
    printed_runs = validate.count("printed_runs", content.get("printed_runs", 1), noun)
    shown = tuple(_names(rows, "row"))
    claims = tuple(_claim(c, shown, names) for c in _tables(content, "claim", _CLAIM, least=0))
    return PaperTable(
        name, texts["title"], texts["source"], texts["note"], texts["cost"], measure, target, every,
        figure, seeds, printed_runs, shown, names, values, cells, claims, _options(content, "tiny"),
    )  # fmt: skip


def _row(row: Options, name: str, columns: Sequence[str], bases: list[Options]) -> Iterator[Cell]:
    where = f"row {name}, "
    with located("row", where):
        own, lists = _options(row), _options(row, "by_column")
        printed = _values(row, "printed", len(columns))
        spread = _values(row, "spread", len(columns))
        if below := [value for value in spread if value is not None and value < 0]:
            raise InvalidParameter("spread", below[0], "a standard deviation is not below 0")
        for key, values in lists.items():
            if not isinstance(values, list) or len(cast("list[Any]", values)) != len(columns):
                rule = f"by_column has a list of {len(columns)} values, one for each column"
                raise InvalidParameter(key, None, rule)
        for place, column in enumerate(columns):
            changed = {key: values[place] for key, values in lists.items()}
            options = merged(bases[place], own, changed)
            if not isinstance(options.get("method"), str):
                raise InvalidParameter("method", options.get("method"), "each run has a method")
            yield Cell(name, column, options, printed[place], spread[place])


def _claim(claim: Options, rows: Sequence[str], columns: tuple[str, ...]) -> OrderClaim:
    check_needed(claim, ("says", "better", "than"))
    for key in ("better", "than"):
        validate.one_of(key, claim[key], "a row", rows)
    given = claim.get("columns", list(columns))
    chosen = cast("list[Any]", given) if isinstance(given, list) else []
    if not chosen:
        raise InvalidParameter("columns", None, "it is a list of columns")
    for column in chosen:
        validate.one_of("columns", column, "a column", columns)
    return OrderClaim(_line(claim, "says"), claim["better"], claim["than"], tuple(chosen))


def _line(table: Options, key: str) -> str:
    text = table.get(key, "")
    if not isinstance(text, str) or len(text) > LONGEST or not text.isprintable():
        rule = f"it is at most {LONGEST} printable characters on one line"
        raise InvalidParameter(key, text, rule)
    return text


def _number(key: str, value: object) -> float:
    if not is_figure(value):
        raise InvalidParameter(key, value, f"it is a finite number, at most {LARGEST:g}")
    return float(cast("float", value))


def _seeds(value: object) -> tuple[int, ...]:
    seeds = tuple(cast("list[Any]", value)) if isinstance(value, list) else ()
    whole = all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**63 for s in seeds)
    if not seeds or len(seeds) > MOST_SEEDS or not whole or len(set(seeds)) != len(seeds):
        rule = f"it is a list of 1 to {MOST_SEEDS} different whole numbers from 0 to 2^63 - 1"
        raise InvalidParameter("seeds", None, rule)
    return seeds


def _options(table: Options, key: str = "options") -> Options:
    options = table.get(key, {})
    if not isinstance(options, dict):
        raise InvalidParameter(key, options, "it is a table of options of dpacct train")
    if "public_seed" in options:
        raise InvalidParameter("public_seed", None, "seeds has those of all runs")
    return cast("Options", options)


def _tables(content: Options, key: str, known: tuple[str, ...], least: int = 1) -> list[Options]:
    tables = content.get(key, [])
    if not isinstance(tables, list) or len(cast("list[Any]", tables)) < least:
        raise InvalidParameter(key, None, f"it is written as tables [[{key}]]")
    for table in cast("list[Any]", tables):
        if not isinstance(table, dict):
            raise InvalidParameter(key, table, f"it is written as tables [[{key}]]")
        check_known(cast("Options", table), known)
    return cast("list[Options]", tables)


def _names(tables: Sequence[Options], key: str) -> list[str]:
    names = [validate.line("name", table.get("name"), f"the name of a {key}") for table in tables]
    if len(set(names)) != len(names):
        raise InvalidParameter("name", None, f"no two of [[{key}]] have one name")
    return names


def _values(row: Options, key: str, count: int) -> list[float | None]:
    """Return numbers for each column; "-" stands for a value that is not printed."""
    values = row.get(key, ["-"] * count)
    if not isinstance(values, list) or len(cast("list[Any]", values)) != count:
        raise InvalidParameter(key, None, f"it is a list of {count} numbers, one for each column")
    cells = cast("list[Any]", values)
    return [None if value == "-" else _number(key, value) for value in cells]
