"""Running the command line in this process, and a schedule file to run it on."""

from __future__ import annotations

import functools
import io
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dpacct_cli import app as commands
from dpacct_cli import outputs
from dpacct_cli.app import app

# A process imports one command; the tests run each of them often.
commands.load = functools.cache(commands.load)

SCHEDULE = """\
[[phase]]
rounds = 100
noise_multiplier = 1.0
sampling_rate = 0.1

[[phase]]
rounds = 200
noise_multiplier = 0.8
sampling_rate = 0.05
"""


@functools.cache
def _validator(name: str) -> Any:
    """That the schema itself is valid is tested elsewhere, and would take longer each time."""
    schema = outputs.schema(name)
    return import_module("jsonschema.validators").validator_for(schema)(schema)


class Ran:
    """What a command line did."""

    def __init__(self, words: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            app(words)
        self.code = end.value.code
        self._name = "-".join(words[: 2 if words[:1] == ["ledger"] else 1])
        self.out = out.getvalue()
        self.err = err.getvalue()

    @property
    def json(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        data = json.loads(self.out)
        if find_spec("jsonschema") is not None:
            _validator(self._name).validate(data)
        # Every JSON object names the version of its keys.
        assert data.pop("schema") == 1
        return data

    @property
    def text(self) -> str:
        assert self.code == 0, self.err
        return self.out


@pytest.fixture
def dpacct() -> Callable[..., Ran]:
    """Runs `dpacct` with the words of the given lines, split as a shell would."""

    def run(*lines: str) -> Ran:
        return Ran([word for line in lines for word in shlex.split(line)])

    return run


@pytest.fixture(autouse=True)
def _charts_of_reports_are_drawn_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of reports draw them, which takes a second each."""
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # noqa: E501 - one pixel
    monkeypatch.setattr("dpacct.report.document._image", lambda *_: f"data:image/png;base64,{dot}")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Models this small wait for threads longer than they compute."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, where no data sets are known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPACCT_DATA", raising=False)
    return tmp_path


@pytest.fixture
def schedule_file(tmp_path: Path) -> str:
    """A schedule of two phases."""
    file = tmp_path / "rounds.toml"
    file.write_text(SCHEDULE, encoding="utf-8")
    return str(file)
