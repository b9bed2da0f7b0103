"""The built site: no warning, nothing from elsewhere, formulas typeset, notebooks that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from website import notebooks, pages

ROOT = pages.ROOT
BUILDER = ("sphinx", "furo", "myst_parser", "latex2mathml", "ziamath")
needs_the_builder = pytest.mark.skipif(
    not all(find_spec(name) for name in BUILDER), reason="the group `site` is not installed"
)
RUN = "import sys, pathlib, website.notebooks as n; n.run(pathlib.Path(sys.argv[1]))"


@needs_the_builder
def test_every_formula_of_the_derivations_is_typeset():
    from website.mathml import to_mathml

    shown = 0
    for page in sorted((ROOT / "docs" / "derivations").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for formula in re.findall(r"```math\n(.*?)```", text, re.DOTALL):
            shown += "<math" in to_mathml(formula, display=True)
        for formula in re.findall(r"\$`([^`]+)`\$", text):
            shown += "<math" in to_mathml(formula, display=False)
    assert shown > 1000


@needs_the_builder
@pytest.mark.parametrize("formula", [r"\nosuch{x}", "x^{2", "x^a^b", r"\left( x"])
def test_a_formula_that_cannot_be_typeset_is_an_error(formula):
    from website.mathml import FormulaError, to_mathml

    with pytest.raises(FormulaError, match=re.escape(repr(formula))):
        to_mathml(formula, display=False)


class Loads(HTMLParser):
    """What a page loads from elsewhere, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        for name in ("src", "srcset", "href", "data", "poster"):
            if name in given:
                (self.links if tag == "a" else self.loaded).append(given[name])


def read_html(file: Path) -> Loads:
    page = Loads()
    page.feed(file.read_text(encoding="utf-8"))
    return page


@needs_the_builder
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "website", "--into", str(tmp_path)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "html"
    built = {file.relative_to(site).as_posix(): read_html(file) for file in site.rglob("*.html")}
    expected = {pages.site_path(page).removesuffix(".md") + ".html" for page in pages.all_pages()}
    assert expected <= set(built)
    for name, page in built.items():
        assert [url for url in page.loaded if urlsplit(url).netloc] == [], name
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (
                (site / name).parent.joinpath(unquote(parts.path)).resolve()
                if parts.path
                else site / name
            )
            assert there.exists(), f"{name} links to {link}"
            target = there.relative_to(site.resolve()).as_posix() if parts.path else name
            if parts.fragment and target in built:
                found = unquote(parts.fragment)
                assert found in built[target].anchors, f"{name} links to {link}"
    for style in site.rglob("*.css"):
        assert not re.search(
            r"url\(\s*['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")
        )
    page = (site / "derivations" / "moments.html").read_text(encoding="utf-8")
    assert page.count("<math") > 100
    assert "prefers-color-scheme: dark" in page
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "derivations/moments" in index
    assert "calibrate" in index


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", sorted(notebooks.TUTORIALS.glob("*.md")), ids=lambda page: page.stem
)
def test_every_notebook_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # Commands of a cell find the program of this environment.
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]))
    file = tmp_path / f"{page.stem}.ipynb"
    file.write_text(notebooks.notebook_of(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(file)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = [cell for cell in json.loads(file.read_text())["cells"] if cell.get("outputs")]
    assert len(outputs) >= 3
