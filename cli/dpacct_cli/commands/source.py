"""`dpacct epsilon --from FILE`: the rounds of a file of another tool.

A checkpoint of Opacus and an event of dp-accounting say which rounds ran.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.packages import import_package
from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule
from dpacct_cli.errors import conflict
from dpacct_cli.options import MechanismOptions
from dpacct_cli.output import is_there
from dpacct_cli.words import about_examples, called

LABEL = "--from"


def read_source(file: str, typed: MechanismOptions) -> tuple[str, Schedule]:
    """Return the kind of a file and its rounds.

    Raises:
        InvalidParameter, OptionConflict, Unsupported: the content of the file is not known, an
            option contradicts it, or it needs a package that is missing.
    """
    path = Path(file)
    if not is_there(file):
        raise InvalidParameter(LABEL, file, "there is no such file")
    is_event = path.suffix.lower() == ".json"
    kind = "event" if is_event else "checkpoint"
    said = typed._replace(clients=None, adjacency=None if is_event else typed.adjacency)
    for name, text in said.by_option().items():
        raise conflict(f"{called(name)} {text}", f"{LABEL} {file}", f"the {kind} says it")
    if is_event:
        return kind, _of_event(path, typed.relation or Adjacency.ADD_REMOVE)
    return kind, _of_checkpoint(path)


def _of_event(path: Path, adjacency: Adjacency) -> Schedule:
    """Return the rounds of ``event.to_named_tuple()`` as nested JSON objects."""
    from dpacct.interop.dp_accounting import schedule_of_event

    package = import_package("dp_accounting", "dp-accounting", "0.6", "dp-accounting")

    def made(fields: dict[str, Any]) -> Any:
        name = str(fields.pop("class_name", None))
        fields.pop("module_name", None)
        kind = getattr(package, name, None)
        if not (isinstance(kind, type) and issubclass(kind, package.DpEvent)):
            raise _refused(path, f"{name!r} is no event of dp-accounting")
        try:
            return kind(**fields)
        except TypeError as error:
            raise _refused(path, f"{name}: {error}") from None

    try:
        # Inner objects become events first.
        event: Any = json.loads(path.read_bytes(), object_hook=made)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidParameter):
            raise
        raise _refused(path, "it is not JSON") from None
    if not isinstance(event, package.DpEvent):
        raise _refused(path, "it holds no event of dp-accounting")
    return schedule_of_event(event, adjacency)


def _of_checkpoint(path: Path) -> Schedule:
    if not zipfile.is_zipfile(path):
        hint = "A ledger has dpacct ledger show, and a schedule --schedule."
        raise _refused(path, "it is no checkpoint of Opacus, and no event as .json", hint)
    from dpacct.interop.opacus import TightAccountant

    torch = import_package("torch", "torch", "2", "opacus")
    accountant = TightAccountant()
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
        accountant.load_state_dict(found["privacy_accountant_state_dict"])
    except (pickle.UnpicklingError, RuntimeError, TypeError, KeyError, ValueError):
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


def _refused(path: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter(LABEL, str(path), rule, hint)
