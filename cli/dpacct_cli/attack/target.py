"""The model that is attacked: a checkpoint of `dpacct train`, with the settings beside it.

Rule: a checkpoint, its settings, its data and its ledger belong together, or the attack is refused:
a model on other people's data would be found to know nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct.fl.engine.checkpoint import load_parameters, read_checkpoint
from dpacct.fl.layout import trainable
from dpacct_cli.errors import conflict
from dpacct_cli.train.files import SETTINGS, RunFiles
from dpacct_cli.train.job import Job, build_job
from dpacct_cli.train.resume import ledger_of
from dpacct_cli.train.settings import Settings, load

ARGUMENT = "CHECKPOINT"
_SUFFIX = ".checkpoint"
_SIZES = re.compile(r"(?P<clients>\d+) clients, (?P<size>\d+) parameters")


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A trained model with all that it was made of.

    Attributes:
        path: of the checkpoint. content: what it holds.
        settings, files, job: of its run. The job's model has the checkpoint's parameters.
        rounds: that were released until then.
    """

    path: Path
    content: Mapping[str, Any]
    settings: Settings
    files: RunFiles
    job: Job
    rounds: int


def read_target(text: str, data: str | None, changed: Mapping[str, str | None]) -> Target:
    """The model of a checkpoint.

    Args:
        text: the file. data: what its run is said to have been trained on, or None.
        changed: settings that may differ from those of the run.
    Raises:
        InvalidParameter: no checkpoint of `dpacct train`, or one of other settings or data.
        OptionConflict: it was trained on other data than is said.
    """
    path = Path(text)
    if path.suffix != _SUFFIX and path.is_file():
        rule = f"a checkpoint of dpacct train ends in {_SUFFIX}"
        raise InvalidParameter(ARGUMENT, text, rule)
    try:
        content = read_checkpoint(path, "cpu")
        settings = _settings_of(path)
    except InvalidParameter as error:
        raise named(error) from None
    own = settings.values.get("data")
    if data is not None and data != own:
        raise conflict(f"--data {data}", f"{ARGUMENT} {text}", f"its model was trained on {own}")
    typed = {key: value for key, value in changed.items() if value is not None}
    settings = replace(settings, values={**settings.values, **typed})
    job = build_job(settings)
    stem = path.name.removesuffix(_SUFFIX)
    files = RunFiles(ledger_of(path.with_name(stem + SETTINGS), settings), stem)
    try:
        _take_parameters(job, content, path)
    except InvalidParameter as error:
        raise named(error) from None
    done = content.get("round")
    if type(done) is not int or done < 0:
        raise InvalidParameter(ARGUMENT, text, "it does not say how many rounds it holds")
    return Target(path, content, settings, files, job, done)


def _settings_of(path: Path) -> Settings:
    file = path.with_name(path.name.removesuffix(_SUFFIX) + SETTINGS)
    if not file.is_file():
        rule = f"the settings of its run stand beside it, and there is no {file}"
        hint = "dpacct train writes both; dpacct.fl.attacks takes any model."
        raise InvalidParameter(ARGUMENT, str(path), rule, hint)
    return load(file)


def _take_parameters(job: Job, content: Mapping[str, Any], path: Path) -> None:
    size = sum(value.numel() for value in trainable(job.model).values())
    setting = content.get("setting")
    sizes = _SIZES.search(setting) if isinstance(setting, str) else None
    for key, here, what in (
        ("clients", len(job.clients), "clients"),
        ("size", size, "parameters"),
    ):
        if sizes is not None and int(sizes[key]) != here:
            rule = (
                f"its run had {int(sizes[key]):,} {what}, and by the settings beside it there are "
                f"{here:,}: it belongs to another model, or the data have changed"
            )
            raise InvalidParameter(ARGUMENT, str(path), rule)
    load_parameters(dict(content), path, job.model)


def named(error: InvalidParameter) -> InvalidParameter:
    """The same refusal, of the argument of this command."""
    name = ARGUMENT if error.name in ("checkpoint", "resume") else error.name
    return InvalidParameter(name, error.value, error.rule, error.hint)
