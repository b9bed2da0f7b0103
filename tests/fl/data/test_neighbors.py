"""Neighboring data sets: if one owner leaves or is replaced, every other owner stays as it was.

Every loader of owned data is asked, with both of its ways to choose test data, and so are hold-out
and natural partition. Loaders of data without owners keep each row as it is, and their partitions
are declared a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.fl.data import (
    Dataset,
    PartitionedClients,
    TableSchema,
    load,
    load_adult,
    load_femnist,
    load_shakespeare,
    load_table,
)
from dpacct.fl.data.partitions import (
    assign_owners,
    canonical,
    dirichlet,
    divided,
    iid,
    keyed_uniform,
    natural,
    of_clients,
    owner_number,
)
from dpacct.fl.data.table import ADULT

PEOPLE = 40
GONE = 7
Loader = Callable[[Path, Iterable[int], int], Dataset]


def values_of(person: int, size: int, change: int) -> np.ndarray:
    """Values that only one person has; others if that person was replaced."""
    seed = [person, change if person == GONE else 0]
    return np.random.default_rng(seed).integers(0, 250, size)


def table(
    folder: Path, people: Iterable[int], change: int, schema: TableSchema, split: str = ""
) -> Dataset:
    lines = ["person,a,b,label" + (",split" if split else "")]
    for person in people:
        for row in range(3):
            a, b = values_of(person, 6, change).reshape(3, 2)[row]
            part = ("," + ("test" if (person + row) % 3 == 0 else "train")) if split else ""
            lines.append(f"p{person},{a},{b}.5,{'yes' if a % 2 else 'no'}{part}")
    file = folder / "table.csv"
    file.write_text("\n".join(lines))
    return load_table(file, schema)


def femnist(folder: Path, people: Iterable[int], change: int, test_writers: str) -> Dataset:
    people = list(people)
    writers = np.repeat(people, 4).astype(np.uint8)
    images = np.concatenate([values_of(p, 4 * 784, change).reshape(4, 28, 28) for p in people])
    # The last image of a writer is tested on, and every third writer has no other.
    split = np.concatenate([[int(p % 3 == 0)] * 3 + [1] for p in people]).astype(np.uint8)
    labels = (writers % 62).astype(np.uint8)
    arrays = {"x": images.astype(np.uint8), "y": labels, "writer": writers, "split": split}
    np.savez(folder / "femnist_writers.npz", **arrays)
    return load_femnist(folder, test_writers=test_writers)


def shakespeare(folder: Path, people: Iterable[int], change: int, test_roles: str) -> Dataset:
    roles = {
        f"ROLE {p}": "".join(chr(33 + v % 90) for v in values_of(p, 60 + p, change)) for p in people
    }
    (folder / "shakespeare_roles.json").write_text(json.dumps(roles))
    return load_shakespeare(folder, window=8, test_roles=test_roles, min_windows=5)


def adult(folder: Path, people: Iterable[int], change: int) -> Dataset:
    lines = []
    for person in people:
        age, work, hours = values_of(person, 3, change)
        part = "test" if person % 3 else "train"
        words = {
            "workclass": ADULT.categorical["workclass"][work % 8],
            "income": ADULT.classes[0],
        }
        row = {"age": age, "hours_per_week": hours, "split": part, **words}
        names = ["fnlwgt", "education", *ADULT.numeric, *ADULT.categorical, "income", "split"]
        lines.append(",".join(str(row.get(name, 1)) for name in names))
    (folder / "adult.csv").write_text("\n".join([",".join(names), *lines]))
    return load_adult(folder)


OWNED: dict[str, Loader] = {
    "table": lambda f, p, c: table(f, p, c, TableSchema(owner="person")),
    "table with a split": lambda f, p, c: table(f, p, c, TableSchema(owner="person"), "split"),
    "femnist, new writers": lambda f, p, c: femnist(f, p, c, "new"),
    "femnist, training writers": lambda f, p, c: femnist(f, p, c, "training"),
    "shakespeare, new roles": lambda f, p, c: shakespeare(f, p, c, "new"),
    "shakespeare, training roles": lambda f, p, c: shakespeare(f, p, c, "training"),
}
ROWS: dict[str, Loader] = {
    "table": lambda f, p, c: table(f, p, c, TableSchema(unused=("person",), classes=("no", "yes"))),
    "adult": adult,
}


def examples_of(data: Dataset) -> dict[object, list[bytes]]:
    """The examples of each owner with their side; an example without owner is its own."""
    found: dict[object, list[bytes]] = {}
    for side, part, owners in (
        ("train", data.train, data.owners),
        ("test", data.test, data.test_owners),
    ):
        for row in range(len(part)):
            content = part.inputs[row].numpy().tobytes() + part.targets[row].numpy().tobytes()
            owner = content if owners is None else int(owners[row])
            found.setdefault(owner, []).append(side.encode() + content)
    return found


@pytest.mark.parametrize("change", [0, 1], ids=["leaves", "is replaced"])
@pytest.mark.parametrize("name", OWNED)
def test_one_owner_changes_that_owner_alone(tmp_path: Path, name: str, change: int) -> None:
    load = OWNED[name]
    people = range(PEOPLE)
    here = load(tmp_path, people, 0)
    there = load(tmp_path, people if change else [p for p in people if p != GONE], change)
    one, two = examples_of(here), examples_of(there)
    moved = [owner for owner in one.keys() | two.keys() if one.get(owner) != two.get(owner)]
    assert len(moved) == 1
    assert (here.num_classes, here.input_shape) == (there.num_classes, there.input_shape)
    # The clients, who is held out, and what each of them holds.
    sides = []
    for data in (here, there):
        partition = natural(data.owners)
        assert not PartitionedClients(data.train, partition).simulated
        for side, places in zip("io", divided(partition, 0.4, seed=3), strict=True):
            rows, own = of_clients(partition, places)
            assert not own.simulated
            sides.append({(side, int(o)) for o in own.owners if o not in moved})
            assert [set(data.owners[rows[part]]) for part in own] == [{o} for o in own.owners]
    assert (sides[0], sides[1]) == (sides[2], sides[3])


@pytest.mark.parametrize("change", [0, 1], ids=["leaves", "is replaced"])
@pytest.mark.parametrize("name", ROWS)
def test_one_row_changes_that_row_alone(tmp_path: Path, name: str, change: int) -> None:
    people = range(PEOPLE)
    one = examples_of(ROWS[name](tmp_path, people, 0))
    left = people if change else [p for p in people if p != GONE]
    two = examples_of(ROWS[name](tmp_path, left, change))
    moved = {owner for owner in one.keys() | two.keys() if one.get(owner) != two.get(owner)}
    assert 1 <= len(moved) <= 6


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_loaders_without_owners_have_simulated_clients(tmp_path: Path, name: str) -> None:
    labels = np.arange(12, dtype=np.uint8) % 10
    images = values_of(0, 12 * 784, 0).reshape(12, 28, 28).astype(np.uint8)
    arrays = {"train_x": images, "train_y": labels, "test_x": images, "test_y": labels}
    np.savez(tmp_path / "mnist.npz", **arrays)
    for part in (*(f"train_{k}" for k in range(1, 6)), "test"):
        planes = np.zeros((3, 12, 32, 32), np.uint8)
        np.savez(tmp_path / f"cifar10_{part}.npz", d=planes, y=labels)
    data = load(name, tmp_path)
    assert (data.owners, data.test_data, data.label_set) == (None, "public", "public")
    for partition in (iid(len(data.train), 5), dirichlet(data.labels(), 5, 0.5)):
        assert PartitionedClients(data.train, partition).simulated
        assert of_clients(partition, np.array([0, 3]))[1].simulated


@given(
    names=st.lists(st.text(max_size=5), min_size=1, max_size=30),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**64),
)
def test_the_side_of_an_owner_depends_on_its_name_alone(names, share, seed) -> None:
    owners, tested = assign_owners(names, share, seed=seed)
    for place in range(len(names)):
        alone = assign_owners([names[place]], share, seed=seed)
        assert (int(owners[place]), bool(tested[place])) == (int(alone[0][0]), bool(alone[1][0]))


def test_shares_are_those_asked_for() -> None:
    """A binomial count within five standard deviations, for tests and hold-outs of their own."""
    owners = np.array([owner_number(f"p{k}") for k in range(10_000)])
    sides = [
        keyed_uniform(owners, purpose, seed) < 0.3
        for purpose in ("test", "hold-out")
        for seed in (0, 1)
    ]
    for side in sides:
        assert abs(side.sum() - 3000) < 5 * (10_000 * 0.21) ** 0.5
    # Independent of each other: both hold for nine in a hundred.
    for one in range(4):
        for two in range(one):
            assert abs((sides[one] & sides[two]).sum() - 900) < 5 * (10_000 * 0.09 * 0.91) ** 0.5


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (["1", "1.0", "01", " 1 ", "1e0", "+1"], "1"),
        (["-0", "0.00", "0e100"], "0"),
        (["2.50", "2.5"], "2.5"),
        (["1000000000000001", "1000000000000001.0"], "1000000000000001"),
        (["ann", " ann"], "ann"),
        (["caf\u00e9", "cafe\u0301"], "caf\u00e9"),
        (["1e999"], "1e999"),
        (["inf"], "inf"),
        (["sNaN"], "sNaN"),
    ],
)
def test_spellings_of_one_name(spellings: list[str], name: str) -> None:
    assert [canonical(text) for text in spellings] == [name] * len(spellings)


def test_names_that_differ_stay_apart() -> None:
    digits = "12345678901234567890123456789012345"
    names = [
        "Ann",
        "ann",
        "1000000000000001",
        "1000000000000002",
        digits + "1",
        digits + "2",
        "1.5",
    ]
    assert len({canonical(name) for name in names}) == len(names)
    assert len({owner_number(canonical(name)) for name in names}) == len(names)
