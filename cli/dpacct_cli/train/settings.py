"""What a run is told: the command line over a file over a preset over the defaults of its data.

Rule 1: a higher layer replaces what it names, and whatever that contradicts below.
Rule 2: within one layer, options that contradict each other are refused.
Rule 3: an unknown key is an error: a misspelt one would train something else.
Rule 4: values stay text, as typed; the library judges them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dpacct.errors import InvalidParameter
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import number
from dpacct_cli.train import examples as single
from dpacct_cli.train.presets import COMMON, DEFAULT_DATA, DEFAULTS, PRESETS

KEYS = (
    "data",
    "data_dir",
    "label",
    "owner",
    "classes",
    "clients",
    "public_size",
    "partition",
    "hold_out",
    "examples",
    "model",
    "schedule",
    "rounds",
    "epochs",
    "q",
    "cohort",
    "sampling",
    "adjacency",
    "eps",
    "noise",
    "delta",
    "clip_norm",
    "local_lr",
    "local_total_lr",
    "local_epochs",
    "local_steps",
    "batch_size",
    "momentum",
    "weight_decay",
    "lr_decay",
    "server_lr",
    "server",
    "eval_every",
    "device",
    "seed",
    "public_seed",
    "secure_noise",
    "vectorize",
)
# Of each group one is enough, and two say the same thing twice.
ALTERNATIVES = (
    ("eps", "noise"),
    ("q", "cohort"),
    ("local_epochs", "local_steps"),
    ("rounds", "epochs"),
    *(("schedule", key) for key in ("rounds", "epochs", "q", "cohort", "sampling", "noise")),
)
FLAGS = ("secure_noise", "examples", "local_total_lr")
# Where a run goes on may differ from where it began.
FREE = ("device", "data_dir", "vectorize")
TABLES = ("method_options", "data_options", "server_options")
Values = Mapping[str, str]


def is_table(name: str) -> bool:
    """Return whether ``--data`` names a file or folder instead of a known data set."""
    path = Path(name)
    return path.suffix.lower() in (".csv", ".npz") or (name not in DEFAULTS and path.is_dir())


def option(key: str) -> str:
    """How the command line calls a key."""
    return "--" + key.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides what is trained.

    Attributes:
        method: its name.
        values: by key, as typed; absent where nothing is said.
        chosen: keys that the user named, in a file or on the command line.
        method_options: for the method.
        data_options: for the reader of the data. server_options: for the server's optimizer.
        ledger: name of the file beside these settings that the run is charged to; None before
            the run has begun.
    """

    method: str
    values: Values
    chosen: frozenset[str] = frozenset()
    method_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ledger: str | None = None
    server_options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""
        return self.values.get(key)

    def dump(self) -> str:
        """As JSON, for `load`."""
        content = {
            "method": self.method,
            **self.values,
            "method_options": dict(self.method_options),
            "data_options": dict(self.data_options),
            "server_options": dict(self.server_options),
        } | ({} if self.ledger is None else {"ledger": self.ledger})
        return json.dumps(content, indent=2) + "\n"


def load(file: Path) -> Settings:
    """The settings of a run that `Settings.dump` wrote.

    Raises:
        InvalidParameter: the file is missing or damaged.
    """
    rule = "the settings of the run stand beside its ledger"
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameter("resume", str(file), f"{rule} ({error.strerror})") from None
    except ValueError as error:
        raise InvalidParameter("resume", str(file), f"{rule}, as JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(cast("Any", content).get("method"), str):
        raise InvalidParameter("resume", str(file), rule)
    found = cast("dict[str, Any]", content)
    tables = [_table(found.pop(name, {}), name, "resume", file) for name in TABLES]
    method, ledger = found.pop("method"), found.pop("ledger", None)
    if ledger is not None and (not isinstance(ledger, str) or Path(ledger).name != ledger):
        raise InvalidParameter("resume", str(file), f"{rule}, and name it; {ledger!r} is no name")
    values = _texts(found, "resume", file)
    return Settings(method, values, frozenset(), tables[0], tables[1], ledger, tables[2])


def combine(
    method: str,
    typed: Mapping[str, str | None],
    assignments: tuple[str, ...] = (),
    preset: str | None = None,
    config: str | None = None,
    server: tuple[str, ...] = (),
) -> Settings:
    """The settings that a command line means.

    Args:
        method: name of the method.
        typed: options by key; None where nothing was typed.
        assignments: ``name=value`` for the method.
        preset: name of published settings.
        config: a TOML file.
        server: ``name=value`` for the server's optimizer.

    Raises:
        InvalidParameter: a preset, file or key that does not exist, or a damaged file.
        OptionConflict: two options of one layer contradict each other.
    """
    words = {key: value for key, value in typed.items() if value is not None}
    _refuse_alternatives(words, option)
    written: dict[str, str] = {}
    tables: list[dict[str, Any]] = [{}, {}, {}]
    if config is not None:
        written, tables = _read_config(Path(config))
    _refuse_alternatives(written, str)
    published: Values = {}
    method_options: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            rule = f"a preset is one of {', '.join(PRESETS)}"
            raise InvalidParameter("preset", preset, rule)
        published = PRESETS[preset].values
        method_options |= PRESETS[preset].methods.get(method, {})
    examples = words.get("examples") or written.get("examples")
    single.refuse(examples, words, written, preset)
    data = words.get("data") or written.get("data") or published.get("data") or DEFAULT_DATA
    common, usual = (COMMON, DEFAULTS) if not examples else (single.COMMON, single.DEFAULTS)
    # The owners of rows are the natural clients. Dealing the rows of one person to several clients
    # has to be asked for.
    owned = words.get("owner") or written.get("owner") or tables[1].get("owner")
    by_owner: Values = {"partition": "natural"} if owned and not examples else {}
    merged = merge(common, usual.get(data, {}), by_owner, published, written, words)
    method_options |= tables[0] | _assigned(assignments, "--set")
    server_options = tables[2] | _assigned(server, "--server-set")
    if server_options and not merged.get("server"):
        first = next(iter(server_options))
        raise OptionConflict(f"--server-set {first}=... needs --server, whose option it is.")
    chosen = frozenset(words) | frozenset(written)
    return Settings(
        method, merged, chosen, method_options, tables[1], server_options=server_options
    )


def merge(*layers: Values) -> dict[str, str]:
    """One layer over the other, the last one on top; an empty value takes a key away."""
    merged: dict[str, str] = {}
    for layer in layers:
        for group in ALTERNATIVES:
            if any(key in layer for key in group):
                merged = {key: value for key, value in merged.items() if key not in group}
        if layer.get("schedule"):
            # Its noise is played as it is, unless a budget is asked for in the same breath.
            merged.pop("eps", None)
        if layer.get("sampling") == "full":
            merged = {key: value for key, value in merged.items() if key not in ("q", "cohort")}
        elif merged.get("sampling") == "full" and ("q" in layer or "cohort" in layer):
            del merged["sampling"]
        # A population of another kind has another size.
        if "partition" in layer and layer["partition"] != merged.get("partition"):
            if layer["partition"] == "natural":
                merged.pop("clients", None)
            elif not layer.get("clients") and not merged.get("clients"):
                merged["clients"] = COMMON["clients"]
        merged |= layer
    return {key: value for key, value in merged.items() if value}


def refuse_changes(saved: Settings, typed: Settings) -> None:
    """A run goes on as it was begun: what is typed again must be what was typed then.

    Raises:
        OptionConflict: it is something else.
    """
    if typed.method != saved.method:
        raise conflict(typed.method, "--resume", f"the run is one of {saved.method}")
    for key in sorted(typed.chosen):
        was = saved.get(key)
        if key not in FREE and number(typed.get(key)) != number(was):
            said = "says nothing" if was is None else f"has {was}"
            raise conflict(f"{option(key)} {typed.get(key)}", "--resume", f"the run {said}")
    both = (
        ("--set", typed.method_options, saved.method_options),
        ("--server-set", typed.server_options, saved.server_options),
    )
    for flag, ours, theirs in both:
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise conflict(f"{flag} {name}={value}", "--resume", "the run has other options")


def _refuse_alternatives(layer: Values, name: Callable[[str], str]) -> None:
    for one, other in ALTERNATIVES:
        if one in layer and other in layer:
            raise conflict(f"{name(one)} {layer[one]}", f"{name(other)} {layer[other]}")


def _read_config(file: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        rule = f"it cannot be read ({error.strerror})"
        raise InvalidParameter("config", str(file), rule) from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("config", str(file), f"it is not valid TOML ({error})") from None
    tables = [_table(content.pop(name, {}), name, "config", file) for name in TABLES]
    return _texts(content, "config", file), tables


def _texts(content: Mapping[str, Any], name: str, file: Path) -> dict[str, str]:
    for key, value in content.items():
        if key not in KEYS:
            rule = f"{key!r} is no key of it; the keys are {', '.join((*KEYS, *TABLES))}"
            raise InvalidParameter(name, str(file), rule)
        if isinstance(value, bool) and key in FLAGS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InvalidParameter(name, str(file), f"{key} is a number or a text, not {value!r}")
    # A flag that is off is as good as absent.
    return {
        key: "yes" if value is True else "" if value is False else str(value)
        for key, value in content.items()
    }


def _table(value: Any, key: str, name: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidParameter(name, str(file), f"{key} is a table")
    return cast("dict[str, Any]", value)


def _assigned(assignments: tuple[str, ...], flag: str) -> dict[str, Any]:
    """``rho=0.5`` as a name and a value; what is no number, flag or list of TOML is text."""
    found: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise OptionConflict(f"{flag} {text} is no NAME=VALUE, such as rho=0.5.")
        try:
            found[name.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found
