"""Runs that are stopped on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

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
