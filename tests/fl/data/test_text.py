"""Text by role and tables: encoding, windows, columns, and refusals that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.fl.data import TableSchema, load_adult, load_shakespeare, load_table
from dpacct.fl.data.partitions import owner_number
from dpacct.fl.data.shakespeare import ALPHABET, encode
from tests.fl.data.refusals import refusal

# Shakespeare.


@given(text=st.text(max_size=60))
def test_characters_become_numbers_of_a_fixed_alphabet(text: str) -> None:
    codes = encode(text)
    assert len(codes) == len(text)
    for character, code in zip(text, codes.tolist(), strict=True):
        if character == "\n":
            assert code == 1
        elif " " <= character <= "~":
            assert chr(code + 30) == character
        else:
            assert code == 0
    assert (codes < ALPHABET).all()


def decode(codes: torch.Tensor) -> str:
    return "".join("\n" if code == 1 else chr(code + 30) for code in codes.tolist())


def write_roles(folder: Path, roles: Any) -> Path:
    (folder / "shakespeare_roles.json").write_text(json.dumps(roles), encoding="utf-8")
    return folder


ROLES = {
    "LEAR (KING LEAR)": "Nothing will come of nothing: speak again. " * 3,
    "MOUSE": "Squeak",
    "FOOL (KING LEAR)": "Can you make no use of nothing, nuncle? " * 5,
}


def test_windows_stay_inside_their_role_and_its_part(tmp_path: Path) -> None:
    data = load_shakespeare(write_roles(tmp_path, ROLES), window=10, test_roles="training")
    assert data.owners is not None
    assert data.test_data == "unprotected"
    # The mouse is too short to be a client.
    texts = {owner_number(name): text for name, text in ROLES.items() if name != "MOUSE"}
    assert set(data.owners.tolist()) == set(texts)
    for row, owner in enumerate(data.owners.tolist()):
        window = decode(data.train.inputs[row]) + decode(data.train.targets[row, -1:])
        text = texts[owner]
        assert window in text[: len(text) - len(text) // 5]
        assert torch.equal(data.train.inputs[row, 1:], data.train.targets[row, :-1])
    tested = [decode(row) for row in data.test.inputs]
    assert all(any(part in text[-(len(text) // 5) :] for text in texts.values()) for part in tested)
    # 129 characters, 25 of them tested on: ten windows of 10 and one character behind each.
    assert data.owners.tolist().count(owner_number("LEAR (KING LEAR)")) == 10


def test_windows_do_not_overlap_unless_asked(tmp_path: Path) -> None:
    folder = write_roles(tmp_path, {"A": "abcdefghijklmnopqrstuvwxyz" * 2})
    plain = load_shakespeare(folder, window=5, test_roles="training")
    assert [decode(row) for row in plain.train.inputs[:2]] == ["abcde", "fghij"]
    options = {"stride": 1, "every_position": False, "test_roles": "training"}
    dense = load_shakespeare(folder, window=5, **options)
    assert [decode(row) for row in dense.train.inputs[:2]] == ["abcde", "bcdef"]
    assert decode(dense.train.targets[:2]) == "fg"
    assert dense.train.targets.ndim == 1


def test_short_roles_are_no_clients(tmp_path: Path) -> None:
    folder = write_roles(tmp_path, ROLES)
    data = load_shakespeare(folder, window=10, min_windows=12, test_roles="training")
    assert set(data.owners) == {owner_number("FOOL (KING LEAR)")}
    assert "12 windows" not in refusal(load_shakespeare, folder, window=200)
    text = refusal(load_shakespeare, folder, window=10, min_windows=99)
    assert "no role has 99 windows of 10" in text


def test_new_roles_are_nobody_that_trains(tmp_path: Path) -> None:
    roles = {f"ROLE {k}": f"{chr(97 + k % 26)}{k % 10}" * 40 for k in range(100)}
    data = load_shakespeare(write_roles(tmp_path, roles), window=10)
    assert data.test_data == "public"
    assert not set(data.owners) & set(data.test_owners)
    assert len(set(data.owners)) + len(set(data.test_owners)) == 100
    assert 10 <= len(set(data.test_owners)) <= 30


def test_each_role_is_split_in_time_into_training_validation_and_test(tmp_path: Path) -> None:
    folder, parts = write_roles(tmp_path, ROLES), {"test_share": 0.3, "validation_share": 0.2}
    data = load_shakespeare(folder, window=10, test_roles="training", **parts)
    assert data.validation is not None
    seen, looked, tested = ([decode(r) for r in part.inputs]
                            for part in (data.train, data.validation, data.test))  # fmt: skip
    texts = [text for text in ROLES.values() if len(text) > 10]
    for text in texts:
        last = len(text) - int(0.3 * len(text))
        first = last - int(0.2 * len(text))
        cut = {"seen": text[:first], "looked": text[first:last], "tested": text[last:]}
        for name, windows in (("seen", seen), ("looked", looked), ("tested", tested)):
            assert [w for w in windows if w in cut[name]], name
    assert len(seen) > len(tested) > len(looked) > 0


def test_windows_have_ranges(tmp_path: Path) -> None:
    folder = write_roles(tmp_path, ROLES)
    for name, value in (
        ("window", 0), ("stride", 0), ("min_windows", 0), ("test_roles", "all"),
        ("test_share", 0.0), ("test_share", 1.0), ("test_share", float("nan")),
        ("validation_share", -0.1), ("validation_share", 0.9), ("validation_share", 0.1),
    ):  # fmt: skip
        refusal(load_shakespeare, folder, **{name: value}, name=name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "object from role to text"),
        (b"{}", "object from role to text"),
        (b'{"A": 3}', "object from role to text"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_damaged_roles(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "shakespeare_roles.json").write_bytes(content)
    text = refusal(load_shakespeare, tmp_path)
    assert words in text
    assert "shakespeare_roles.json" in text


# Tables.


def write_table(folder: Path, text: str) -> Path:
    file = folder / "people.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_plain_numbers_are_used_as_they_are(tmp_path: Path) -> None:
    file = write_table(tmp_path, "a,label,b,split\n1,2,-3,train\n0.5,10,1e3,train\n7,9,8,test\n\n")
    data = load_table(file)
    assert data.name == "people"
    assert data.train.inputs.tolist() == [[1.0, -3.0], [0.5, 1000.0]]
    assert data.test.inputs.tolist() == [[7.0, 8.0]]
    # Labels 2, 9, 10 in the order of numbers, not of words.
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([0, 2], [1])
    assert data.num_classes == 3
    assert data.owners is None


def test_declared_columns_follow_their_public_ranges(tmp_path: Path) -> None:
    file = write_table(
        tmp_path,
        "age,sex,who,name,y,split\n30,F,ann,x,no,train\n-5,M,bob,y,yes,train\n"
        "900,?,ann,z,yes,train\n50,F,cid,w,no,test\n",
    )
    schema = TableSchema(
        label="y",
        owner="who",
        numeric={"age": (10, 60)},
        categorical={"sex": ("F", "M")},
        classes=("yes", "no"),
        unused=("name",),
    )
    data = load_table(file, schema)
    assert torch.allclose(
        data.train.inputs, torch.tensor([[0.4, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    )
    assert data.train.targets.tolist() == [1, 0, 0]
    assert data.owners is not None
    assert data.owners.tolist() == [owner_number(name) for name in ("ann", "bob", "ann")]
    assert (data.test_data, data.label_set) == ("unprotected", "public")


def test_without_a_split_some_rows_are_held_out(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k % 2}\n" for k in range(50))
    file = write_table(tmp_path, f"a,label\n{rows}")
    data = load_table(file)
    # Each row by its own hash: a binomial count of mean 10.
    assert (len(data.train), len(data.test)) == (36, 14)
    assert (data.test_data, data.label_set) == ("unprotected", "unprotected")
    held = [*data.train.inputs[:, 0].tolist(), *data.test.inputs[:, 0].tolist()]
    assert sorted(held) == [float(k) for k in range(50)]
    again = load_table(file, TableSchema(test_share=0.5, seed=1))
    assert 15 < len(again.test) < 35
    # Identical rows are on one side.
    twice = load_table(write_table(tmp_path, f"a,label\n{rows}{rows}"))
    assert (len(twice.train), len(twice.test)) == (72, 28)


def test_all_rows_of_an_owner_are_on_one_side(tmp_path: Path) -> None:
    rows = "".join(f"{k % 12}{'.0' if k % 2 else ''},{k},{k % 2}\n" for k in range(60))
    data = load_table(write_table(tmp_path, f"who,a,label\n{rows}"), TableSchema(owner="who"))
    assert not set(data.owners) & set(data.test_owners)
    # 1 and 1.0 are one person, so there are twelve.
    assert len(set(data.owners)) + len(set(data.test_owners)) == 12


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("a;b;label;split\n1,5;2;x;train\n3;-4,25;y;test\n", [[1.5, 2.0], [3.0, -4.25]]),
        ("a\tb\tlabel\tsplit\n1.5\t2\tx\ttrain\n3\t-4.25\ty\ttest\n", [[1.5, 2], [3, -4.25]]),
        (
            '\ufeff"a",b,"label",split\r\n"1.5",2,"x, y",train\r\n3,-4.25,z,test\r\n',
            [[1.5, 2], [3, -4.25]],
        ),
    ],
    ids=["semicolons", "tabs", "byte order mark and quotes"],
)
def test_other_ways_to_write_a_table(tmp_path: Path, text: str, inputs: list[list[float]]) -> None:
    data = load_table(write_table(tmp_path, text))
    assert [*data.train.inputs.tolist(), *data.test.inputs.tolist()] == inputs
    assert data.num_classes == 2


def test_labels_that_read_as_one_number_are_one_class(tmp_path: Path) -> None:
    file = write_table(tmp_path, "a,label,split\n1,1,train\n2,1.0,train\n3,01,train\n4,2,test\n")
    assert load_table(file).train.targets.tolist() == [0, 0, 0]
    declared = load_table(file, TableSchema(classes=("2.0", "1")))
    assert (declared.train.targets.tolist(), declared.test.targets.tolist()) == ([1, 1, 1], [0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header and at least two rows"),
        ("a,label\n1,0\n", "header and at least two rows"),
        ("a,a,label\n1,1,0\n2,2,1\n", "column twice"),
        ("a,b\n1,0\n2,1\n", "no column label. Its columns are a, b"),
        ("a,label\n1,0\n2\n", "column label is the label, and row 2 has ''"),
        ("a,label\n1,0\nx,1\n", "column a holds finite numbers, and row 2 has 'x'"),
        ("a,label\n1,0\nnan,1\n", "row 2 has 'nan'"),
        ("a,label\n1,0\n1e39,1\n", "row 2 has '1e39'"),
        ("a,label\n1,0\n,1\n", "row 2 has ''"),
        ("a,label\n1,0\n2,0\n", "same label in every row"),
        ("a,label\n1,0\n2,\n3,1\n", "column label is the label, and row 2 has ''"),
        ("a,label\n1,0\n2,NA\n3,1\n", "row 2 has 'NA'"),
        ("a,label\n1,yes\n2,Yes\n3,no\n", "row 2 has the label 'Yes', another row 'yes'"),
        ("a,label\n1,0.5\n2,0.7\n3,1\n", "row 1 has the number 0.5"),
        ("a,label\n" + "".join(f"1,c{k}\n" for k in range(40)), "40 different labels in 40 rows"),
        ("a,label\n1000000000000001,0\n2,1\n", "does not round, and row 1 has '1000000000000001'"),
        ("a,label\n1,0\n2,1,3\n", "not valid CSV (Expected 2 fields in line 3, saw 3)"),
        ("label\n1\n0\n", "at least one column of features"),
        ("a,label,split\n1,0,train\n2,1,other\n", "row 2 has 'other'"),
        ("a,label,split\n1,0,train\n2,1,train\n", "rows to test on"),
        ('a,label\n"1,0\n2,1\n', "not valid CSV"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, words: str) -> None:
    file = write_table(tmp_path, text)
    found = refusal(load_table, file, name="data")
    assert words in found
    assert str(file) in found


def test_declarations_are_checked(tmp_path: Path) -> None:
    table, owners = "a,b,label\n1,x,0\n2,y,1\n", "who,a,label\nx,1,0\n,2,1\n"
    numbers = {"numeric": {"a": (0, 1)}, "unused": ("b",), "classes": ("0", "2")}
    for content, options, words in (
        (table, {"numeric": {"a": (0, 1)}}, "column b is declared neither"),
        (table, {"numeric": {"c": (0, 1)}}, "no column c"),
        (table, {"owner": "who"}, "no column who"),
        (table, {"label": "y"}, "--label names"),
        (table, numbers, "labels are 0, 2, and row 2 has '1'"),
        (owners, {"owner": "who"}, "column who is the owner of the row, and row 2 has ''"),
    ):
        file = write_table(tmp_path, content)
        assert words in refusal(load_table, file, TableSchema(**options), name="data")
    file.write_bytes(b"who,a,label\nx,1,0\n\xff,2,1\n")
    assert "not text in UTF-8" in refusal(load_table, file, name="data")
    assert "does not exist" in refusal(load_table, tmp_path / "none.csv", name="data")


def test_empty_cells_count_as_the_declared_value_and_are_marked(tmp_path: Path) -> None:
    """The other rows change neither the value nor the number of columns."""
    schema = TableSchema(numeric={"age": (0, 100), "beds": (0, 10)}, missing={"age": 40, "beds": 0})
    rows = [",3,x,train", "nan,?,y,train", "150,5,x,train"]
    wanted = [[0.4, 1, 0.3, 0], [0.4, 1, 0, 1], [1, 0, 0.5, 0]]
    for last in (",,y,test", "90,9,y,test"):
        text = "\n".join(["age,beds,label,split", *rows, last])
        data = load_table(write_table(tmp_path, text), schema)
        assert torch.allclose(data.train.inputs, torch.tensor(wanted))
        assert data.test.inputs.shape == (1, 4)
    partly = TableSchema(numeric=schema.numeric, missing={"age": 40})
    error = refusal(load_table, write_table(tmp_path, text), partly, name="data")
    assert "row 2 has '?'" in error
    assert "missing" in error


def test_a_schema_that_exists_is_valid() -> None:
    for name, value in (
        ("numeric", {"a": (1, 1)}),
        ("numeric", {"a": (0, float("inf"))}),
        ("categorical", {"a": ()}),
        ("categorical", {"a": ("x", "x")}),
        ("classes", ("x", "x")),
        ("classes", ("1", "1.0")),
        ("classes", ("x",)),
        ("test_share", 1.5),
    ):
        refusal(TableSchema, **{name: value}, name=name)
    for value in ("?", True, 101, float("nan")):
        refusal(TableSchema, numeric={"a": (0, 100)}, missing={"a": value}, name="missing")
    refusal(TableSchema, missing={"a": 1}, name="missing")


def test_adult_reads_rows_of_its_form(tmp_path: Path) -> None:
    header = (
        "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,"
        "race,sex,capital_gain,capital_loss,hours_per_week,native_country,income,split\n"
    )
    row = "{age},Private,77516,HS-grad,9,Divorced,{job},Husband,White,Male,0,0,40,Cuba,{y},{part}\n"
    lines = [
        row.format(age=17, job="Sales", y="<=50K", part="train"),
        row.format(age=90, job="?", y=">50K", part="test"),
    ]
    (tmp_path / "adult.csv").write_text(header + "".join(lines), encoding="utf-8")
    data = load_adult(tmp_path)
    assert data.name == "adult"
    assert data.input_shape == (48,)
    seen, unknown = data.train.inputs[0], data.test.inputs[0]
    # Five categories that are known in the one, and no occupation in the other.
    assert np.count_nonzero((seen == 1.0).numpy()) == 6
    assert seen[0] == 0.0
    assert unknown[0] == 1.0
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([0], [1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("numeric", "missing", "categorical")
            for value in (5, "a", ["a"])
        ),
        *(
            (name, value)
            for name in ("classes", "unused", "columns")
            for value in (5, "ab", {"a": 1})
        ),
        *((name, [["a"], {"b": 1}]) for name in ("classes", "unused", "columns")),
        *((name, value) for name in ("label", "owner") for value in ([], ["a"], {})),
        *(("numeric", {"a": ends}) for ends in (3, "ab", [1], [0, 1, 2], ["a", "b"], [[0], 1])),
        *(("missing", {"a": value}) for value in ([], {}, None, "5")),
        *(("categorical", {"a": words}) for words in (5, "ab", {"a": 1}, [["a"]], [])),
    ],
)
def test_a_schema_of_somebody_else_is_rejected_by_its_key(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as refused:
        TableSchema(**{"numeric": {"a": (0, 9)}, name: value})  # type: ignore[arg-type]
    assert refused.value.name == name
