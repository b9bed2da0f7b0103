"""Pictures as files and as text."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest

from dpacct import Poisson, Round
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.pictures import Bar, Cells, Curve, Drawing, Level, Mark, Panel, Picture

PANEL = Panel(
    "x", "y",
    (Curve("a", [0, 1, 2], [0, 1, 4], lower=[0, 0.5, 3]),
     Curve("b $1", [0, 2], [1, 1], steps=True)),
    levels=(Level(3.0, "budget 3"),), marks=(Mark(1, 1, "here"),),
)  # fmt: skip
LINE, POINT = Curve("", [1, 10, 1000], [1e-4, 1e-2, 1]), Curve("p", [2], [0.5], points=True)
LOG = Panel("x", "y", (LINE, POINT), log_x=True, log_y=True, y_max=1.0)
BARS = Panel("epsilon", "", bars=(Bar("one", 2.0, 1.0), Bar("no", None, None, "none")))
CELLS = Cells(["x", "y", "z"], ["1", "2"], [[1.0, 3.0, 4.0], [None, 2.0, 9.0]], 3.0)
MAP = Panel("across", "down", cells=CELLS)
PICTURE = Picture("A title that says $ and what is found", (PANEL, LOG, BARS, MAP), "a note")
SMALL = Picture("t", (BARS,))


def test_pictures_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    assert Drawing(PICTURE).to_bytes("png").startswith(b"\x89PNG")
    assert Drawing(SMALL).to_bytes("pdf").startswith(b"%PDF")
    assert Drawing(SMALL).to_bytes("svg") == Drawing(SMALL).to_bytes("svg")


def test_names_at_the_ends_of_lines_have_their_color_and_do_not_touch() -> None:
    pytest.importorskip("matplotlib")
    from dpacct.pictures.matplotlib import draw

    alike = tuple(Curve(name, [1, 2, 3], [0, at, 1]) for name, at in (("a", 0.2), ("b", 0.5)))
    figure = draw(Picture("t", (Panel("x", "y", alike, levels=(Level(0.7, "c"),)),)))
    figure.draw_without_rendering()
    [axes] = figure.axes
    texts = sorted(axes.texts, key=lambda text: text.get_window_extent().y0)
    assert [text.get_text() for text in texts] == ["c", "a", "b"]
    assert [text.get_color() for text in texts[1:]] == [line.get_color() for line in axes.lines[:2]]
    boxes = [text.get_window_extent() for text in texts]
    assert all(high.y0 >= low.y0 + 0.8 * low.height for low, high in pairwise(boxes))
    # In gray, too, the lines differ.
    assert len({str(line._unscaled_dash_pattern) for line in axes.lines}) == 3


def test_logarithmic_axes_are_labeled_by_plain_numbers() -> None:
    pytest.importorskip("matplotlib")
    from dpacct.pictures.matplotlib import draw

    [axes] = draw(Picture("t", (LOG,))).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "10", "100", "1000"]
    assert [text.get_text() for text in axes.get_yticklabels()][-1] == "1"


def test_a_line_in_a_map_parts_what_is_within_the_limit() -> None:
    pytest.importorskip("matplotlib")
    from dpacct.pictures.matplotlib import draw

    [axes] = draw(Picture("t", (MAP,))).axes
    parts = {tuple(zip(*line.get_data(), strict=True)) for line in axes.lines}
    # Between 3 and 4, around the missing value, and between 2 and 9.
    assert parts == {((2, 0), (2, 1)), ((0, 1), (1, 1)), ((1, 1), (1, 2)), ((2, 1), (2, 2))}
    assert [text.get_text() for text in axes.texts] == [
        "1.000", "3.000", "4.000", "-", "2.000", "9.000",
    ]  # fmt: skip
    assert len(draw(Picture("t", (replace(MAP, cells=replace(CELLS, limit=None)),))).axes) == 1


@pytest.mark.parametrize("width", [3.0, 7.2, 12.0])
def test_a_picture_has_the_width_that_is_asked_for(width: float) -> None:
    pytest.importorskip("matplotlib")
    shown = Drawing(PICTURE).to_bytes("svg", width).decode()
    assert f'viewBox="0 0 {72 * width:g} ' in shown


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
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    drawing = Drawing(Picture("t", (PANEL,)))
    with pytest.raises(Unsupported, match=rf'{package} is not installed: .*install .*"{package}\W'):
        drawing.to_bytes("png") if show == "bytes" else drawing.text()


def test_a_file_is_written_whole_and_never_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "a.svg"
    Drawing(SMALL).save(file)
    with pytest.raises(InvalidParameter, match="exists already"):
        Drawing(SMALL).save(file)
    Drawing(PICTURE).save(file, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    with pytest.raises(InvalidParameter, match=r"a picture ends in \.png, \.svg, \.pdf"):
        Drawing(SMALL).save(tmp_path / "a.gif")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Drawing(SMALL).save(tmp_path / "b.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("width", [1, 80, 300])
def test_text_fits(width: int) -> None:
    pytest.importorskip("plotext")
    text = Drawing(PICTURE).text(width)
    assert max(map(len, text.splitlines())) <= min(max(width, 40), 114)
    assert "\x1b" not in text
    for words in ("A title", "a note", "b $1", "budget 3", "here", "one", "none"):
        assert words in text


def test_text_has_the_decades_of_logarithmic_axes() -> None:
    pytest.importorskip("plotext")
    lines = [line.strip() for line in Drawing(Picture("t", (LOG,))).text(72).splitlines()]
    # The curve reaches from the lower left corner to the upper right one.
    assert any(line.startswith("0.0001+*") for line in lines)
    assert any(line.startswith("1+") and line.endswith("*|") for line in lines)
    assert "1                   10                   100                1000" in lines


def test_bars_are_as_long_as_their_values() -> None:
    bars = (Bar("one", 2.0, 1.0), Bar("two", 4.0))
    lines = Drawing(Picture("t", (Panel("epsilon", "", bars=bars),))).text(72).splitlines()
    assert f"    {'#' * 10}{'=' * 10} 2.0000 (1.0000)" in lines
    assert f"    {'#' * 40} 4.0000" in lines


@pytest.mark.parametrize("value", [0.0, 7e22, -3e299, 1e300])
def test_a_level_curve_of_any_height_is_drawn(value: float) -> None:
    pytest.importorskip("plotext")
    panel = Panel("x", "y", (Curve("", [0, 1], [value, value]),), from_zero=False)
    low, high = panel.limits()[2:]
    assert low < value < high
    assert Drawing(Picture("t", (panel,))).text()
