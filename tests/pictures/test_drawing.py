"""Pictures as files and as text."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

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


def test_names_at_the_end_of_lines_do_not_touch() -> None:
    pytest.importorskip("matplotlib")
    from dpacct.pictures.matplotlib import draw

    alike = tuple(Curve(name, [1, 2, 3], [0, at, 1]) for name, at in (("a", 0.2), ("b", 0.5)))
    figure = draw(Picture("t", (Panel("x", "y", alike),)))
    figure.draw_without_rendering()
    [axes] = figure.axes
    first, second = sorted(text.get_window_extent().y0 for text in axes.texts)
    assert second - first >= axes.texts[0].get_window_extent().height * 0.8
    # In gray, too, two lines differ.
    assert len({str(line._unscaled_dash_pattern) for line in axes.lines}) == 2


def test_a_notebook_shows_a_schedule() -> None:
    pytest.importorskip("matplotlib")
    drawing = (3 * Round(1.0, Poisson(0.1))).plot()
    assert isinstance(drawing, Drawing)
    assert "<svg" in drawing._repr_svg_()
    assert "3 rounds at noise 1" in str(drawing)


@pytest.mark.parametrize(("package", "show"), [("matplotlib", "bytes"), ("plotext", "text")])
def test_a_missing_package_is_named(
    package: str, show: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "dpacct.pictures.matplotlib", raising=False)
    drawing = Drawing(Picture("t", (PANEL,)))
    with pytest.raises(Unsupported, match=rf"{package} .*pip install -e '.\[plot\]'"):
        drawing.to_bytes("png") if show == "bytes" else drawing.text()


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
def test_text_fits(width: int) -> None:
    pytest.importorskip("plotext")
    text = Drawing(PICTURE).text(width)
    assert max(map(len, text.splitlines())) <= min(max(width, 40), 114)
    assert "\x1b" not in text
    for words in ("A title", "a note", "b $1", "budget 3", "here", "one", "none"):
        assert words in text


def test_bars_are_as_long_as_their_values() -> None:
    bars = (Bar("one", 2.0, 1.0), Bar("two", 4.0))
    lines = Drawing(Picture("t", (Panel("epsilon", "", bars=bars),))).text(72).splitlines()
    assert f"    {'#' * 10}{'=' * 10} 2.0000 (1.0000)" in lines
    assert f"    {'#' * 40} 4.0000" in lines
