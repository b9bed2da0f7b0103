"""Runs that are stopped on the way."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _digits_are_read_once() -> Iterator[None]:
    """Nearly every run trains on them, and a tenth of its time would be reading their text."""
    if find_spec("sklearn") is None:
        yield
        return
    datasets = import_module("sklearn.datasets")
    read = datasets.load_digits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", lambda: copy.deepcopy(read))
        yield


StopAfter = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> StopAfter:
    """Ctrl-C, or an error of its own, while the line of a round is written to the report."""

    @contextmanager
    def stopping(number: int, times: int = 1, error: type[Exception] | None = None) -> Any:
        from dpacct_cli.train import run

        append = run._append

        def interrupting(file: Path, report: Any, tested: dict[str, Any]) -> None:
            if error is None:
                append(file, report, tested)
            if report.round == number:
                if error is not None:
                    raise error
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(run, "_append", interrupting)
            yield

    return stopping
