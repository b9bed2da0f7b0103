"""A server of one's own for the tests of this folder, which are skipped without PostgreSQL."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.postgres_server import MISSING, Server, program

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if find_spec("psycopg") is None:
        pytest.skip("needs psycopg")
    if program("initdb") is None or os.name != "posix":
        pytest.skip(MISSING)
    memory = Path("/dev/shm")  # noqa: S108 - a folder that the system keeps for this
    running = Server(str(memory) if memory.is_dir() else None)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The positions that this machine keeps, for each test its own."""
    monkeypatch.setenv("DPACCT_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def address(server: Server) -> str:
    """The address of a ledger that is not there yet."""
    return f"{server.url()}#census{next(_NUMBERS)}"
