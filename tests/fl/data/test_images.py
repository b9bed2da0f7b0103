"""Readers of image files: what is written comes back, what is damaged is refused by name."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.fl.data import load, load_fashion_mnist, load_femnist, load_mnist
from dpacct.fl.data.mnist import read_idx

RANDOM = np.random.default_rng(0)
MNIST_FILES = {
    "train-images-idx3-ubyte": RANDOM.integers(0, 256, (5, 28, 28), np.uint8),
    "train-labels-idx1-ubyte": np.array([0, 9, 3, 1, 1], np.uint8),
    "t10k-images-idx3-ubyte": RANDOM.integers(0, 256, (2, 28, 28), np.uint8),
    "t10k-labels-idx1-ubyte": np.array([4, 2], np.uint8),
}


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.tobytes()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.name == "data_dir"
    return str(refused.value)


# MNIST and Fashion-MNIST.


@pytest.fixture(params=["plain", "gzip", "npz", "keras"])
def mnist_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    train_x, train_y, test_x, test_y = MNIST_FILES.values()
    if request.param == "npz":
        arrays = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
        np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    elif request.param == "keras":
        arrays = {"x_train": train_x, "y_train": train_y, "x_test": test_x, "y_test": test_y}
        np.savez(tmp_path / "mnist.npz", **arrays)
    else:
        for name, array in MNIST_FILES.items():
            if request.param == "gzip":
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def test_mnist_comes_back_in_every_form(mnist_folder: Path) -> None:
    data = load_mnist(mnist_folder)
    train_x, train_y, test_x, test_y = MNIST_FILES.values()
    assert data.train.inputs.numpy().reshape(5, 28, 28).tolist() == train_x.tolist()
    assert data.train.targets.tolist() == train_y.tolist()
    assert data.test.inputs.numpy().reshape(2, 28, 28).tolist() == test_x.tolist()
    assert data.test.targets.tolist() == test_y.tolist()
    inputs, _ = data.train.batch(slice(0, 5))
    expected = (train_x.astype(np.float64) / 255 - 0.1307) / 0.3081
    assert inputs.shape == (5, 1, 28, 28)
    assert np.allclose(inputs.numpy()[:, 0], expected, atol=1e-5)


def test_a_folder_below_is_found(tmp_path: Path) -> None:
    below = tmp_path / "FashionMNIST" / "raw"
    below.mkdir(parents=True)
    for name, array in MNIST_FILES.items():
        (below / name).write_bytes(idx(array))
    assert len(load_fashion_mnist(tmp_path).train) == 5


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, array in MNIST_FILES.items():
        (tmp_path / name).write_bytes(idx(array))
    monkeypatch.setenv("DPACCT_DATA", str(tmp_path))
    assert len(load("mnist").test) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["mnist.npz", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]),
        ("fashion-mnist", ["fashion_mnist.npz", "train-images-idx3-ubyte"]),
        ("cifar10", ["cifar10_train_1.npz", "data_batch_1 ", "test_batch.bin"]),
        ("femnist", ["femnist_writers.npz"]),
        ("shakespeare", ["shakespeare_roles.json"]),
        ("adult", ["adult.csv"]),
    ],
)
def test_missing_files_are_named(tmp_path: Path, name: str, words: list[str]) -> None:
    text = refusal(lambda: load(name, tmp_path))
    assert all(word in text for word in [*words, str(tmp_path), name, "--data-dir"])
    absent = tmp_path / "nowhere"
    assert "does not exist" in refusal(lambda: load(name, absent))


def test_one_missing_part_is_a_missing_data_set(tmp_path: Path) -> None:
    for name, array in list(MNIST_FILES.items())[:3]:
        (tmp_path / name).write_bytes(idx(array))
    assert "t10k-labels-idx1-ubyte" in refusal(lambda: load_mnist(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing"),
        (b"\x00\x00\x09\x01" + b"\x00" * 8, "00 00 09 01"),
        (b"\x00\x00\x08\x03" + b"\x00" * 20, "00 00 08 03"),
        (b"\x00\x00\x08\x01\x00\x00", "truncated"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05\x01\x02", "truncated"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01\x01\x02", "not what its header says"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x00", "shape (0,)"),
        (b"\x00\x00\x08\x01\xff\xff\xff\xff\x01", "truncated"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "labels"
    file.write_bytes(content)
    text = refusal(lambda: read_idx(file, 1))
    assert words in text
    assert str(file) in text


def test_lengths_of_idx_files_do_not_wrap_around(tmp_path: Path) -> None:
    file = tmp_path / "images"
    # 2^32 - 1 squared and so on: a product in 64 bits would be small again.
    file.write_bytes(b"\x00\x00\x08\x03" + struct.pack(">III", 2**31, 2**31, 4))
    assert "truncated" in refusal(lambda: read_idx(file, 3))


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"x" + b, lambda b: b[:12]])
def test_damaged_gzip(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    for name, array in MNIST_FILES.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    text = refusal(lambda: load_mnist(tmp_path))
    assert str(file) in text
    assert "gzip" in text


@given(array=st.binary(min_size=1, max_size=40))
def test_any_bytes_survive_an_idx_file(array: bytes, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.mktemp("idx") / "labels"
    values = np.frombuffer(array, np.uint8)
    file.write_bytes(idx(values))
    assert read_idx(file, 1).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_x": np.zeros((5, 28, 27), np.uint8)}, "train_x has shape (n, 28, 28)"),
        ({"train_x": np.zeros((5, 28, 28), np.float32)}, "train_x is of type uint8"),
        ({"train_x": np.zeros((0, 28, 28), np.uint8)}, "train_x is empty"),
        ({"train_y": np.zeros(4, np.uint8)}, "5 images and 4 labels"),
        ({"train_y": np.array([0, 1, 2, 10, 4], np.uint8)}, "train_y[3] is 10"),
        ({"test_y": None}, "lacks test_y"),
    ],
)
def test_wrong_arrays(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    keys = ("train_x", "train_y", "test_x", "test_y")
    arrays = dict(zip(keys, MNIST_FILES.values(), strict=True)) | change
    file = tmp_path / "mnist.npz"
    np.savez(file, **{key: array for key, array in arrays.items() if array is not None})
    text = refusal(lambda: load_mnist(tmp_path))
    assert words in text
    assert str(file) in text


def test_objects_in_arrays_are_not_unpickled(tmp_path: Path) -> None:
    arrays = dict(
        zip(("train_x", "train_y", "test_x", "test_y"), MNIST_FILES.values(), strict=True)
    )
    arrays["train_y"] = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "mnist.npz", **arrays)
    assert "damaged" in refusal(lambda: load_mnist(tmp_path))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mnist.npz").write_bytes(content)
    assert "mnist.npz" in refusal(lambda: load_mnist(tmp_path))


def test_a_truncated_archive(tmp_path: Path) -> None:
    file = tmp_path / "mnist.npz"
    np.savez(file, **dict(zip(("train_x", "train_y"), list(MNIST_FILES.values())[:2], strict=True)))
    file.write_bytes(file.read_bytes()[:-40])
    assert "damaged" in refusal(lambda: load_mnist(tmp_path))


# FEMNIST.


def femnist_arrays() -> dict[str, np.ndarray]:
    return {
        "x": RANDOM.integers(0, 256, (6, 28, 28), np.uint8),
        "y": np.array([0, 61, 5, 6, 7, 8], np.uint8),
        "writer": np.array([4, 2, 4, 2, 9, 4], np.uint8),
        "split": np.array([0, 0, 0, 1, 1, 1], np.uint8),
    }


def test_femnist_by_writer(tmp_path: Path) -> None:
    arrays = femnist_arrays()
    np.savez(tmp_path / "femnist_writers.npz", **arrays)
    data = load_femnist(tmp_path, test_writers="training")
    assert data.owners is not None
    assert data.owners.tolist() == [4, 2, 4]
    assert data.train.targets.tolist() == [0, 61, 5]
    assert data.test.targets.tolist() == [6, 8]
    new = load_femnist(tmp_path)
    assert (data.test_data, new.test_data) == ("unprotected", "public")
    assert new.test.targets.tolist() == [7]
    assert new.test_owners is not None
    assert (data.test_owners is not None, new.test_owners.tolist()) == (True, [9])
    ink, _ = data.train.batch(slice(0, 1))
    expected = torch.from_numpy((255.0 - arrays["x"][0]) / 255.0)
    assert torch.allclose(ink[0, 0], expected.float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": np.array([0, 62, 5, 6, 7, 8], np.uint8)}, "y[1] is 62"),
        ({"split": np.array([0, 0, 0, 1, 1, 2], np.uint8)}, "split[5] is 2"),
        ({"split": np.zeros(6, np.uint8)}, "no test images"),
        ({"writer": np.zeros(5, np.uint8)}, "writer has shape (6)"),
    ],
)
def test_wrong_femnist(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "femnist_writers.npz", **(femnist_arrays() | change))
    assert words in refusal(lambda: load_femnist(tmp_path))


def test_test_writers_are_a_word() -> None:
    with pytest.raises(InvalidParameter, match="test_writers is 'all'"):
        load_femnist(test_writers="all")
