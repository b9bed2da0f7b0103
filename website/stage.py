"""Assemble the input of Sphinx: the pages at their places on the site, and generated files."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from website import api, commands, items
from website.notebooks import notebook_of
from website.pages import (
    CODE_SPAN,
    FENCED,
    HOME,
    LINK,
    ROOT,
    Section,
    all_pages,
    navigation,
    site_path,
)

# Pygments' grammar for each language of a fence. Other languages are plain text.
LANGUAGES = {"python": "python", "toml": "toml", "json": "json", "sh": "sh", "console": "console"}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]+)(?P<options>[^\n`]*)$", re.MULTILINE)
INLINE_FORMULA = re.compile(r"\$`([^`]+)`\$")
GENERATED = "Commands and functions"


def staged(page: str, text: str, files: set[str], root: Path = ROOT) -> str:
    """Return the text of a page for its place on the site. ``files`` collects linked files."""
    here = posixpath.dirname(site_path(page))
    places = {other: site_path(other) for other in all_pages(root)}

    def move(match: re.Match[str]) -> str:
        path, hash_mark, name = match["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if target not in places:
            files.add(target)
        place = places.get(target, f"files/{target}")
        return posixpath.relpath(place, here or ".") + hash_mark + name

    pieces: list[str] = []
    last = 0
    for code in re.finditer(
        f"{FENCED.pattern}|{INLINE_FORMULA.pattern}|{CODE_SPAN_ALONE}",
        text,
        re.MULTILINE | re.DOTALL,
    ):
        pieces += [LINK.sub(move, text[last : code.start()]), _code(code[0])]
        last = code.end()
    pieces.append(LINK.sub(move, text[last:]))
    return "".join(pieces)


# The pattern of a code span with a group number that fits after the groups of the other two.
CODE_SPAN_ALONE = CODE_SPAN.pattern.replace(r"\1", r"\4")


def _code(text: str) -> str:
    """Return a block or span of code as Sphinx wants it."""
    if formula := INLINE_FORMULA.fullmatch(text):
        return f"{{math}}`{formula[1]}`"
    if not text.lstrip(" ").startswith("```"):
        return text
    # The empty line that ends a doctest says nothing to a reader.
    return re.sub(r"\n\s*\n( *`{3,})$", r"\n\1", FENCE.sub(_fence, text, count=1))


def _fence(match: re.Match[str]) -> str:
    if match["language"] == "math":
        return f"{match['indent']}```{{math}}"
    return f"{match['indent']}```{LANGUAGES.get(match['language'], 'text')}"


def toctree(section: Section) -> str:
    """Return the section as Sphinx reads it."""
    names = [site_path(page).removesuffix(".md") for page in section.pages if page != HOME]
    lines = ["```{toctree}", ":hidden:", f":caption: {section.title}", "", *names, "```"]
    return "\n".join(lines)


def download(page: str) -> str:
    """Return the line below a tutorial's title that leads to its notebook."""
    name = posixpath.basename(page).removesuffix(".md") + ".ipynb"
    return f"\n\n*This page as a notebook: {{download}}`{name} <{name}>`*\n"


def contents(root: Path = ROOT) -> dict[str, str | Path]:
    """Return everything that Sphinx reads, by its place: a text, or the file to copy."""
    found: dict[str, str | Path] = {}
    files: set[str] = set()
    for page in all_pages(root):
        text = staged(page, (root / page).read_text(encoding="utf-8"), files, root)
        if page.startswith("docs/tutorials/"):
            title, _, rest = text.partition("\n")
            text = title + download(page) + rest
            source = (root / page).read_text(encoding="utf-8")
            found[site_path(page).removesuffix(".md") + ".ipynb"] = notebook_of(source)
        found[site_path(page)] = text
    pages = {commands.PAGE: commands.text(), items.PAGE: items.text(), **api.pages()}
    found |= {f"{name}.md": text for name, text in pages.items()}
    sections = list(navigation(root))
    place = next(i for i, section in enumerate(sections) if section.title == "Reference")
    sections.insert(place + 1, Section(GENERATED, tuple(f"docs/{name}.md" for name in pages)))
    home = found["index.md"]
    found["index.md"] = "\n\n".join([str(home).rstrip(), *map(toctree, sections)]) + "\n"
    return found | {f"files/{name}": root / name for name in files}


def write(found: Mapping[str, str | Path], folder: Path) -> None:
    """Write changed files, so that an unchanged page is not read again. Remove old files."""
    for place, content in found.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        new = content.encode() if isinstance(content, str) else content.read_bytes()
        if not file.is_file() or file.read_bytes() != new:
            file.write_bytes(new)
    for file in folder.rglob("*"):
        if file.is_file() and file.relative_to(folder).as_posix() not in found:
            file.unlink()
    for base, _, _ in os.walk(folder, topdown=False):
        if not any(Path(base).iterdir()):
            shutil.rmtree(base)
