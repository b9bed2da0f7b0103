"""The settings of a run: the command line over a file over the defaults of its data.

Rule 1: a higher layer replaces the keys that it names, and lower keys that contradict them.
Rule 2: options of one layer that contradict each other are rejected.
Rule 3: an unknown key is an error, because a misspelled key would train something else.
Rule 4: values stay text, as typed. The library checks them.
Rule 5: an example takes one step in a round, of the server's length. Options of local training are
rejected with --examples, not ignored.
Rule 6: settings may come from somebody else. To look at their run opens no path that they name, but
for a file in their own folder, or one that was typed (`looked_at`).
Rule 7: a file asks for at most `MOST_WORK`. More is typed.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, located
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import number
from dpacct_cli.train import defaults
from dpacct_cli.train.defaults import DEFAULT_DATA, DEFAULTS, Values
from dpacct_cli.train.options import Record, Training
from dpacct_cli.words import spelling

# Fields that are no settings of their own: they bring other settings.
_LAYERS = ("config", "schema", "assignments", "server_assignments")
# Options of one command line, which its settings do not hold.
_PLACES = ("ledger", "resume", "run", "distributed")
KEYS = tuple(key for key in (*Training._fields, *Record._fields) if key not in (*_LAYERS, *_PLACES))
FLAGS = ("secure_noise", "examples", "as_printed", "train_accuracy")
TABLES = ("method_options", "data_options", "server_options")
# A resumed run may have other values of these.
FREE = (
    "device", "data_dir", "vectorize", "ahead", "evaluate_every", "target_accuracy",
    "train_accuracy",
)  # fmt: skip
# At most one key of each pair is needed. Two would say the same thing twice.
ALTERNATIVES = (
    ("eps", "noise"),
    ("q", "cohort"),
    ("q", "steps"),
    ("cohort", "steps"),
    ("local_epochs", "local_steps"),
    ("rounds", "epochs"),
    *(
        ("schedule", key)
        for key in ("rounds", "epochs", "q", "cohort", "steps", "sampling", "noise", "correlated")
    ),
)
# Keys of lower layers that a key takes away: any value of it, or the one that is named.
REPLACED = (
    # The noise of a schedule is used as it is, unless the same layer asks for a budget.
    ("schedule", None, ("eps",)),
    # Clients that take turns need no other rule for the cohorts.
    ("correlated", None, ("q", "cohort", "sampling", "epochs", "steps")),
    ("sampling", "full", ("q", "cohort")),
    # A rate for SGD is far too large for Adam, which has its own.
    ("local_optimizer", "adam", ("local_lr", "momentum")),
    ("sampling", "allocation", ("q",)),
)
# Numbers that decide how long a run or one of its rounds takes, and the most that a file asks for.
MOST_WORK = dict.fromkeys(("rounds", "epochs", "steps", "local_steps"), 100_000) | {
    "local_epochs": 1_000
}
# Settings of clients and their local training. An example takes one step in a round.
FOR_CLIENTS = (
    "clients", "partition", "local_optimizer", "local_lr", "local_epochs", "local_steps",
    "batch_size", "momentum", "weight_decay", "lr_decay", "max_grad_norm",
)  # fmt: skip


def is_table(name: str) -> bool:
    """Return True if ``--data`` names a file or folder instead of a known data set."""
    folder = name not in DEFAULTS and os.path.isdir(name)  # noqa: PTH112 - pathlib raises
    return Path(name).suffix.lower() in (".csv", ".npz") or folder


def option(key: str) -> str:
    """Return the option of a key."""
    return "--" + key.replace("_", "-")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings of a training."""

    method: str
    values: Values  # Texts by key, as typed. A key without a value is absent.
    # Keys that the user named, in a file or on the command line
    chosen: frozenset[str] = frozenset()
    # For the method, the reader of the data, and the server's optimizer
    method_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Name of the ledger next to these settings, None before the run has begun
    ledger: str | None = None
    server_options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def get(self, key: str) -> str | None:
        """Return the value of a key, or None."""
        return self.values.get(key)

    def number(self, key: str) -> Any:
        """Return the number of a key, its text for the library to refuse, or None."""
        return number(self.values.get(key))

    def every(self, rounds: int) -> int:
        """Return the number of rounds between evaluations: ten in a run, unless it was said."""
        if (given := self.number("evaluate_every")) is None:
            return max(1, rounds // 10)
        return validate.count("evaluate_every", given, "the number of rounds between evaluations")

    def dump(self) -> str:
        """Return the settings as JSON, for `load`."""
        tables = {name: dict(getattr(self, name)) for name in TABLES}
        content = {"method": self.method, **self.values, **tables}
        if self.ledger is not None:
            content["ledger"] = self.ledger
        return json.dumps(content, indent=2) + "\n"


def load(file: Path) -> RunSettings:
    """Return the settings of a run that `RunSettings.dump` wrote."""
    rule = "the settings of the run belong in the folder of its ledger"
    text = validate.file_text("resume", file, "the file of the settings of a run")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("resume", str(file), f"{rule}, as JSON ({error})") from None
    values = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if not all(isinstance(values.get(key), str) for key in ("method", "data", "model")):
        raise InvalidParameter("resume", str(file), f"{rule}, with method, data and model")
    tables = _tables(values, "resume", file)
    method, ledger = values.pop("method"), values.pop("ledger", None)
    if ledger is not None and not (
        isinstance(ledger, str) and (Path(ledger).name == ledger or validate.is_address(ledger))
    ):
        raise InvalidParameter("resume", str(file), f"{rule}, and name it; {ledger!r} is no name")
    return replace(RunSettings(method, _texts(values, "resume", file), ledger=ledger), **tables)


def typed_values(training: Training, record: Record | None = None) -> dict[str, str | None]:
    """Return the typed text of each key. A flag is ``yes``."""
    given = training._asdict() | ({} if record is None else record._asdict())
    typed = {key: given.get(key) for key in KEYS}
    return typed | {key: "yes" if given.get(key) else None for key in FLAGS}


def from_words(words: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run by its options as values of TOML, and its ``method``."""
    content = dict(words)
    method, tables = content.pop("method"), _tables(content, "options", None)
    texts = {key: text for key, text in _texts(content, "options", None).items() if text}
    return replace(combine(method, texts), **tables)


def combine(
    method: str,
    typed: Mapping[str, str | None],
    assignments: tuple[str, ...] = (),
    config: str | None = None,
    server: tuple[str, ...] = (),
    schema: str | None = None,
) -> RunSettings:
    """Return the settings of a command line.

    ``typed`` has texts by key, None for an option that was not typed. ``config`` and ``schema`` are
    TOML files; ``assignments`` and ``server`` are ``name=value`` texts.
    """
    words = {key: value for key, value in typed.items() if value is not None}
    for key, value in words.items():
        if not value.strip():
            raise OptionConflict(f"{spelling(option(key))} is empty; give it a value, or drop it.")
    _check_layer(words, dashes=True)
    written: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    if config is not None:
        content = read_toml("config", Path(config))
        tables = _tables(content, "config", Path(config))
        written = _texts(content, "config", Path(config))
    _check_layer(written, dashes=False)
    with located("config", file=config):
        check_work({key: text for key, text in written.items() if key not in words})
    if schema is not None:
        tables["data_options"] |= read_toml("schema", Path(schema))
    examples = bool(words.get("examples") or written.get("examples"))
    _check_unit(words, written, examples=examples)
    data = words.get("data") or written.get("data") or DEFAULT_DATA
    common = defaults.EXAMPLES_COMMON if examples else defaults.COMMON
    usual = (defaults.EXAMPLES_DEFAULTS if examples else DEFAULTS).get(data.split(":")[0], {})
    # The owners of rows are the natural clients. Dealing the rows of one person to several clients
    # has to be asked for.
    owned = words.get("owner") or written.get("owner") or tables["data_options"].get("owner")
    by_owner: Values = {"partition": "natural"} if owned and not examples else {}
    merged = merge(common, usual, by_owner, written, words)
    tables["method_options"] |= _assigned(assignments, "--set")
    tables["server_options"] |= _assigned(server, "--server-set")
    if tables["server_options"] and not merged.get("server"):
        first = next(iter(tables["server_options"]))
        raise OptionConflict(f"--server-set {first}=... needs --server, whose option it is.")
    return replace(RunSettings(method, merged, frozenset(words) | frozenset(written)), **tables)


def merge(*layers: Values) -> dict[str, str]:
    """Return the layers over each other, the last one on top. An empty value removes a key."""
    merged: dict[str, str] = {}
    for layer in layers:
        for group in ALTERNATIVES:
            if any(key in layer for key in group):
                merged = {key: value for key, value in merged.items() if key not in group}
        for key, value, others in REPLACED:
            if layer.get(key) and value in (None, layer[key]):
                merged = {key: text for key, text in merged.items() if key not in others}
        if "q" in layer or "cohort" in layer:
            # Full participation has no rate.
            merged = {k: v for k, v in merged.items() if (k, v) != ("sampling", "full")}
        # Another kind of population has another size.
        if "partition" in layer and layer["partition"] != merged.get("partition"):
            if layer["partition"] == "natural":
                merged.pop("clients", None)
            elif not layer.get("clients") and not merged.get("clients"):
                merged["clients"] = defaults.COMMON["clients"]
        merged |= layer
    return {key: value for key, value in merged.items() if value}


def check_unchanged(saved: RunSettings, typed: RunSettings) -> None:
    """Check that the options typed at a resume equal the saved settings."""
    if typed.method != saved.method:
        raise conflict(typed.method, "--resume", f"the run is one of {saved.method}")
    for key in sorted(typed.chosen):
        was = saved.get(key)
        if key not in FREE and number(typed.get(key)) != number(was):
            said = "says nothing" if was is None else f"has {was}"
            raise conflict(f"{option(key)} {typed.get(key)}", "--resume", f"the run {said}")
    for flag, name in (("--set", "method_options"), ("--server-set", "server_options")):
        for key, value in getattr(typed, name).items():
            if getattr(saved, name).get(key) != value:
                raise conflict(f"{flag} {key}={value}", "--resume", "the run has other options")


def looked_at(settings: RunSettings, file: Path, typed: Mapping[str, str | None]) -> RunSettings:
    """Return the settings of a run that is only looked at, under typed options (Rule 6).

    Args:
        settings: as `load` read them from ``file``, perhaps of somebody else.
        typed: options of this command line, None if they were not typed.
    """
    given = {key: value for key, value in typed.items() if value is not None}
    address = given.pop("ledger", None)
    if settings.ledger not in (None, address) and validate.is_address(settings.ledger):
        rule = f"{file.name} names it, and dpacct connects to what is typed alone"
        raise InvalidParameter("ledger", settings.ledger, rule, "If it is yours, type --ledger.")
    values = {key: text for key, text in settings.values.items() if key != "data_dir"}
    if settings.get("correlated"):
        # The strategy is built again, which takes longer the more rounds there are.
        with located("resume", file=str(file)):
            check_work(values, "")
    own = {place.name: place for place in file.parent.iterdir()}
    for key in ("data", "schedule", "init"):
        text = values.get(key)
        if text is None or key in given:
            continue
        if key == "data" and text.partition(":")[0] in DEFAULTS and not is_table(text):
            continue
        place = own.get(Path(text).name)
        if place is None or place.is_symlink():
            rule = f"{file.name} names it, and it opens files of its own folder alone, and no links"
            raise InvalidParameter(key, text, rule, f"Type {option(key)} FILE, or copy it there.")
        values[key] = str(place)
    return replace(settings, values=values | given)


def check_work(values: Values, way_out: str = "Type {} for more.") -> None:
    """Reject numbers of a file that are out of range or above `MOST_WORK` (Rule 7)."""
    for key, most in MOST_WORK.items():
        if (value := number(values.get(key))) is not None:
            validate.count(key, value, "a number in a file", most, way_out.format(option(key)))


def check_folder(settings: RunSettings) -> None:
    """Reject a folder of data beside data that are in none."""
    folder, data = settings.get("data_dir"), settings.values["data"]
    if folder and (data == DEFAULT_DATA or is_table(data)):
        where = "it comes with scikit-learn" if data == DEFAULT_DATA else "it has its own path"
        raise conflict(f"--data-dir {folder}", f"--data {data}", where)


def _check_layer(layer: Values, *, dashes: bool) -> None:
    name = option if dashes else str
    for one, other in ALTERNATIVES:
        if one in layer and other in layer:
            raise conflict(f"{name(one)} {layer[one]}", f"{name(other)} {layer[other]}")


def _check_unit(typed: Values, written: Values, *, examples: bool) -> None:
    """Reject options that have no meaning for the protected unit (Rule 5)."""
    for layer, name in ((typed, option), (written, str)):
        wrong = [key for key in FOR_CLIENTS if layer.get(key)]
        if examples and wrong:
            why = "it is about clients, and an example takes one step in a round"
            raise conflict(f"{name(wrong[0])} {layer[wrong[0]]}", "--examples", why)
        if not examples and layer.get("records"):
            raise OptionConflict(
                f"{name('records')} {layer['records']} needs --examples: a client is clipped as a "
                "whole."
            )
        if not examples and layer.get("epochs") and layer.get("sampling") != "allocation":
            raise OptionConflict(
                f"{name('epochs')} {layer['epochs']} needs --examples: passes over all of them. "
                "--local-epochs are a client's own."
            )


def read_toml(name: str, file: Path) -> dict[str, Any]:
    """Return the content of a TOML file that an option names."""
    text = validate.file_text(name, file, "a settings file")
    try:
        return validate.toml(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(name, str(file), f"it is not valid TOML ({error})") from None


def _tables(content: dict[str, Any], name: str, file: Path | None) -> dict[str, dict[str, Any]]:
    """Take the tables out of the content of a file."""
    tables = {key: content.pop(key, {}) for key in TABLES}
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidParameter(name, _named(file), f"{key} is a table")
    return tables


def _named(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _texts(content: Mapping[str, Any], name: str, file: Path | None) -> dict[str, str]:
    """Return the values of a file as texts. A flag that is off counts as absent."""
    for key, value in content.items():
        if key not in KEYS:
            rule = f"{key!r} is no key of it; the keys are {', '.join((*KEYS, *TABLES))}"
            raise InvalidParameter(name, _named(file), rule)
        misplaced = isinstance(value, bool) and key not in FLAGS
        if misplaced or not isinstance(value, int | float | str):
            rule = f"{key} is a number or a text, not {value!r}"
            raise InvalidParameter(name, _named(file), rule)
    return {
        key: "yes" if value is True else "" if value is False else str(value)
        for key, value in content.items()
    }


def _assigned(assignments: tuple[str, ...], flag: str) -> dict[str, Any]:
    """Return names and values of ``rho=0.5``. A value that is not TOML is text."""
    assigned: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise OptionConflict(f"{flag} {text} is not NAME=VALUE, such as rho=0.5.")
        name = name.strip()
        before = typed.setdefault(name, value)
        if before != value:
            raise conflict(f"{flag} {text}", f"{flag} {name}={before}")
        try:
            assigned[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            assigned[name] = value.strip()
    return assigned
