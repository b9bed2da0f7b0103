"""A tutorial as a notebook: its Python and commands are cells with the page's outputs."""

from __future__ import annotations

import ast
import base64
import doctest
import json
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from website import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(
    r"^```(?P<language>[\w-]*)(?P<options>[^\n`]*)\n(?P<body>.*?)^``` *$\n?",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"\bfile=(?P<name>\S+)")
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")
# Jupyter knows the kernel's program, and a shell that it starts may find another environment.
PROGRAMS = """\
# Commands are those of this notebook's environment.
import os, sys
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]"""
SECONDS = 300


def cells(page: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page in their order."""
    last, count = 0, 0
    if "\n```console" in page:
        yield _code(count := count + 1, PROGRAMS, [])
    for fence in FENCE.finditer(page):
        found = _source(fence)
        if found:
            yield from _prose(page[last : fence.start()], count)
            yield _code(count := count + 1, *found)
            last = fence.end()
    yield from _prose(page[last:], count)


def _code(count: int, source: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    numbered = [each | {"execution_count": count} if "data" in each else each for each in outputs]
    return {
        "cell_type": "code", "execution_count": count, "id": f"code-{count}", "metadata": {},
        "outputs": numbered, "source": source.rstrip("\n"),
    }  # fmt: skip


def _prose(text: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield a cell of text. It holds its pictures. Its links lead from the site's downloads."""
    pictures: dict[str, dict[str, str]] = {}

    def moved(link: re.Match[str]) -> str:
        place = posixpath.normpath(f"docs/tutorials/{link['path']}")
        if place.endswith(".png"):
            data = base64.b64encode((ROOT / place).read_bytes()).decode()
            pictures[posixpath.basename(place)] = {"image/png": data}
            return f"](attachment:{posixpath.basename(place)})"
        return f"](../../{re.sub('[.]md$', '.html', place)}{link['anchor'] or ''})"

    if text.strip():
        # Jupyter has no `$`...`$`.
        source = LINK.sub(moved, re.sub(r"\$`([^`]+)`\$", r"$\1$", text.strip("\n")))
        yield {
            "cell_type": "markdown", "id": f"text-{count}", "metadata": {}, "source": source,
        } | ({"attachments": pictures} if pictures else {})  # fmt: skip


def _source(fence: re.Match[str]) -> tuple[str, list[dict[str, Any]]] | None:
    """Return the code of a block and its outputs, or None if the block is not run."""
    body = fence["body"]
    if named := FILE.search(fence["options"]):
        return f"%%writefile {named['name']}\n{body}", []
    match fence["language"]:
        case "python" if "skip=" not in fence["options"]:
            return _statements(body) if ">>>" in body else (body, [])
        case "console":
            lines = body.splitlines(keepends=True)
            source = "".join(f"!{line[2:]}" for line in lines if line.startswith("$ "))
            return source, _printed("".join(line for line in lines if not line.startswith("$ ")))
        case _:
            return None


def _printed(text: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": text}] if text.strip() else []


def _statements(body: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the statements of a doctest and its answers. All but the last answer are printed."""
    examples = doctest.DocTestParser().get_examples(body)
    sources: list[str] = []
    printed, value = "", list[dict[str, Any]]()
    for example in examples:
        source = example.source.rstrip("\n")
        asked = example.want and isinstance(ast.parse(source).body[-1], ast.Expr)
        if asked and not source.startswith("print(") and example is examples[-1]:
            data = {"text/plain": example.want.rstrip("\n")}
            value = [{"output_type": "execute_result", "data": data, "metadata": {}}]
        else:
            printed += example.want
            source = f"print({source})" if asked and not source.startswith("print(") else source
        sources.append(source)
    return "\n".join(sources), [*_printed(printed), *value]


def notebook_of(page: str) -> str:
    """Return the notebook of a page, as the text of an .ipynb file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": list(cells(page)),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def run(file: Path) -> None:
    """Run a notebook in a separate kernel, in its folder. An error in a cell raises."""
    nbformat: Any = import_module("nbformat")
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    client = import_module("nbclient").NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3",
        resources={"metadata": {"path": str(file.parent)}},
    )  # fmt: skip
    client.execute()
    nbformat.write(notebook, file)
