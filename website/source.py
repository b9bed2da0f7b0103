"""What Sphinx reads: a copy of the repository's pages, the home page, and generated pages."""

from __future__ import annotations

import enum
import re
import shutil
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dpacct
from website import ROOT, commands, items
from website.notebooks import notebook_of

# Folders and files that pages are, show or link to. Records of runs are not among them.
FOLDERS = ("docs", "evidence", "examples")
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LEFT_OUT = shutil.ignore_patterns("*.jsonl", "*.pyc", "__pycache__", "index.md")
# Documented modules that `dir(dpacct)` does not show, and their names if they have no ``__all__``.
MODULES: dict[str, tuple[str, ...]] = {
    "dpacct.fl.postprocess": (),
    "dpacct.fl.data": (),
    "dpacct.fl.models": (),
    "dpacct.renyi.odometer": ("Odometer",),
    "dpacct.renyi.curve": ("RenyiValue",),
    "dpacct.tight.accountant": ("TightAccountant",),
}


def pages() -> list[str]:
    """Return every written page, as a path from the root."""
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "evidence").glob("*/README.md")]
    return sorted([*(str(page.relative_to(ROOT)) for page in found), "examples/README.md", *FILES])


def modules() -> tuple[ModuleType, ...]:
    """Return the modules that have a page."""
    values = [getattr(dpacct, name) for name in dir(dpacct)]
    rooms = [value for value in values if isinstance(value, ModuleType)]
    return (dpacct, *rooms, *map(import_module, MODULES))


def public_names(module: ModuleType) -> list[str]:
    """Return the ``__all__`` of a module, or its names in `MODULES`."""
    offered: Sequence[str] = getattr(module, "__all__", MODULES.get(module.__name__, ()))
    return sorted((name for name in offered if not name.startswith("__")), key=str.lower)


def members(value: type) -> list[str]:
    """Return the public members of a class. Steps of a method are described at `Method`."""
    own = [base for base in value.__mro__ if base.__module__.startswith("dpacct")]
    bases = [base for base in own if base is value or base.__name__ != "Method"]
    return [name for base in bases for name in vars(base) if not name.startswith("_")]


def functions() -> dict[str, str]:
    """Return the page of each module. A name that several modules share is on the first page."""
    pages: dict[str, str] = {}
    homes: dict[int, str] = {}
    for module in modules():
        here, names = module.__name__, public_names(module)
        full = {
            name: homes.setdefault(id(getattr(module, name)), f"{here}.{name}") for name in names
        }
        lines = [here, "=" * len(here), "", f".. automodule:: {here}", ""]
        lines += [".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   ~{home}".replace(f"~{here}.", "") for home in full.values()]
        for name in (name for name in names if full[name] == f"{here}.{name}"):
            value: Any = getattr(module, name)
            lines += ["", name, "-" * len(name), ""]
            if isinstance(value, type):
                lines += [f".. autoclass:: {name}", f"   :members: {', '.join(members(value))}"]
                lines += ["   :undoc-members:"] * issubclass(value, enum.Enum)
            else:
                lines += [f".. auto{'function' if callable(value) else 'data'}:: {name}"]
        pages[f"docs/reference/api/{here}.rst"] = "\n".join(lines) + "\n"
    return pages


def home() -> str:
    """Return the home page: docs/index.md at the root, with all pages in the order of reading."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    parts = [re.sub(r"\]\((?!https?:)", "](docs/", text)]
    listed: dict[str, Any] = tomllib.loads((ROOT / "docs" / "navigation.toml").read_text("utf-8"))
    for section in listed["section"]:
        names = [page.removesuffix(".md") for page in section["pages"]]
        head = ["```{toctree}", ":hidden:", ":glob:", f":caption: {section['title']}", ""]
        parts.append("\n".join([*head, *names, "```"]))
    return "\n\n".join(parts)


def write(folder: Path) -> None:
    """Write the source. Pages keep their time, by which Sphinx knows those that changed."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy2(ROOT / name, folder)
    for page in sorted((folder / "docs" / "tutorials").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.with_suffix(".ipynb").write_text(notebook_of(text), encoding="utf-8")
        link = f"\n\n*[This page as a notebook]({page.stem}.ipynb), with its outputs.*\n"
        page.write_text(text.replace("\n", link, 1), encoding="utf-8")
    pages = {"index.md": home(), commands.PAGE: commands.text(), items.PAGE: items.text()}
    for name, text in (pages | functions()).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
