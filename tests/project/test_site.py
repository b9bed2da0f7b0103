"""The documentation site: every page has its place, and every link leads somewhere."""

from __future__ import annotations

import json
import re

import pytest

import dpacct
from dpacct.items import RELEASES, ROUND, SAMPLINGS
from website import api, commands, items, notebooks, pages, stage

ROOT = pages.ROOT
TUTORIALS = sorted(notebooks.TUTORIALS.glob("*.md"))


def test_every_page_has_one_place_in_the_navigation():
    assert not pages.misplaced(), "\n".join(pages.misplaced())


def test_a_page_without_a_place_is_told_where_to_go(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n", encoding="utf-8")
    (tmp_path / "docs" / "new.md").write_text("# New\n", encoding="utf-8")
    listed = '[[section]]\ntitle = "Start"\npages = ["docs/index.md", "docs/gone.md"]\n'
    (tmp_path / "docs" / "navigation.toml").write_text(listed, encoding="utf-8")
    missing, gone = pages.misplaced(tmp_path)
    assert missing.startswith("docs/new.md is in no section of docs/navigation.toml; add it to")
    assert gone.startswith("docs/navigation.toml lists docs/gone.md, which is no page")


@pytest.mark.parametrize("page", pages.all_pages())
def test_every_link_and_anchor_of_the_page_leads_somewhere(page):
    broken = pages.broken_links(page)
    assert not broken, "\n".join(broken)


def test_broken_links_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# There\n\n## A `b` c\n\n## A b c\n", encoding="utf-8")
    text = (
        "[ok](there.md#a-b-c) [ok](there.md#a-b-c-1) [ok](https://x.org/y#z) `[no](gone.md)`\n\n"
        "```text\n[no](gone.md)\n```\n\n[bad](gone.md) [bad](there.md#c) [bad](#here) [bad](.)\n"
    )
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert [
        line.partition(" links to ")[2] for line in pages.broken_links("page.md", tmp_path)
    ] == [
        "gone.md: no such file",
        "there.md#c: no such heading",
        "#here: no such heading",
        "the folder .; link to a page of it",
    ]


def test_the_page_of_items_has_every_key():
    text = items.text()
    for item in (ROUND, *SAMPLINGS.values(), *RELEASES.values()):
        for key in item.keys:
            assert key.help, (item.name, key.name)
            assert f"| `{key.name}` |" in text
            assert key.help in text.replace("&#124;", "|")
    assert "`schedule-file`" in text


def test_every_option_is_on_the_page_of_commands():
    text = commands.text()
    for path, command in commands.commands():
        assert command.help
        assert f"## {path}\n" in text
        section = text.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            assert all(name in section for name in parameter.opts if name.startswith("-"))


@pytest.mark.needs("torch")
def test_every_public_name_has_a_page_of_functions():
    written = api.pages()
    everything = "\n".join(written.values())
    rooms = [module for module in api.modules() if module is not dpacct]
    assert {"dpacct.fl", "dpacct.ledger", "dpacct.risk"} <= {room.__name__ for room in rooms}
    for module in api.modules():
        page = written[api.page_name(module)]
        for name in api.public_names(module):
            assert re.search(rf"({{py:\w+}} {name}\b|- `{name}` is )", page), f"{module}: {name}"
    for home in re.findall(r"` is {py:obj}`([\w.]+)`", everything):
        module, _, name = home.rpartition(".")
        assert re.search(rf"{{py:\w+}} {name}\b", written[f"reference/api/{module}"]), home


def test_a_docstring_becomes_markdown():
    doc = (
        "The moment I(a) = E[x_1^a], see ``code_here`` and docs/derivations/moments.md.\n\n"
        "Args:\n    order: a, any of\n        these.\n    low, high: *two* of them.\n"
        "Error:\n    At most 1e-9 * |x|.\nRaises:\n    InvalidParameter: too <small>.\n"
        "Source: Somebody 2020."
    )
    assert api.markdown(doc) == (
        "The moment I(a) = E\\[x_1\\^a\\], see ``code_here`` and "
        "[derivations/moments](/derivations/moments.md).\n\n"
        "**Args**\n\n- `order`: a, any of\n  these.\n- `low`, `high`: \\*two\\* of them.\n\n"
        "**Error.** At most 1e-9 \\* \\|x\\|.\n\n"
        "**Raises**\n\n- `InvalidParameter`: too \\<small\\>.\n\n"
        "**Source.** Somebody 2020."
    )


def test_a_tutorial_becomes_a_notebook():
    page = (
        "# Title\n\nText with $`x^2`$ and a [link](other.md).\n\n```python\n>>> x = [\n...     1]\n"
        ">>> x\n[1]\n>>> len(x)\n1\n\n```\n\n```toml file=a.toml\nb = 1\n```\n\n"
        "```console\n$ echo one\none\n```\n\n```text\nlooked at\n```\n"
    )
    read = json.loads(notebooks.notebook_of(page))
    assert [cell["cell_type"] for cell in read["cells"]] == [
        "markdown", "code", "code", "code", "markdown",
    ]  # fmt: skip
    assert [cell["source"] for cell in read["cells"]] == [
        "# Title\n\nText with $x^2$ and a [link].",
        "x = [\n    1]\nprint(x)\nlen(x)",
        "%%writefile a.toml\nb = 1",
        "!echo one",
        "```text\nlooked at\n```",
    ]


@pytest.mark.parametrize(
    "page", sorted(notebooks.TUTORIALS.glob("*.md")), ids=lambda page: page.stem
)
def test_the_cells_of_every_tutorial_are_python(page):
    read = json.loads(notebooks.notebook_of(page.read_text(encoding="utf-8")))
    sources = [cell["source"] for cell in read["cells"] if cell["cell_type"] == "code"]
    assert len(sources) >= 3
    for source in sources:
        if not source.startswith(("!", "%%")):
            compile(source, page.name, "exec")


def test_pages_move_with_their_links_pictures_and_formulas():
    files: set[str] = set()
    text = (
        "See [risk](../../docs/explanation/attack-risk.md#in-python), "
        "![picture](picture.png), $`a_1`$ and\n\n"
        '```math\nx\n```\n\n```python skip="no"\n[a](b.md)\n```\n'
    )
    moved = stage.staged("evidence/pictures/README.md", text, files)
    assert moved == (
        "See [risk](../explanation/attack-risk.md#in-python), "
        "![picture](../files/evidence/pictures/picture.png), {math}`a_1` and\n\n"
        "```{math}\nx\n```\n\n```python\n[a](b.md)\n```\n"
    )
    assert files == {"evidence/pictures/picture.png"}


def test_formulas_stand_in_the_notation_that_github_shows():
    for page in pages.all_pages():
        prose = pages.prose((ROOT / page).read_text(encoding="utf-8"))
        assert "$$" not in prose, page
