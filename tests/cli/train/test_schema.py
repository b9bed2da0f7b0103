"""A table with words is not trained on before a person has said what its columns may hold."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

TRAIN = "train dp-fedavg --data people.csv --rounds 1 --noise 9"


def write_table(folder: Path, separator: str = ",") -> None:
    rows = [
        ["person", "age", "town", "note", "answer"],
        *([f"p{k % 30}", str(18 + k % 60), "NESW"[k % 4], f"text {k}", "yes" if k % 3 else "no"]
          for k in range(120)),
    ]  # fmt: skip
    text = "\n".join(separator.join(row) for row in rows)
    (folder / "people.csv").write_text(f"\ufeff{text}\n", encoding="utf-8")


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_proposal_is_printed_and_the_edited_file_trains(
    dpacct: Any, folder: Path, separator: str
) -> None:
    write_table(folder, separator)
    ran = dpacct(TRAIN, "--label answer")
    assert ran.code == 2
    assert "train with --schema" in ran.err
    assert not list(folder.glob("*.ledger"))
    proposed = tomllib.loads(ran.out)
    assert proposed == {
        "label": "answer",
        "owner": "person",
        "classes": ["no", "yes"],
        "unused": ["note"],
        "numeric": {"age": [18, 77]},
        "categorical": {"town": ["E", "N", "S", "W"]},
    }
    assert ran.out.count("?") >= 4
    (folder / "schema.toml").write_text(ran.out.replace("[18, 77]", "[0, 120]"), encoding="utf-8")
    data = dpacct(TRAIN, "--schema schema.toml --json").json
    assert (data["partition"], data["label_set"]) == ("natural", "public")


def test_numbers_alone_need_no_schema(dpacct: Any, folder: Path) -> None:
    rows = "\n".join(["a,label", *(f"{k % 7},{k % 2}" for k in range(90))])
    (folder / "people.csv").write_text(rows, encoding="utf-8")
    assert dpacct(TRAIN, "--clients 10 --json").code == 0


def test_numbers_with_empty_cells_ask_for_the_value_that_one_counts_as(
    dpacct: Any, folder: Path
) -> None:
    rows = [f"{k % 40 if k % 7 else ''},{k},x{k % 30},{'ab'[k % 2]}" for k in range(120)]
    (folder / "people.csv").write_text("\n".join(["age,bmi 2,id,label", *rows]), encoding="utf-8")
    ran = dpacct(TRAIN)
    assert tomllib.loads(ran.out)["missing"] == {"age": "?"}
    assert tomllib.loads(ran.out)["numeric"] == {"age": [0, 39], "bmi 2": [0, 119]}
    assert "empty cells" in ran.err
    assert "\nage = [" in ran.out
    schema = folder / "schema.toml"
    schema.write_text(ran.out, encoding="utf-8")
    unanswered = dpacct(TRAIN, "--schema schema.toml")
    assert (unanswered.code, "column age" in unanswered.err) == (2, True)
    assert not list(folder.glob("*.ledger"))
    schema.write_text(ran.out.replace('age = "?"', "age = 20"), encoding="utf-8")
    assert dpacct(TRAIN, "--schema schema.toml --json").json["clients"] > 10


def test_a_schema_that_cannot_be_read_names_the_option(dpacct: Any, folder: Path) -> None:
    write_table(folder)
    for content, part in ((None, "cannot be read"), ("x = ", "not valid TOML"), ("x = 1", "x")):
        if content is not None:
            (folder / "schema.toml").write_text(content, encoding="utf-8")
        ran = dpacct(TRAIN, "--schema schema.toml --label answer")
        assert (ran.code, part in ran.err) == (2, True), ran.err


def test_cells_stay_toml_and_do_not_reach_the_terminal(dpacct: Any, folder: Path) -> None:
    words = ["\x9b31mred", "caf\u00e9", "\U0001f600", 'a "quoted" one', "\x7f"]
    rows = [f'{k},"{words[k % 5].replace(chr(34), chr(34) * 2)}",{k % 2}' for k in range(40)]
    text = "\n".join(["a,\U0001f600 word,label", *rows])
    (folder / "people.csv").write_text(text, encoding="utf-8")
    ran = dpacct(TRAIN)
    assert tomllib.loads(ran.out)["categorical"] == {"\U0001f600 word": sorted(words)}
    assert ran.out.replace("\n", "").isprintable()
