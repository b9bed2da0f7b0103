"""Files of tables: what they hold, and what an attacker or a typing error puts into them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpacct.errors import DpacctError, InvalidParameter
from dpacct.reproduce import load_table, parse_table, shipped_names, shipped_table
from dpacct_cli.commands.reproduce import settings_of
from hostile import in_time

SMALL = """
title = "t"
source = "s"
seeds = [3, 5]

[printed]
data = "digits"
method = "dp-fed-ls"
q = 0.5
method_options = { smoothing = 1 }

[guessed]
rounds = 4

[tiny]
rounds = 1
q = ""
cohort = 3

[[column]]
name = "a"
value = 1
options = { eps = 2 }

[[column]]
name = "b"
value = 2
options = { noise = 1.5 }

[[row]]
name = "one"
options = { clients = 40, method_options = { order = "IOHW" } }
by_column = { clip_norm = [0.5, 0.7] }
printed = [10, "-"]

[[row]]
name = "two"
options = { method = "dp-fedavg", method_options = "" }

[[claim]]
says = "one is better"
better = "one"
than = "two"
columns = ["a"]
"""


def test_later_options_replace_earlier_ones_and_an_empty_text_removes_one():
    table = parse_table(SMALL, "x.toml")
    one_a, one_b, two_a, _ = table.cells
    assert one_a.options == {
        "data": "digits", "method": "dp-fed-ls", "q": 0.5, "rounds": 4, "eps": 2, "clients": 40,
        "method_options": {"smoothing": 1, "order": "IOHW"}, "clip_norm": 0.5,
    }  # fmt: skip
    assert (one_b.options["clip_norm"], one_b.options["noise"]) == (0.7, 1.5)
    assert "eps" not in one_b.options
    assert "method_options" not in two_a.options
    assert [(c.printed, c.spread) for c in table.cells] == [(10, None), *[(None, None)] * 3]
    runs = [settings["public_seed"] for _, settings in table.settings()]
    assert runs == [3] * 4 + [5] * 4
    tiny = [settings for _, settings in table.settings(tiny=True)]
    assert len(tiny) == 4
    assert all(s["rounds"] == 1 and s["cohort"] == 3 and "q" not in s for s in tiny)
    assert all(settings_of(s).number("rounds") == 1 for s in tiny)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_tables_have_options_of_train_and_printed_values(name):
    table = shipped_table(name)
    assert table.cost
    assert any(cell.printed is not None for cell in table.cells)
    for tiny in (False, True):
        for _, settings in table.settings(tiny=tiny):
            found = settings_of({k: v for k, v in settings.items() if k != "evaluate_every"})
            assert found.number("rounds") == 2 or not tiny
    assert "evaluate_every" not in next(table.settings())[1] or table.every


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "t"', 'titel = "t"', "titel.*Did you mean title?"),
        ('title = "t"', "", "title is missing"),
        ('title = "t"', "title = 3", "title is 3: it is at most 1000 printable"),
        ('"t"', '"a\\u202eb"', "printable characters"),
        ("[3, 5]", "[3, 3]", "different whole numbers"),
        ("[3, 5]", "[-1]", "whole numbers from 0"),
        ("[3, 5]", "[true]", "whole numbers from 0"),
        ("[3, 5]", "[]", "1 to 100"),
        ("rounds = 4", "q = 0.1", "guessed is 'q': an option is either printed or guessed"),
        ("q = 0.5", "public_seed = 1", "seeds has those of all runs"),
        ('name = "b"', 'name = "a"', "no two of [[column]] have one name"),
        ('name = "b"', "", "the name of a column"),
        ("value = 2", "", "each column has a value, or none has one"),
        ("value = 2", "value = nan", "it is a finite number"),
        ("value = 2", f"value = 1{'0' * 400}", "it is a finite number, at most 1e+100"),
        ('[10, "-"]', "[10, 1e200]", "it is a finite number, at most 1e+100"),
        ('[10, "-"]', "[10, 1]\nspread = [-1, 1]", "a standard deviation is not below 0"),
        ('[10, "-"]', "[10]", "row one, it is a list of 2 numbers"),
        ('[10, "-"]', "[10, true]", "row one, printed is True: it is a finite number"),
        ("[0.5, 0.7]", "[0.5]", "row one, .*by_column has a list of 2 values"),
        ('better = "one"', 'better = "three"', "a row is one of one, two"),
        ('columns = ["a"]', 'columns = ["c"]', "a column is one of a, b"),
        ('columns = ["a"]', "columns = []", "it is a list of columns"),
        ('source = "s"', 'source = "s"\nmeasure = "speed"', "a measure is one of accuracy"),
        ('source = "s"', 'source = "s"\nmeasure = "rounds_to"', "rounds_to, which needs it"),
        ('source = "s"', 'source = "s"\nmeasure = "rounds_to"\ntarget = 100', "between 0 and 100"),
        ('source = "s"', 'source = "s"\nfigure = "pie"', "a figure's axis is one of"),
        ('source = "s"', 'source = "s"\nevery = 0', "every is 0"),
        ('method = "dp-fed-ls"', "", "row one, each run has a method"),
        ("[[row]]", "[row]", "not valid TOML|written as tables"),
        ("[printed]", "[printed", "not valid TOML"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_key_and_the_range(old, new, said):
    assert old in SMALL
    with pytest.raises(InvalidParameter) as error:
        parse_table(SMALL.replace(old, new, 1), "x.toml")
    assert "x.toml" in str(error.value)
    pattern = said if "|" in said or ".*" in said else re.escape(said)
    assert re.search(pattern, str(error.value)), str(error.value)


def test_a_long_file_is_refused_before_it_is_read():
    long = SMALL + "#\n" * 2**23
    with in_time(), pytest.raises(InvalidParameter, match="characters, and at most 8,388,608"):
        parse_table(long, "x.toml")


@pytest.mark.parametrize("value", ["5", "[1]", "2020-01-01"])
def test_an_option_that_is_no_table_is_named_when_it_is_checked(value):
    text = SMALL.replace("{ smoothing = 1 }", value).replace(
        ', method_options = { order = "IOHW" }', ""
    )
    with pytest.raises(DpacctError, match="method_options"):
        settings_of(parse_table(text, "x").cells[0].options)


def test_a_file_cannot_ask_for_endless_runs():
    many = [f'\n[[{key}]]\nname = "{n}"\n' for key in ("row", "column") for n in range(20_000)]
    with pytest.raises(InvalidParameter, match="at most 10,000 runs"), in_time():
        parse_table(SMALL + "".join(many), "x.toml")


def words(**changes: Any) -> dict[str, Any]:
    return {"method": "dp-fedavg", "data": "digits", **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "evil:Class"}, "method is 'evil:Class'; a method is one of"),
        ({"data": "/dev/zero.npz"}, "a comparison takes public data"),
        ({"data": "../secret.csv"}, "On your own data each run costs budget"),
        ({"data": ["digits"]}, "a comparison takes public data"),
        ({"data_dir": "/etc"}, "the file of a table cannot set it"),
        ({"schedule": "/dev/zero"}, "the file of a table cannot set it"),
        ({"device": "cuda"}, "the file of a table cannot set it"),
        ({"ledger": "x"}, "'ledger' is no key of it"),
        ({"repeats": 3}, "the file of a table has seeds"),
        ({"init": "/dev/zero"}, "the file of a table cannot set it"),
        ({"config": "x"}, "'config' is no key of it"),
        ({"rho": 0.5}, "'rho' is no key of it"),
        ({"rounds": [1]}, "rounds is a number or a text"),
        ({"method_options": 3}, "method_options is a table"),
        ({"q": 0.1, "cohort": 3}, "contradicts"),
        ({"rounds": 10**9}, "from 1 to 100000"),
        ({"local_steps": "1e9"}, "local_steps"),
        ({"local_epochs": 10**6}, "local_epochs is 1000000"),
    ],
)
def test_a_file_opens_no_path_imports_nothing_and_ends(changes, said):
    with pytest.raises(Exception, match=re.escape(said)):
        settings_of(words(**changes))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidParameter, match="nowhere"):
        load_table(tmp_path / "nowhere.toml")
    with pytest.raises(InvalidParameter, match="/dev/zero"):
        load_table("/dev/zero")
    with pytest.raises(InvalidParameter, match="Did you mean dp-fed-ls/table-2"):
        shipped_table("dp-fed-ls/tabel-2")
