"""The types that users see: their checkers accept README's examples, and find mistyped words."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs_examples import ROOT, read_blocks

# One mistake in each line after the first four.
WRONG = """\
import dpacct
from dpacct import Poisson, Round, fl

plan = 3 * Round(1.0, Poisson(0.1))
dpacct.epsilon(plan, delta=1e-5, accountant="thigt")
dpacct.calibrate(epsilon=1, rounds=3, sampling_rate=0.1, solve="nosie")
Round(1.0, adjacency="add-remov")
dpacct.epsilom(plan, delta=1e-5)
dpacct.risk.advantagee(plan)
fl.Federatoin
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("types")
    blocks = read_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    shown = "".join(block.text for block in blocks if block.language == "python")
    lines = [example.source for example in doctest.DocTestParser().get_examples(shown)]
    assert len(lines) > 15
    (made / "right.py").write_text("".join(lines), encoding="utf-8")
    (made / "wrong.py").write_text(WRONG, encoding="utf-8")
    # An example shows a value by its name alone.
    rules = {"typeCheckingMode": "strict", "reportUnusedExpression": False}
    (made / "pyrightconfig.json").write_text(json.dumps(rules), encoding="utf-8")
    return made


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "words",
    ["pyright --pythonpath PYTHON", "mypy --strict --python-executable PYTHON right.py wrong.py"],
)
def test_checkers_accept_the_readme_and_find_each_mistyped_word(folder: Path, words: str) -> None:
    checker, *options = words.replace("PYTHON", sys.executable).split(" ")
    pytest.importorskip(checker)
    done = subprocess.run(
        [sys.executable, "-m", checker, *options],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    # A checker may have two complaints about one word.
    found = list(dict.fromkeys(re.findall(r"(\w+)\.py:(\d+).*error", done.stdout)))
    expected = [("wrong", str(number)) for number in range(5, WRONG.count("\n") + 1)]
    assert found == expected, done.stdout + done.stderr
