"""`dpacct epsilon --from FILE`: files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bad_input import assert_refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_cannot_be_read_or_contradicts(dpacct: Any) -> None:
    Path("x.bin").write_bytes(b"hello")
    for words, part in (
        ("nowhere", "--from is 'nowhere'; there is no such file."),
        ("x.bin", "--from is 'x.bin'; it is no checkpoint of Opacus, and no event as .json."),
        ("x.bin --noise 1", "--noise 1 contradicts --from x.bin (the checkpoint says it)"),
        ("x.bin --batch 3", "--batch 3 contradicts --from x.bin"),
    ):
        assert_refused(dpacct(f"epsilon --from {words}"), part)
