"""What the documentation site is made of: its pages, generated pages and notebooks."""

from __future__ import annotations

import base64
import json
import re

import pytest

from dpacct.items import RELEASES, ROUND, SAMPLINGS
from website import ROOT, commands, items, notebooks, source


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
    assert "[none]" not in text
    assert "[/]" not in text
    for path, command in commands.commands():
        assert command.help
        assert f"## {path}\n" in text
        section = text.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            assert all(name in section for name in parameter.opts if name.startswith("-"))


@pytest.mark.needs("torch")
def test_every_public_name_is_described_on_one_page_and_listed_on_those_of_its_modules():
    written = source.functions()
    text = "\n".join(written.values())
    listed = {module.__name__ for module in source.modules()}
    assert {"dpacct", "dpacct.fl", "dpacct.ledger", "dpacct.risk"} <= listed
    for module in source.modules():
        page = written[f"docs/reference/api/{module.__name__}.rst"]
        for name in source.public_names(module):
            own = re.search(rf"^   {name}$", page, re.MULTILINE)
            home = re.search(rf"^   ~(\S+)\.{name}$", page, re.MULTILINE)
            assert bool(own) != bool(home), f"{module.__name__}: {name}"
            at = written[f"docs/reference/api/{home[1]}.rst"] if home else page
            assert len(re.findall(rf"^\.\. auto\w+:: {name}$", at, re.MULTILINE)) == 1, name
    ledger = text.partition(".. autoclass:: Ledger\n")[2].partition("\n\n")[0]
    assert {"charge", "remaining", "runs"} <= set(re.findall(r"\w+", ledger))


def test_a_tutorial_becomes_a_notebook_with_its_outputs_pictures_and_links():
    page = (
        "# Title\n\nText with $`x^2`$ and a [link](../how-to/ledger.md#a).\n\n"
        "```python\n>>> x = [\n...     1]\n>>> x\n[1]\n>>> len(x)\n1\n\n```\n\n"
        "```toml file=a.toml\nb = 1\n```\n\n```console\n$ echo one\none\n```\n\n"
        "```python\n>>> print(3)\n3\n\n```\n\n```text\nlooked at\n```\n\n"
        "![Risk](../pictures/tradeoff.png)\n"
    )
    read = json.loads(notebooks.notebook_of(page))
    programs, *cells = read["cells"]
    assert 'os.environ["PATH"]' in programs["source"]
    assert [cell["source"] for cell in cells] == [
        "# Title\n\nText with $x^2$ and a [link](../../docs/how-to/ledger.html#a).",
        "x = [\n    1]\nprint(x)\nlen(x)",
        "%%writefile a.toml\nb = 1",
        "!echo one",
        "print(3)",
        "```text\nlooked at\n```\n\n![Risk](attachment:tradeoff.png)",
    ]
    outputs = [
        [each.get("text", each.get("data")) for each in cell.get("outputs", [])] for cell in cells
    ]
    assert outputs == [[], ["[1]\n", {"text/plain": "1"}], [], ["one\n"], ["3\n"], []]
    picture = base64.b64decode(cells[-1]["attachments"]["tradeoff.png"]["image/png"])
    assert picture == (ROOT / "docs" / "pictures" / "tradeoff.png").read_bytes()


@pytest.mark.parametrize(
    "page", sorted(notebooks.TUTORIALS.glob("*.md")), ids=lambda page: page.stem
)
def test_the_cells_of_every_tutorial_are_python(page):
    read = json.loads(notebooks.notebook_of(page.read_text(encoding="utf-8")))
    sources = [cell["source"] for cell in read["cells"] if cell["cell_type"] == "code"]
    assert len(sources) >= 3
    for code in sources:
        if not code.startswith(("!", "%%")):
            compile(code, page.name, "exec")


@pytest.mark.parametrize("page", source.pages())
def test_formulas_stand_in_the_notation_that_github_shows(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "$$" not in re.sub(r"^```.*?^```|`[^`]+`", " ", text, flags=re.DOTALL | re.MULTILINE)


def test_the_home_page_leads_to_every_page():
    home = source.home()
    listed = re.findall(r"^[\w/-]+$", home, re.MULTILINE)
    written = {page.removesuffix(".md") for page in source.pages()}
    assert written - {"docs/index"} <= set(listed)
    assert len(listed) == len(set(listed))
    assert "](docs/tutorials/first-calibration.md)" in home
