"""A terminal gets panels that fit it; a pipe gets the same words as plain text."""

from __future__ import annotations

import sys
from typing import Any

import pytest

LINES = [
    "calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 --clip 0.5",
    "epsilon --noise 2.4 --rounds 3 --q 0.1 --clients 2000 --claim 0.1",
]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("line", LINES)
def test_lines_fit_the_terminal(
    dpacct: Any, line: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dpacct(line).text
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("dpacct_cli.render._on_terminal", lambda: True)
    text = dpacct(line).text
    assert "\x1b[" not in text or sys.stdout.isatty()
    prose = [shown for shown in text.splitlines() if "dpacct " not in shown]
    assert max(map(len, prose)) <= columns
    figures = {word for word in whole.split() if word[:1].isdigit()}
    assert figures <= set(text.split())
