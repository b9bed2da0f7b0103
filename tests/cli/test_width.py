"""On a terminal no line is longer than it is wide, but for commands that are to be copied."""

from __future__ import annotations

from typing import Any

import pytest

from dpacct_cli import render

LINES = [
    "calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 --clip 0.5",
    "epsilon --noise 2.4 --rounds 3 --q 0.1 --clients 2000 --claim 0.1",
    "risk --eps 8 --rounds 30 --q 0.1",
    "rdp --noise 1 --q 0.1",
    "claims check fed-alpha-normec-p0.25",
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("line", LINES)
def test_lines_fit_the_terminal(
    dpacct: Any, line: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dpacct(line).text
    monkeypatch.setattr(render, "terminal_width", lambda: columns)
    text = dpacct(line).text
    prose = [shown for shown in text.splitlines() if "dpacct " not in shown]
    assert max(map(len, prose)) <= columns
    figures = {word for word in whole.split() if word[:1].isdigit()}
    assert figures <= set(text.split())


def test_a_pipe_has_no_width(dpacct: Any) -> None:
    assert render.terminal_width() >= 10**6
    assert any(len(line) > 80 for line in dpacct(LINES[0]).text.splitlines())
