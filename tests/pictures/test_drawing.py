"""Pictures as files and as text."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpacct import Poisson, Round
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.pictures import Bar, Curve, Drawing, Level, Mark, Panel, Picture

PANEL = Panel(
    "x", "y",
    (Curve("a", [0, 1, 2], [0, 1, 4], lower=[0, 0.5, 3]),
     Curve("b $1", [0, 2], [1, 1], steps=True)),
    levels=(Level(3.0, "budget 3"),), marks=(Mark(1, 1, "here"),),
)  # fmt: skip
LOG = Panel("x", "y", (Curve("", [1, 10], [0.1, 1]), Curve("p", [2], [0.5], points=True)),
            log_x=True, log_y=True, y_max=1.0)  # fmt: skip
BARS = Panel("epsilon", "", bars=(Bar("one", 2.0, 1.0), Bar("no", float("inf"), None, "none")))
PICTURE = Picture("A title that says $ and what is found", (PANEL, LOG, BARS), "a note")
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("form", STARTS)
def test_pictures_are_drawn(form: str, *, dark: bool) -> None:
    pytest.importorskip("matplotlib")
    drawn = Drawing(PICTURE, dark=dark).to_bytes(form)
    assert drawn.startswith(STARTS[form])
    assert drawn != Drawing(PICTURE, dark=not dark).to_bytes(form)


def test_names_of_several_lines_stand_beside_a_piece_of_their_line() -> None:
    pytest.importorskip("matplotlib")
    from dpacct.pictures.matplotlib import draw

    alike = [Curve(name, [1, 2, 3], [0, at, 1]) for name, at in (("a", 0.2), ("b", 0.5))]
    dots = Curve("c", [1, 2], [0, 1], points=True)
    figure = draw(Picture("t", (Panel("x", "y", (*alike, dots)),)))
    figure.draw_without_rendering()
    drawn, samples = figure.axes[0].lines[:3], figure.axes[0].lines[3:]
    assert [_look(line) for line in samples] == [_look(line) for line in drawn]
    assert len({_look(line)[1:] for line in samples}) == 3
    assert all(line.get_window_extent().x0 > figure.axes[0].bbox.x1 for line in samples)
    alone = draw(Picture("t", (Panel("x", "y", (alike[0],)),)))
    assert len(alone.axes[0].lines) == 1


def _look(line: Any) -> tuple[str, str, str]:
    return line.get_color(), str(line._unscaled_dash_pattern), line.get_marker()


def test_a_notebook_shows_a_schedule() -> None:
    pytest.importorskip("matplotlib")
    drawing = (3 * Round(1.0, Poisson(0.1))).plot()
    assert isinstance(drawing, Drawing)
    assert "<svg" in drawing._repr_svg_()
    assert "3 rounds at noise 1" in str(drawing)


def test_without_matplotlib_text_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unsupported, match=r"pip install 'dpacct\[plot\]'"):
        Drawing(PICTURE).to_bytes("png")
    assert "A title" in Drawing(PICTURE).text()


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "a.png"
    Drawing(PICTURE).save(file)
    with pytest.raises(InvalidParameter, match="exists already"):
        Drawing(PICTURE).save(file)
    Drawing(PICTURE, dark=True).save(file, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(InvalidParameter, match=r"a picture ends in \.png, \.svg, \.pdf"):
        Drawing(PICTURE).save(tmp_path / "a.gif")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Drawing(PICTURE).save(tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [1, 40, 80, 300])
def test_text_is_ascii_and_fits(width: int) -> None:
    text = Drawing(PICTURE).text(width)
    assert text.isascii()
    inner = min(max(width, 44), 114)
    assert max(map(len, text.splitlines())) <= inner
    for words in ("A title", "a note", "* a", "o b $1", "- budget 3", "O here", "one", "none"):
        assert words in text


def test_a_curve_is_where_it_is() -> None:
    text = Drawing(Picture("t", (Panel("x", "y", (Curve("", [0, 10], [0, 10]),)),))).text(44)
    rows = [line.partition("|")[2] for line in text.splitlines() if "|" in line]
    assert (rows[0].rstrip()[-1], rows[0].rstrip().count("*")) == ("*", 2)
    assert rows[0].rstrip() == " " * 28 + "**"
    assert rows[-1].startswith("*")
