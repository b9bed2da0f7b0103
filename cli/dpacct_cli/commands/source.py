"""`dpacct epsilon --from FILE`: the cost of a file of another tool, or of a record of ours.

A checkpoint of Opacus, an event of dp-accounting and a schedule say which rounds ran. A ledger and
the report of a run hold an answer, with the delta at which it was computed. That of a report is a
statement of the file, and is not called proven.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from dpacct import validate
from dpacct.budget import Spent
from dpacct.display import up
from dpacct.errors import InvalidParameter, Unsupported, located
from dpacct.packages import import_package, import_torch
from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule
from dpacct.schedules.files import check_kinds
from dpacct_cli.commands.ledger import spent_number, spent_page
from dpacct_cli.errors import conflict
from dpacct_cli.options import MechanismOptions
from dpacct_cli.output import is_there, opened
from dpacct_cli.outputs import EpsilonOfRecord
from dpacct_cli.render import Answer, Page, Row, plain
from dpacct_cli.words import about_examples, called, text_of

LABEL = "--from"
ROUNDS = "a schedule, an event as .json or a checkpoint of Opacus"
KNOWN = f"a ledger, a .report.jsonl, {ROUNDS}"


def read_source(file: str, typed: MechanismOptions) -> tuple[str, Schedule] | Answer:
    """Return the kind of a file and its rounds, or the answer that it holds."""
    path = Path(file)
    if not is_there(file):
        raise InvalidParameter(LABEL, file, "there is no such file")
    kind = "ledger" if validate.is_address(file) else _kind(path)
    said = typed.by_option()
    if kind in ("ledger", "report"):
        others = ("--delta", "--accountant", "--claim")
        said |= {name: text for name in others if (text := text_of(name)) is not None}
        if text_of("--gdp") is not None:
            why = "it holds one epsilon, and mu needs all deltas of a plan: --schedule PLAN"
            raise conflict("--gdp", file, why)
    else:
        # The population sets the note on a large delta.
        said.pop("--clients", None)
    if kind == "event":
        said.pop("--adjacency", None)
    for name, text in said.items():
        raise conflict(f"{called(name)} {text}", file, f"the {kind} says it")
    if kind == "ledger":
        return _of_ledger(file)
    if kind == "report":
        return _of_report(path)
    if kind in ("event", "checkpoint"):
        relation = typed.relation or Adjacency.ADD_REMOVE
        with located(LABEL, file=str(path)):
            plan = _of_event(path, relation) if kind == "event" else _of_checkpoint(path)
            return kind, check_kinds(plan)
    try:
        return kind, MechanismOptions(schedule=file).read_schedule()
    except InvalidParameter as error:
        raise InvalidParameter(LABEL, error.value, error.rule, error.hint) from None


def _kind(path: Path) -> str:
    from dpacct.files import is_ledger

    validate.check_regular(LABEL, path, "a record of rounds")

    suffix = path.suffix.lower()
    if is_ledger(path):
        return "ledger"
    if suffix == ".jsonl":
        return "report"
    if suffix == ".json" and "class_name" in _json(path, _text(path)):
        return "event"
    return "schedule" if suffix in (".toml", ".csv", ".json") else "checkpoint"


def _of_ledger(file: str) -> Answer:
    with opened(file) as ledger:
        summary = ledger.summary()
    lower, upper = summary["epsilon"]["lower"], summary["epsilon_any_stop"]
    data = _record("ledger", lower, upper, summary, summary["rounds"])
    return Answer(data, spent_number(summary), lambda: spent_page(summary))


def _of_report(path: Path) -> Answer:
    """Return the answer that the last line of a run's report states."""
    last = _json(path, _text(path).strip().rpartition("\n")[2] or "{}")
    lower, upper, row = None, None, Row("epsilon", "none", "  the run was not private")
    try:
        done, planned = validate.rounds(last["round"]), validate.rounds(last["rounds"])
        last["delta"] = validate.delta(last["delta"])
        if last.get("adjacency") is not None:
            last["adjacency"] = str(Adjacency.parse(last["adjacency"]))
        if validate.flag("private", last["private"]):
            ends = (last["epsilon_lower"], last["epsilon_upper"])
            lower, upper = (validate.at_least_zero("epsilon", end, "epsilon") for end in ends)
            spent = Spent(lower, upper, last["delta"])
            words = f"  as the file states, not checked; at delta {plain(spent.delta)}"
            row = Row("epsilon", up(spent.upper), words)
        data = _record("report", lower, upper, last, done)
    except (KeyError, InvalidParameter):
        raise _refused(path, "its last line is not a round of dpacct train") from None
    rows = [row, Row("rounds", str(done), f"of {planned} planned")]
    if done != planned:
        rows.append(Row("", "If results decided to stop here, the whole plan counts."))
    closing = "This is one run. dpacct epsilon --from LEDGER answers for all runs on its data."
    page = Page(rows, closing=closing, title="Privacy spent")
    return Answer(data, "inf" if upper is None else repr(upper), lambda: page)


def _record(
    kind: str, lower: float | None, upper: float | None, said: Mapping[str, Any], rounds: int
) -> EpsilonOfRecord:
    """Return the keys of `dpacct epsilon`, of which a record leaves some open."""
    return {
        "epsilon": {"lower": lower, "upper": upper},
        "delta": said["delta"],
        "accountant": None,
        "rounds": rounds,
        "sampling": None,
        "sampling_rate": None,
        "adjacency": said.get("adjacency"),
        "noise_multiplier": None,
        "phases": None,
        "source": kind,
    }


def _of_event(path: Path, adjacency: Adjacency) -> Schedule:
    """Return the rounds of ``event.to_named_tuple()`` as nested JSON objects."""
    from dpacct.interop.dp_accounting import schedule_of_event

    package = import_package("dp_accounting", "dp-accounting", "0.6", "dp-accounting")

    def made(fields: dict[str, Any]) -> Any:
        name = str(fields.pop("class_name", None))
        fields.pop("module_name", None)
        kind = getattr(package, name, None)
        if not (isinstance(kind, type) and issubclass(kind, package.DpEvent)):
            raise _refused(path, f"{name!r:.80} is not an event of dp-accounting")
        try:
            return kind(**fields)
        except TypeError as error:
            raise _refused(path, f"{name}: {error}") from None

    try:
        # Inner objects become events first.
        return schedule_of_event(json.loads(_text(path), object_hook=made), adjacency)
    except RecursionError:
        raise _refused(path, "its events are nested too deep") from None


def _of_checkpoint(path: Path) -> Schedule:
    head = b""
    with suppress(OSError), path.open("rb") as stream:
        head = stream.read(2)
    if head != b"PK":  # A zip archive, as PyTorch writes it
        raise _refused(path, f"it is not {KNOWN}")
    import_torch()
    from dpacct.fl.tensors import load_saved
    from dpacct.interop.opacus import TightAccountant

    saved, accountant = load_saved(LABEL, path, "a checkpoint"), TightAccountant()
    try:
        accountant.load_state_dict(saved["privacy_accountant_state_dict"])
    except (TypeError, KeyError, ValueError):
        hint = "PrivacyEngine.save_checkpoint writes it."
        raise _refused(path, "it has no history of an accountant of Opacus", hint) from None
    if any(noise == 0 for noise, _, _ in accountant.history):
        raise Unsupported(f"{path}: steps without noise have no finite epsilon")
    about_examples()
    # Opacus makes rate and divisor from the number of examples, which is therefore public.
    return Schedule(
        Phase(Round(noise, Poisson(rate), Adjacency.ZERO_OUT), steps)
        for noise, rate, steps in accountant.history
    )


def _text(path: Path) -> str:
    return validate.file_text(LABEL, path, "a file of events or reports")


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise _refused(path, "it is not JSON") from None
    if not isinstance(content, dict):
        raise _refused(path, "it has to hold one JSON object")
    return cast("dict[str, Any]", content)


def _refused(path: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter(LABEL, str(path), rule, hint)
