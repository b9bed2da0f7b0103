"""`dpacct reproduce`: the tables of papers, played by the trainer of `dpacct train`.

Rule 1: a file of a table names public data sets and methods of dpacct alone. It imports nothing,
and no path in it is opened.
Rule 2: all options of all cells are checked before the first run.
Rule 3: a run is a ledger, a checkpoint and a history in the folder until it is finished. Then it is
a line of ``runs.jsonl``.
Rule 4: one process plays a run, until its line is written. Two would share its checkpoint. Its lock
file is never removed: two processes could hold a removed file and its successor at once.
Rule 5: a file of a table cannot ask for runs without an end. There are at most as many clients as
examples, and at most `MOST_WORK` rounds and local steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sqlite3
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported, located
from dpacct.reproduce import (
    Cell,
    Judged,
    PaperTable,
    Records,
    is_history,
    judge,
    load_table,
    picture,
    shipped_names,
    shipped_table,
)
from dpacct.reproduce.verdict import CLAIM_HEADER, TINY, claim_row
from dpacct_cli import errors, waiting
from dpacct_cli.errors import conflict
from dpacct_cli.options import OUTPUT, StyleOptions, Text, argument, flag, number, option
from dpacct_cli.output import names_a_file, write_output
from dpacct_cli.outputs import PaperTables, Reproduced
from dpacct_cli.render import Answer, Grid, Page, Row, Style, print_note, show, wrapped
from dpacct_cli.train.defaults import DEFAULTS
from dpacct_cli.train.options import METHODS, DataDir, Device, Init
from dpacct_cli.train.settings import TABLES, RunSettings, check_work, from_words, is_table

# Options that name files, or belong to one machine.
FOREIGN = (
    "schedule", "hold_out", "data_dir", "device", "label", "columns", "owner", "classes", "init",
)  # fmt: skip
REPEATED = ("repeats", "target_accuracy", "train_accuracy")  # A table has keys of its own for them
FOLDER, COMPARED = "reproduced", "compared"
# fmt: off
Name = Annotated[Text, argument("[TABLE]",
    "A table by its name, e.g. dp-fed-ls/table-2, or a file of your own (.toml). Without it, all "
    "tables are listed.", known=shipped_names)]
# fmt: on


class Playing(NamedTuple):
    """The options that say what is played, and where it is kept."""

    tiny: Annotated[bool, flag("--tiny", OUTPUT,
        "Run a small version on digits, in about a minute, as a test.")] = False  # fmt: skip
    repeats: Annotated[Text, option("--repeats", "N", OUTPUT,
        "Runs of each cell; default those of the table. A verdict needs 3.")] = None  # fmt: skip
    only: Annotated[Text, option("--only", "ROW;...", OUTPUT,
        "Run only these rows.")] = None  # fmt: skip
    page: Annotated[bool, flag("--page", OUTPUT,
        "Run nothing, and write table and figure of the finished runs.")] = False  # fmt: skip
    folder: Annotated[Text, option("--folder", "DIR", OUTPUT,
        f"Where runs and pages are kept; default {FOLDER}.")] = None  # fmt: skip


def reproduce(
    playing: Playing,
    shown: StyleOptions,
    table: Name = None,
    data_dir: DataDir = None,
    device: Device = None,
    init: Init = None,
) -> None:
    """Repeat the runs of a paper's table, and compare with its values. Without a name, list all.

    Finished runs are kept, so a stopped command can be continued. -q prints the verdict per cell.

    Examples:
      dpacct reproduce
      dpacct reproduce dp-fed-ls/table-2 --tiny
      dpacct reproduce dp-fedsam/table-1 --data-dir data --device cuda
      dpacct reproduce my-paper.toml --repeats 3
    """
    style = shown.style
    if table is None:
        _list(style)
        return
    name = table if table in shipped_names() else Path(table).stem
    machine = {"data_dir": data_dir, "device": device, "init": init}
    play_table(read_table(table), name, playing, style, machine)


def play_table(
    chosen: PaperTable,
    name: str,
    playing: Playing,
    style: Style,
    machine: Mapping[str, str | None],
) -> None:
    """Play what is not finished of a table, and show it beside its printed values.

    Args:
        name: of its files. machine: options that belong to this machine, and ``init``.
    """
    init = machine["init"]
    if playing.repeats is not None:
        chosen = replace(chosen, seeds=_first_seeds(chosen, number(playing.repeats)))
    for cell, setting in chosen.settings(tiny=playing.tiny):
        with located("table", f"row {cell.row}, column {cell.column}: ", chosen.name):
            settings_of(setting)
    if init is not None:
        own = {"init": _identity(Path(init))}
        cells = (replace(cell, options=cell.options | own) for cell in chosen.cells)
        chosen = replace(chosen, cells=tuple(cells))
    only = chosen.rows if playing.only is None else [r.strip() for r in playing.only.split(";")]
    if unknown := [row for row in only if row not in chosen.rows]:
        rule = f"a row of {chosen.name} is one of {', '.join(chosen.rows)}"
        raise InvalidParameter("only", unknown[0], rule)
    settings = [s for cell, s in chosen.settings(tiny=playing.tiny) if cell.row in only]
    errors.require_torch("training needs")
    folder = Path(playing.folder or FOLDER)
    place = folder / (f"{name}-tiny" if playing.tiny else name)
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = place.parent / ("tiny.jsonl" if playing.tiny else "runs.jsonl")
    records = Records(kept)
    left = sum(records.of(setting) is None for setting in settings)
    done = 0

    def one(setting: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal done
        waiting.say(f"run {done + 1} of {left}", done, left)
        result = play(setting, place.parent, **machine)
        done += 1
        return result

    if not playing.page:
        if style is Style.HUMAN and left:
            cost = f". {chosen.cost}" if chosen.cost and not playing.tiny else ""
            print(f"{left} runs{cost}", file=sys.stderr, flush=True)
        records.need(settings, one, lambda setting: alone_at(place.parent, setting))
    judged = judge(chosen, records, tiny=playing.tiny)
    page = place.with_name(f"{place.name}.md")
    write_output(judged.markdown(), page, force=True)
    files = [str(page)]
    try:
        from dpacct.pictures import Drawing

        Drawing(picture(judged)).save(drawn := place.with_name(f"{place.name}.png"), replace=True)
        files.append(str(drawn))
    except Unsupported as error:
        print_note(f"no figure was drawn: {error}")
    words = [one.verdict for one in judged.cells]
    if not judged.counts():
        words = [repr(fmean(one.values.values())) for one in judged.cells if one.values]
    show(Answer(_data(judged, files), "\n".join(words), lambda: _page(judged, files)), style)


def compare_methods(methods: Sequence[str], settings: RunSettings, style: Style) -> None:
    """Play methods with the same options, several times each, as the rows of one table."""
    given = {key: settings.values[key] for key in sorted(settings.chosen)}
    repeats = given.pop("repeats", None)
    machine = {key: given.pop(key, None) for key in ("data_dir", "device", "init")}
    if "public_seed" in given:
        why = "each repeat has a partition and an initial model of its own"
        raise conflict(f"--public-seed {given['public_seed']}", "several runs", why)
    tables = {name: dict(getattr(settings, name)) for name in TABLES if getattr(settings, name)}
    data, known = settings.values["data"], settings.values
    # The epsilon of a plan, or the noise that decides it.
    limit = f"epsilon {known['eps']}" if known.get("eps") else f"noise {known.get('noise')}"
    column = f"{data}, {limit}"
    each = [{**given, **tables, "method": one, "data": data} for one in methods]
    for words in each:
        settings_of(words)
    table = PaperTable(
        name="methods", title=f"Methods on {data}", source="dpacct train", note="", cost="",
        measure="validation_accuracy" if "validation" in given else "accuracy", target=None,
        every=None, figure="round", seeds=(0, 1, 2), printed_runs=1, rows=tuple(methods),
        columns=(column,), values=(), claims=(), tiny={},
        cells=tuple(Cell(one, column, words) for one, words in zip(methods, each, strict=True)),
    )  # fmt: skip
    play_table(table, table.name, Playing(repeats=repeats, folder=COMPARED), style, machine)


def read_table(name: str) -> PaperTable:
    """Return a shipped table by its name, or that of a file."""
    if name not in shipped_names() and names_a_file(name, (".toml",)):
        return load_table(name)
    return shipped_table(name)


def settings_of(words: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run by the words of a table's file, after a check (Rule 1)."""
    for key in FOREIGN:
        if key in words:
            rule = "the file of a table cannot set it: it names a file or a machine"
            raise InvalidParameter(key, words[key], rule)
    for key in REPEATED:
        if key in words:
            rule = "the file of a table has seeds, measure and target for it"
            raise InvalidParameter(key, words[key], rule)
    method, data = words["method"], words.get("data")
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidParameter("method", method, f"a method is one of {', '.join(METHODS)}")
    if not isinstance(data, str) or is_table(data) or data.split(":")[0] not in DEFAULTS:
        rule = f"a comparison takes public data, one of {', '.join(DEFAULTS)}"
        hint = "On your own data each run costs budget: train once, by dpacct train METHOD --data."
        raise InvalidParameter("data", data, rule, hint)
    settings = from_words(words)
    check_work(settings.values, "")
    return settings


def play(
    words: Mapping[str, Any],
    folder: Path,
    *,
    data_dir: str | None = None,
    device: str | None = None,
    init: str | None = None,
) -> dict[str, Any]:
    """Return the result of a run, with fresh cohorts and noise.

    Accuracies are in percent. The history has a row for each evaluation, whose norms and clipped
    shares are not private. Seconds are those of the processor, without evaluations.

    Args:
        words: options of `dpacct train`, and ``method``; ``init``: name and digest of its file.
        folder: keeps the run until it is finished. A run that stopped there goes on.
    """
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import federation

    settings = settings_of({key: value for key, value in words.items() if key != "init"})
    machine = {k: v for k, v in {"data_dir": data_dir, "device": device, "init": init}.items() if v}
    job = build_job(replace(settings, values=settings.values | machine))
    place = _unfinished(folder, words)
    place.mkdir(parents=True, exist_ok=True)
    checkpoint, history = place / "run.checkpoint", place / "history.json"
    rows: list[dict[str, Any]] = []
    seconds = 0.0
    with federation(job, job.clients, ledger=place / "run.ledger", checkpoint=checkpoint) as run:
        if checkpoint.exists():
            run.resume()
            if history.exists():
                rows = [row for row in read_history(history) if row["round"] <= run.round]
        every, plan = settings.every(run.rounds), run.engine.plan
        receivers = len(job.clients) if run.engine.method.everyone_computes else plan.cohort_size
        # Of a run that stopped between evaluations, by its mean round until the latest one.
        last = rows[-1] if rows else {"round": 1}
        each = (last.get("megabytes") or math.nan) / max(last["round"], 1)
        sent = each * run.round if run.round else 0.0
        first, began = run.round, time.process_time()
        for report in run:
            seconds += time.process_time() - began
            sent += (receivers * report.bytes_down + plan.cohort_size * report.bytes_up) / 1e6
            if report.round % every == 0 or report.round == run.rounds:
                seen = report.diagnostics
                rows.append({
                    "round": report.round, "epsilon": report.epsilon.upper,
                    "accuracy": 100 * job.accuracy(run.model, job.validated),
                    "megabytes": sent, "norm_median": seen.norm_median,
                    "clipped": seen.clipped_fraction, "signal_to_noise": seen.signal_to_noise,
                })  # fmt: skip
                write_output(json.dumps(rows), history, force=True)
            began = time.process_time()
        result = {
            "accuracy": 100 * job.accuracy(run.model), "epsilon": run.epsilon.upper,
            "epsilon_achieved": run.epsilon.lower, "noise_multiplier": run.noise_multiplier,
            "rounds": run.round, "cohort": run.engine.plan.cohort_size,
            "seconds_per_round": seconds / max(run.round - first, 1), "history": rows,
        }  # fmt: skip
    result["train_accuracy"] = 100 * job.train_accuracy(job.model)
    shutil.rmtree(place)
    return result


@contextmanager
def alone_at(folder: Path, words: Mapping[str, Any]) -> Generator[None]:
    """Keep other processes from a run, by a lock that ends with this process (Rule 4)."""
    file = _unfinished(folder, words).with_suffix(".lock")
    file.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as held:
        try:
            held.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            rule = "another process plays one of these runs there"
            hint = "Wait for it, or choose other rows by --only."
            raise InvalidParameter("folder", str(folder), rule, hint) from None
        yield


def _unfinished(folder: Path, words: Mapping[str, Any]) -> Path:
    text = json.dumps(dict(words), sort_keys=True)
    return folder / "unfinished" / hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(file: Path) -> str:
    """Return the name of a file with the digest of its content: another content, another run."""
    validate.check_regular("init", file, "a file of parameters")
    with file.open("rb") as content:
        return f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()[:16]}"


def read_history(file: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run that has not ended."""
    try:
        rows: Any = json.loads(validate.file_text("history", file, "a file of evaluations"))
    except (ValueError, RecursionError):
        rows = None
    if not is_history(rows):
        raise InvalidParameter("history", str(file), "it is no list of evaluations")
    return rows


def _first_seeds(table: PaperTable, count: Any) -> tuple[int, ...]:
    """Return the seeds of a table, or its first ones, or more that follow the last."""
    if not isinstance(count, int) or not 1 <= count <= 100:
        raise InvalidParameter("repeats", count, "the runs of a cell are a number from 1 to 100")
    more = range(max(table.seeds) + 1, max(table.seeds) + 1 + count)
    return (*table.seeds, *more)[:count]


def _data(judged: Judged, files: list[str]) -> Reproduced:
    return {
        "table": judged.table.name,
        "tiny": judged.tiny,
        "measure": judged.table.measure,
        "cells": [
            {
                "row": one.cell.row, "column": one.cell.column, "printed": one.cell.printed,
                "values": [*one.values.values()], "verdict": one.verdict,
            }
            for one in judged.cells
        ],
        "claims": [
            {"says": one.claim.says, "difference": one.difference, "verdict": one.verdict}
            for one in judged.claims
        ],
        "files": files,
    }  # fmt: skip


def _page(judged: Judged, files: list[str]) -> Page:
    table = judged.table
    told = [f"{count} {word}" for word, count in judged.counts().items()]
    rows = [
        *wrapped("table", f"{table.title} ({table.source})"),
        *([Row("cells", ", ".join(told))] if told else []),
        *(Row("" if place else "files", file) for place, file in enumerate(files)),
    ]
    grids = [Grid(*judged.grid())]
    if judged.claims:
        grids.append(Grid(CLAIM_HEADER, [claim_row(one) for one in judged.claims]))
    return Page(rows, grids, [table.note] * bool(table.note), note=TINY if judged.tiny else "")


def _list(style: Style) -> None:
    tables = [shipped_table(name) for name in shipped_names()]
    lines = [
        [t.name, f"{len(t.cells)}x{len(t.seeds)}", _needs(t) or "yes", t.title] for t in tables
    ]
    data: PaperTables = {"tables": [t.name for t in tables]}
    rows = [Row("tables", str(len(tables)), "of papers; runs: cells x repeats")]
    closing = "dpacct reproduce TABLE --tiny runs a small version in a minute."
    page = Page(rows, [Grid(["table", "runs", "can run here", ""], lines)], closing=closing)
    show(Answer(data, "\n".join(t.name for t in tables), lambda: page), style)


def _needs(table: PaperTable) -> str:
    """Return what a table needs that is not here: packages, or the files of its data."""
    data = {str(cell.options.get("data")) for cell in table.cells}
    try:
        errors.require_torch("training needs")
    except Unsupported:
        return "needs PyTorch"
    from dpacct.fl.data import is_there

    lacking = [name for name in sorted(data) if not is_there(name)]
    for model in {str(cell.options.get("model")).partition("-")[0] for cell in table.cells}:
        package = {"vit": "torchvision", "roberta": "transformers"}.get(model)
        lacking += [package] if package and find_spec(package) is None else []
    return f"needs {', '.join(lacking)}" if lacking else ""
