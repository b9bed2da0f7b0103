"""The page that says how a number is made: its files follow each other by their imports."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.project.test_import_graph import PACKAGES, ROOT, graph, module_name

PAGE = ROOT / "docs" / "explanation" / "how-dpacct-computes.md"
MOST = 8


def walks() -> dict[str, list[str]]:
    """The files of each walk, by its heading."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        part.splitlines()[0]: re.findall(r"^\d+\. `([\w/]+\.py)`", part, flags=re.MULTILINE)
        for part in parts
    }


def module_of(file: str) -> str:
    for package, folder in PACKAGES.items():
        if (ROOT / file).is_relative_to(folder):
            return module_name(package, folder, ROOT / file)
    pytest.fail(f"{file} belongs to no package")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("heading", walks())
def test_each_file_imports_the_next(heading: str) -> None:
    files = walks()[heading]
    assert 5 <= len(files) <= MOST
    imports = graph()
    modules = [module_of(file) for file in files]
    for here, following in pairwise(modules):
        found = imports[here]
        if "dpacct" in found:
            # A public name leads to the module that has it.
            found |= imports["dpacct"]
        assert following in found, f"{here} does not import {following}"


def test_the_files_that_are_named_beside_a_walk_exist() -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE.read_text(encoding="utf-8"))
    bases = [ROOT, ROOT / "src" / "dpacct"]
    assert [name for name in named if not any((base / name).exists() for base in bases)] == []
    assert Path(ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").count("## The rooms") == 1
