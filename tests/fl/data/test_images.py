"""Loaders of images: what is written comes back, what is damaged is refused by name."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data import (
    load,
    load_femnist,
    load_table,
)
from dpacct.fl.data.images import decode_planes
from tests.fl.data.refusals import refusal

RANDOM = np.random.default_rng(0)
KEYS = ("train_x", "train_y", "test_x", "test_y")
MNIST = {
    "train_x": RANDOM.integers(0, 256, (5, 28, 28), np.uint8),
    "train_y": np.array([0, 9, 3, 1, 1], np.uint8),
    "test_x": RANDOM.integers(0, 256, (2, 28, 28), np.uint8),
    "test_y": np.array([4, 2], np.uint8),
}


def write_raw(folder: Path, start: str = "", test: str = "t10k") -> None:
    """The files that torchvision makes of MNIST, with these beginnings of their names."""
    folder.mkdir(parents=True)
    names = ("train-images-idx3", "train-labels-idx1", f"{test}-images-idx3", f"{test}-labels-idx1")
    for name, array in zip(names, MNIST.values(), strict=True):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / f"{start}{name}-ubyte").write_bytes(header + array.tobytes())


@pytest.mark.parametrize("form", ["npz", "keras", "torchvision"])
def test_mnist_comes_back_in_every_form(
    tmp_path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    if form == "torchvision":
        request.getfixturevalue("torchvision")
        write_raw(tmp_path / "MNIST" / "raw")
        write_raw(tmp_path / "FashionMNIST" / "raw")
        assert len(load("fashion-mnist", tmp_path).train) == 5
    else:
        names = KEYS if form == "npz" else ("x_train", "y_train", "x_test", "y_test")
        np.savez_compressed(tmp_path / "mnist.npz", **dict(zip(names, MNIST.values(), strict=True)))
    data = load("mnist", tmp_path)
    for part, images, labels in (
        (data.train, MNIST["train_x"], MNIST["train_y"]),
        (data.test, MNIST["test_x"], MNIST["test_y"]),
    ):
        assert np.array_equal(part.inputs[:, 0].numpy(), images)
        assert part.targets.tolist() == labels.tolist()
    inputs, _ = data.train.batch(slice(0, 5))
    expected = (MNIST["train_x"].astype(np.float64) / 255 - 0.1307) / 0.3081
    assert inputs.shape == (5, 1, 28, 28)
    assert np.allclose(inputs.numpy()[:, 0], expected, atol=1e-5)


@pytest.mark.usefixtures("torchvision")
def test_emnist_is_upright_and_counts_from_zero(tmp_path: Path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    write_raw(raw, "emnist-balanced-", "test")
    data = load("emnist", tmp_path)
    assert data.num_classes == 47
    assert np.array_equal(data.train.inputs[:, 0].numpy(), MNIST["train_x"].transpose(0, 2, 1))
    assert data.test.targets.tolist() == MNIST["test_y"].tolist()
    with pytest.raises(InvalidParameter, match="split"):
        load("emnist", tmp_path, split="all")
    for file in raw.iterdir():
        file.rename(file.with_name(file.name.replace("balanced", "letters")))
    # 0 is no letter of theirs.
    assert "labels lie in 0..25" in refusal(load, "emnist", tmp_path, split="letters")
    file = raw / "emnist-letters-train-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes().replace(b"\0\t\3\1\1", b"\1\t\3\1\1"))
    assert load("emnist", tmp_path, split="letters").train.targets.tolist() == [0, 8, 2, 0, 0]


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(("name", "key"), [("cifar10", "labels"), ("cifar100", "fine_labels")])
def test_cifar_by_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    from torchvision.datasets import cifar

    # These are not the published files, whose checksums torchvision knows.
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    kind = cifar.CIFAR10 if name == "cifar10" else cifar.CIFAR100
    pixels = RANDOM.integers(0, 256, (2, 3, 32, 32), np.uint8)
    (tmp_path / kind.base_folder).mkdir()
    content = {"data": pixels.reshape(2, -1), key: [9, 3], kind.meta["key"]: ["a"]}
    files = [file for file, _ in (*kind.train_list, *kind.test_list)]
    for file in [*files, kind.meta["filename"]]:
        (tmp_path / kind.base_folder / file).write_bytes(pickle.dumps(content))
    data = load(name, tmp_path)
    assert np.array_equal(data.test.inputs.numpy(), pixels)
    assert data.train.targets.tolist() == [9, 3] * len(kind.train_list)
    assert data.num_classes == {"cifar10": 10, "cifar100": 100}[name]


@pytest.mark.usefixtures("torchvision")
def test_svhn_by_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    monkeypatch.setattr(SVHN, "_check_integrity", lambda _: True)
    pixels = RANDOM.integers(0, 256, (2, 3, 32, 32), np.uint8)
    for half in ("train", "test"):
        content = {"X": pixels.transpose(2, 3, 1, 0), "y": np.array([[10], [4]], np.uint8)}
        savemat(tmp_path / f"{half}_32x32.mat", content)
    data = load("svhn", tmp_path)
    assert np.array_equal(data.train.inputs.numpy(), pixels)
    assert data.test.targets.tolist() == [0, 4]
    with pytest.raises(InvalidParameter, match="torchvision cannot read SVHN"):
        load("svhn", tmp_path, extra=True)
    more = {"X": pixels.transpose(2, 3, 1, 0), "y": np.array([[7], [2]], np.uint8)}
    savemat(tmp_path / "extra_32x32.mat", more)
    assert load("svhn", tmp_path, extra=True).train.targets.tolist() == [0, 4, 7, 2]
    with pytest.raises(InvalidParameter, match="SVHN has extra images, and mnist has none"):
        load("mnist", tmp_path, extra=True)


def test_files_of_torchvision_without_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    write_raw(tmp_path / "MNIST" / "raw")
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(Unsupported, match=r'not installed: .*install "torchvision>=0.25"'):
        load("mnist", tmp_path)
    # What needs no torchvision is read without it.
    np.savez(tmp_path / "mnist.npz", **MNIST)
    assert len(load("mnist", tmp_path).train) == 5


@pytest.mark.usefixtures("torchvision")
def test_damaged_files_of_torchvision(tmp_path: Path) -> None:
    write_raw(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(gzip.compress(b"x"))
    assert "torchvision cannot read" in refusal(load, "mnist", tmp_path)
    # Batches of CIFAR-10 are pickles, which are opened only if their checksums are the known ones.
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"):
        (batches / name).write_bytes(pickle.dumps(Bomb(tmp_path / "bang")))
    assert "torchvision cannot read CIFAR10" in refusal(load, "cifar10", tmp_path)
    assert not (tmp_path / "bang").exists()


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", **MNIST)
    monkeypatch.setenv("DPACCT_DATA", str(tmp_path))
    assert len(load("mnist").test) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["mnist.npz", "MNIST/raw"]),
        ("fashion-mnist", ["fashion_mnist.npz", "FashionMNIST/raw"]),
        ("emnist", ["emnist.npz", "EMNIST/raw"]),
        ("cifar10", ["cifar10_train_1.npz", "cifar-10-batches-py"]),
        ("cifar100", ["cifar100.npz", "cifar-100-python"]),
        ("svhn", ["svhn.npz", "train_32x32.mat"]),
        ("femnist", ["femnist_writers.npz"]),
        ("shakespeare", ["shakespeare_roles.json"]),
        ("adult", ["adult.csv"]),
    ],
)
def test_missing_files_are_named(tmp_path: Path, name: str, words: list[str]) -> None:
    text = refusal(load, name, tmp_path)
    assert all(word in text for word in [*words, str(tmp_path), name, "--data-dir"])
    assert "does not exist" in refusal(load, name, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_x": np.zeros((5, 28, 27), np.uint8)}, "train_x has shape (n, 1, 28, 28)"),
        ({"train_x": np.zeros((5, 28, 28), np.float32)}, "train_x is of type uint8"),
        ({"train_x": np.zeros((0, 28, 28), np.uint8)}, "train_x is empty"),
        ({"train_y": np.zeros(4, np.uint8)}, "5 images and 4 labels"),
        ({"train_y": np.array([0, 1, 2, 10, 4], np.uint8)}, "train_y[3] is 10"),
        ({"train_y": np.array([{"a": 1}], dtype=object)}, "damaged"),
        ({"test_y": None}, "lacks test_y"),
    ],
)
def test_wrong_arrays(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file, arrays = tmp_path / "mnist.npz", MNIST | change
    np.savez(file, **{key: array for key, array in arrays.items() if array is not None})
    text = refusal(load, "mnist", tmp_path)
    assert words in text
    assert str(file) in text


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    file = tmp_path / "mnist.npz"
    for content in (b"", b"PK\x03\x04", b"text", b"\x93NUMPY\x01\x00"):
        file.write_bytes(content)
        assert "mnist.npz" in refusal(load, "mnist", tmp_path)
        assert "mnist.npz" in refusal(load_table, file, name="data")


def test_cifar_decodes_its_planes(tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (6, 4, 3, 32, 32), np.uint8)
    labels = RANDOM.integers(0, 10, (6, 4)).astype(np.uint8)
    names = [*(f"cifar10_train_{k}.npz" for k in range(1, 6)), "cifar10_test.npz"]
    for name, images, own in zip(names, pixels, labels, strict=True):
        red, green, blue = images.swapaxes(0, 1)
        planes = np.stack([green, red - green, blue - green])
        down = np.diff(planes, axis=2, prepend=np.uint8(0))
        across = np.diff(down, axis=3, prepend=np.uint8(0))
        assert np.array_equal(decode_planes(across), images)
        np.savez(tmp_path / name, d=across, y=own)
    data = load("cifar10", tmp_path)
    assert np.array_equal(data.train.inputs.numpy(), np.concatenate(pixels[:5]))
    assert data.test.targets.tolist() == labels[5].tolist()
    inputs, _ = data.test.batch(slice(0, 4))
    red = (pixels[5, :, 0].astype(np.float64) / 255 - 0.4914) / 0.2470
    assert np.allclose(inputs[:, 0].numpy(), red, atol=1e-5)
    (tmp_path / names[2]).unlink()
    assert names[2] in refusal(load, "cifar10", tmp_path)


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
    assert (new.test.targets.tolist(), new.test_owners.tolist()) == ([7], [9])
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
    assert words in refusal(load_femnist, tmp_path)
    refusal(load_femnist, tmp_path, test_writers="all", name="test_writers")
