"""The pages of the site, their places in the navigation, and broken links.

Pages are Markdown that GitHub shows too. `docs/navigation.toml` says in which order a reader of
the site meets them.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAVIGATION = "docs/navigation.toml"
HOME = "docs/index.md"
# Pages outside docs/ and the README.md of each folder of evidence/.
LOOSE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")

FENCED = re.compile(r"^(?P<indent> *)(`{3,}).*?^(?P=indent)\2 *$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=\))")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A caption of the navigation and the pages below it, as paths from the root."""

    title: str
    pages: tuple[str, ...]


def navigation(root: Path = ROOT) -> tuple[Section, ...]:
    """Return the sections in the order in which they are read."""
    entries: dict[str, Any] = tomllib.loads((root / NAVIGATION).read_text(encoding="utf-8"))
    return tuple(
        Section(section["title"], tuple(section["pages"])) for section in entries["section"]
    )


def all_pages(root: Path = ROOT) -> tuple[str, ...]:
    """Return every written page of the site, as paths from the root."""
    files = [*(root / "docs").rglob("*.md"), *(root / "evidence").glob("*/README.md")]
    found = [str(PurePosixPath(file.relative_to(root))) for file in files]
    return tuple(sorted([*found, *(name for name in LOOSE if (root / name).is_file())]))


def site_path(page: str) -> str:
    """Return the path of a page on the site: docs/how-to/ledger.md becomes how-to/ledger.md."""
    if page.startswith("docs/"):
        return page.removeprefix("docs/")
    if page.endswith("/README.md"):
        return page.removesuffix("/README.md") + ".md"
    return page.lower()


def misplaced(root: Path = ROOT) -> list[str]:
    """Return the faults of the navigation, each with its remedy in one sentence."""
    listed = Counter(page for section in navigation(root) for page in section.pages)
    there = set(all_pages(root))
    return [
        *(
            f"{page} is in no section of {NAVIGATION}; add it to the `pages` of the section in "
            "which a reader would look for it"
            for page in sorted(there - set(listed))
        ),
        *(
            f"{NAVIGATION} lists {page}, which is no page; write it, or take the line out"
            for page in sorted(set(listed) - there)
        ),
        *(
            f"{NAVIGATION} lists {page} {times} times; a page has one place"
            for page, times in listed.items()
            if times > 1
        ),
    ]


def prose(text: str) -> str:
    """Return a page with blank code blocks and spans. Everything else keeps its place."""
    for code in (FENCED, CODE_SPAN):
        text = code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and the site give to a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    text = re.sub(r"\$`([^`]*)`\$", r"\1", text).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return all anchors of a page. A repeated heading gets a number."""
    found: Counter[str] = Counter()
    names: set[str] = set()
    for match in HEADING.finditer(FENCED.sub("", text)):
        name = anchor(match["text"])
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def local_links(text: str) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page that lead to other files or anchors."""
    for match in LINK.finditer(prose(text)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["target"]


@cache
def _anchors_of(file: Path) -> set[str]:
    return anchors(file.read_text(encoding="utf-8"))


def broken_links(page: str, root: Path = ROOT) -> list[str]:
    """Return the broken links of a page, each with the missing target."""
    file = root / page
    broken: list[str] = []
    for target in local_links(file.read_text(encoding="utf-8")):
        path, _, name = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        if not there.exists():
            broken.append(f"{page} links to {target}: no such file")
        elif there.is_dir():
            broken.append(f"{page} links to the folder {target}; link to a page of it")
        elif name and there.suffix == ".md" and name not in _anchors_of(there):
            broken.append(f"{page} links to {target}: no such heading")
    return broken
