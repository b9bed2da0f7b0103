"""Your own arrays and folders of images: read without pickles, split by owner like a table."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpacct.errors import InvalidParameter
from dpacct.fl.data import TableSchema, load_table
from dpacct.fl.data.files import read_arrays
from dpacct.fl.data.partitions import owner_number
from tests.fl.data.refusals import refusal

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, (40, 1, 4, 4), np.uint8)
LABELS = np.array(["no", "yes"] * 20)
OWNERS = np.arange(40) // 4 + 10**15


def save(folder: Path, **arrays: Any) -> Path:
    file = folder / "own.npz"
    content = {"inputs": IMAGES, "label": LABELS, "who": OWNERS} | arrays
    np.savez(file, **{key: value for key, value in content.items() if value is not None})
    return file


def test_arrays_by_owner(tmp_path: Path) -> None:
    schema = TableSchema(owner="who", classes=("no", "yes"))
    data = load_table(save(tmp_path), schema)
    assert (data.name, data.num_classes, data.input_shape) == ("own", 2, (1, 4, 4))
    assert (data.test_data, data.label_set) == ("unprotected", "public")
    assert len(set(data.owners)) + len(set(data.test_owners)) == 10
    assert not set(data.owners) & set(data.test_owners)
    # One owner less changes that owner alone.
    kept = np.arange(40) >= 4
    less = load_table(
        save(tmp_path, inputs=IMAGES[kept], label=LABELS[kept], who=OWNERS[kept]), schema
    )
    gone = owner_number(str(OWNERS[0]))
    assert set(data.owners) ^ set(less.owners) | set(data.test_owners) ^ set(less.test_owners) == {
        gone
    }
    inputs, _ = data.train.batch(slice(0, 1))
    assert inputs.max() <= 1.0


def test_rows_of_arrays_are_their_own_owners(tmp_path: Path) -> None:
    data = load_table(save(tmp_path, inputs=IMAGES.astype(np.float64)))
    less = load_table(save(tmp_path, inputs=IMAGES[1:].astype(float), label=LABELS[1:]))
    assert data.owners is None
    assert data.label_set == "unprotected"
    rows = [{row.tobytes() for row in part.train.inputs.numpy()} for part in (data, less)]
    assert len(rows[0] ^ rows[1]) <= 1
    half = np.array(["train", "test"] * 20)
    assert len(load_table(save(tmp_path, split=half)).test) == 20


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"label": None}, "lacks label"),
        ({"who": None}, "lacks who"),
        ({"inputs": IMAGES[:9]}, "here (9, 1, 4, 4) and (40,)"),
        ({"inputs": IMAGES.astype(int)}, "holds bytes or finite floats, here int64"),
        ({"inputs": np.full((40, 2), np.nan)}, "finite"),
        ({"label": np.array([{}] * 40, dtype=object)}, "plain arrays"),
        ({"label": np.array(["", *["a", "b"] * 19, "a"])}, "row 1 has ''"),
        ({"who": np.array(["", *["a"] * 39])}, "is the owner of the row, and row 1 has ''"),
        ({"split": np.array(["train"] * 39 + ["dev"])}, "row 40 has 'dev'"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    file = save(tmp_path, **arrays)
    assert words in refusal(load_table, file, TableSchema(owner="who"), name="data")


def write_images(folder: Path, count: int) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = RANDOM.integers(0, 256, (5, 4, 3), np.uint8)
            image.fromarray(pixels).save(folder / name / f"{number}.png")


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", 20)
    data = load_table(tmp_path / "pets")
    assert (data.name, data.num_classes, data.input_shape) == ("pets", 2, (3, 5, 4))
    assert (data.test_data, data.label_set) == ("unprotected", "unprotected")
    before = {row.tobytes() for row in data.train.inputs.numpy()}
    (tmp_path / "pets" / "cats" / "3.png").unlink()
    after = {row.tobytes() for row in load_table(tmp_path / "pets").train.inputs.numpy()}
    assert len(before ^ after) <= 1
    declared = load_table(tmp_path / "pets", TableSchema(classes=("dogs", "cats")))
    assert declared.label_set == "public"
    assert "images in a folder are" in refusal(
        load_table, tmp_path / "pets", TableSchema(owner="who"), name="data"
    )


def test_images_are_read_without_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files with the name of an image count, deeper ones too, in the colors of the pixels."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    write_images(tmp_path / "pets", 20)
    image = pytest.importorskip("PIL.Image")
    deep = tmp_path / "pets" / "cats" / "deep"
    deep.mkdir()
    image.fromarray(np.full((5, 4), 7, np.uint8)).save(deep / "g.BMP")
    (tmp_path / "pets" / "cats" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "pets" / "readme.txt").write_text("x")
    data = load_table(tmp_path / "pets", TableSchema(classes=("cats", "dogs")))
    rows = np.concatenate([data.train.inputs.numpy(), data.test.inputs.numpy()])
    labels = np.concatenate([data.train.targets.numpy(), data.test.targets.numpy()])
    assert np.bincount(labels).tolist() == [21, 20]
    known = np.asarray(image.open(tmp_path / "pets" / "dogs" / "3.png")).transpose(2, 0, 1)
    assert labels[(rows == known).all(axis=(1, 2, 3))].tolist() == [1]
    assert labels[(rows == 7).all(axis=(1, 2, 3))].tolist() == [0]
    (tmp_path / "pets" / "birds").mkdir()
    assert "birds has none" in refusal(load_table, tmp_path / "pets", name="data")


def test_folders_that_declare_a_split(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 3)
    write_images(tmp_path / "test", 2)
    data = load_table(tmp_path)
    assert (len(data.train), len(data.test)) == (6, 4)
    (tmp_path / "test" / "dogs" / "0.png").write_bytes(b"text")
    assert "it is not an image" in refusal(load_table, tmp_path, name="data")
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "test" / "dogs" / "0.png")
    assert "one size, (5, 4), here (9, 9)" in refusal(load_table, tmp_path, name="data")
    (tmp_path / "nothing").mkdir()
    assert "for each class" in refusal(load_table, tmp_path / "nothing", name="data")


def test_archives_that_are_damaged_or_hold_no_text_are_refused_in_a_sentence(tmp_path):
    inputs, whole = np.eye(6, dtype=np.float32), np.arange(6)
    path = tmp_path / "a.npz"
    for owner in (
        np.array([b"\xff", b"a"] * 3), np.array(["\ud800", "a"] * 3), np.zeros(6, [("a", int)]),
    ):  # fmt: skip
        np.savez(path, inputs=inputs, label=whole % 2, owner=owner)
        with pytest.raises(InvalidParameter, match=r"a\.npz"):
            load_table(path, TableSchema(owner="owner", test_share=0.5))
    np.savez_compressed(path, inputs=inputs, label=whole % 2, owner=whole)
    good, random = path.read_bytes(), np.random.default_rng(3)
    for place in random.integers(len(good), size=300):
        changed = bytearray(good)
        changed[place] = int(random.integers(256))
        path.write_bytes(changed)
        with suppress(InvalidParameter):
            load_table(path, TableSchema(owner="owner", test_share=0.5))
        with suppress(InvalidParameter):
            read_arrays(path, ["inputs", "label"])
