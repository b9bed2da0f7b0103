"""A tutorial as a notebook: its Python and commands are cells, with its prose between them.

`python -m website.notebooks FOLDER` writes all of them. `--run` also runs each from top to bottom.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from website.pages import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(
    r"^```(?P<language>[\w-]*)(?P<options>[^\n`]*)\n(?P<body>.*?)^``` *$\n?",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"\bfile=(?P<name>\S+)")
SECONDS = 300


def cells(page: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page in their order."""
    last = 0
    for number, fence in enumerate(FENCE.finditer(page)):
        source = _source(fence)
        if source is None:
            continue
        yield from _prose(page[last : fence.start()], number)
        yield {
            "cell_type": "code",
            "execution_count": None,
            "id": f"code-{number}",
            "metadata": {},
            "outputs": [],
            "source": source.rstrip("\n"),
        }
        last = fence.end()
    yield from _prose(page[last:], -1)


def _prose(text: str, number: int) -> Iterator[dict[str, Any]]:
    if text.strip():
        yield {
            "cell_type": "markdown",
            "id": f"text-{number}" if number >= 0 else "text-last",
            "metadata": {},
            # Jupyter has no `$`...`$`, and no links into the repository.
            "source": re.sub(
                r"\]\((?!https?:|#)[^)]*\)",
                "]",
                re.sub(r"\$`([^`]+)`\$", r"$\1$", text.strip("\n")),
            ),
        }


def _source(fence: re.Match[str]) -> str | None:
    """Return the code of a cell for a block, or None if the block is not run."""
    body = fence["body"]
    if named := FILE.search(fence["options"]):
        return f"%%writefile {named['name']}\n{body}"
    match fence["language"]:
        case "python" if "skip=" not in fence["options"]:
            return _without_prompts(body) if ">>>" in body else body
        case "console":
            commands = (line[2:] for line in body.splitlines() if line.startswith("$ "))
            return "\n".join(f"!{command}" for command in commands)
        case _:
            return None


def _without_prompts(body: str) -> str:
    """Return the statements of a doctest. The cell will show the answers."""
    lines = [line[4:] for line in body.splitlines() if line.startswith((">>> ", "... "))]
    if len(lines) > 1:
        lines = [
            f"print({line})" if _is_asked(line, body) and at < len(lines) - 1 else line
            for at, line in enumerate(lines)
        ]
    return "\n".join(lines)


def _is_asked(line: str, body: str) -> bool:
    """Return True if a statement is an expression with an answer below it."""
    rows = body.splitlines()
    at = rows.index(f">>> {line}") if f">>> {line}" in rows else -1
    answered = 0 <= at < len(rows) - 1 and rows[at + 1].strip() != ""
    return answered and not rows[at + 1].startswith((">>> ", "... "))


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


def main() -> None:
    """Write the notebooks of all tutorials, and run them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        file = asked.folder / f"{page.stem}.ipynb"
        file.write_text(notebook_of(page.read_text(encoding="utf-8")), encoding="utf-8")
        if asked.run:
            run(file)
        sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main()
