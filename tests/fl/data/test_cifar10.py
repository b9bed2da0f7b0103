"""CIFAR-10: three forms of the same images, and pickles that may come from anybody."""

from __future__ import annotations

import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.fl.data import load_cifar10
from dpacct.fl.data.cifar10 import decode_planes
from dpacct.fl.data.safe_pickle import read_pickled_batch

RANDOM = np.random.default_rng(0)
CIFAR_NAMES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
CIFAR_PARTS = [
    (RANDOM.integers(0, 256, (3, 3072), np.uint8), RANDOM.integers(0, 10, 3)) for _ in CIFAR_NAMES
]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.name == "data_dir"
    return str(refused.value)


def write_planes(folder: Path) -> None:
    names = [*(f"cifar10_train_{k}.npz" for k in range(1, 6)), "cifar10_test.npz"]
    for name, (pixels, labels) in zip(names, CIFAR_PARTS, strict=True):
        red, green, blue = pixels.reshape(-1, 3, 32, 32).swapaxes(0, 1)
        planes = np.stack([green, red - green, blue - green])
        down = np.diff(planes, axis=2, prepend=np.uint8(0))
        across = np.diff(down, axis=3, prepend=np.uint8(0))
        np.savez(folder / name, d=across.astype(np.uint8), y=labels.astype(np.uint8))


def python_2_pickle(batch: dict[bytes, Any]) -> bytes:
    """Protocol 2 with strings as the original files have them: numpy's old module, bytes keys."""
    pixels, labels = batch[b"data"], batch[b"labels"]
    text = b"\x80\x02}("
    text += short(b"data") + b"cnumpy.core.multiarray\n_reconstruct\n"
    text += b"(cnumpy\nndarray\n" + b"(K\x00t" + short(b"b") + b"tR"
    text += b"(K\x01" + b"(" + number(len(pixels)) + number(3072) + b"t"
    text += b"cnumpy\ndtype\n(" + short(b"u1") + b"K\x00K\x01tR"
    text += b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    text += b"\x89" + b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    text += short(b"labels") + b"](" + b"".join(number(int(k)) for k in labels) + b"e"
    return text + b"u."


def short(word: bytes) -> bytes:
    return b"U" + bytes([len(word)]) + word


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def write_pickles(folder: Path) -> None:
    for name, (pixels, labels) in zip(CIFAR_NAMES, CIFAR_PARTS, strict=True):
        (folder / name).write_bytes(python_2_pickle({b"data": pixels, b"labels": labels}))


def write_new_pickles(folder: Path) -> None:
    below = folder / "cifar-10-batches-py"
    below.mkdir()
    for name, (pixels, labels) in zip(CIFAR_NAMES, CIFAR_PARTS, strict=True):
        batch = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"one"}
        (below / name).write_bytes(pickle.dumps(batch, protocol=4))


def write_binary(folder: Path) -> None:
    for name, (pixels, labels) in zip(CIFAR_NAMES, CIFAR_PARTS, strict=True):
        records = np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


@pytest.mark.parametrize("write", [write_planes, write_pickles, write_new_pickles, write_binary])
def test_cifar10_comes_back_in_every_form(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    data = load_cifar10(tmp_path)
    pixels = np.concatenate([part for part, _ in CIFAR_PARTS]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([part for _, part in CIFAR_PARTS])
    assert np.array_equal(data.train.inputs.numpy(), pixels[:15])
    assert np.array_equal(data.test.inputs.numpy(), pixels[15:])
    assert data.train.targets.tolist() == labels[:15].tolist()
    assert data.test.targets.tolist() == labels[15:].tolist()
    means, stds = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    expected = (pixels[15:] / 255 - means[:, None, None]) / stds[:, None, None]
    assert np.allclose(data.test.batch(slice(0, 3))[0].numpy(), expected, atol=1e-5)


def test_our_writer_of_old_pickles_writes_what_python_reads() -> None:
    pixels, labels = CIFAR_PARTS[0]
    text = python_2_pickle({b"data": pixels, b"labels": labels})
    with warnings.catch_warnings():
        # Some releases of numpy complain about the module that old files name.
        warnings.simplefilter("ignore")
        read = pickle.loads(text, encoding="bytes")  # noqa: S301 - written above
    assert np.array_equal(read[b"data"], pixels)
    assert read[b"labels"] == labels.tolist()


def test_planes_are_decoded_modulo_256() -> None:
    coded = np.zeros((3, 1, 32, 32), np.uint8)
    coded[:, 0, 0, 0] = 250, (3 - 250) % 256, (7 - 250) % 256  # green, red and blue less green
    assert decode_planes(coded)[0, :, 5, 5].tolist() == [3, 250, 7]


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('a data file was executed')",))


def array_with(state: object) -> bytes:
    """A pickle of an array whose state is whatever a stranger wrote."""
    text = pickle.dumps(state, protocol=3)[2:-1]
    head = b"\x80\x02}(" + short(b"data") + b"cnumpy.core.multiarray\n_reconstruct\n"
    return head + b"(cnumpy\nndarray\n(K\x00t" + short(b"b") + b"tR" + text + b"bu."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Bomb()), "exec"),
        (pickle.dumps({b"data": Bomb()}), "exec"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load"),
        (b"cnumpy.core.multiarray\nscalar\n.", "scalar"),
        (b"\x80\x04\x95\x00", "damaged"),
        (b"", "damaged"),
        (b"Px\n.", "outside itself"),
        (pickle.dumps([1, 2]), "a list"),
        (pickle.dumps({b"labels": [1]}), "lacks data"),
        (pickle.dumps({b"data": [1], b"labels": [1]}), "array of pixels"),
        (pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}, 4), "f8"),
        (pickle.dumps({b"data": np.array([{}], dtype=object)}, 4), "O8"),
        (pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}, 4), "(n, 3072)"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, 4), "is 10"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [2**80]}, 4), "labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, 4), "is -1"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1.5]}, 4), "whole"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 4), "2 images"),
        (array_with((1, (5,), None, False, b"12345")), "dtype"),
        (array_with((1, 2)), "five parts"),
        (array_with({"values": 3}), "five parts"),
    ],
)
def test_foreign_and_damaged_pickles(tmp_path: Path, content: bytes, words: str) -> None:
    write_pickles(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(content)
    text = refusal(lambda: load_cifar10(tmp_path))
    assert words in text
    assert "data_batch_3" in text


@given(cut=st.integers(0, 9000), flip=st.integers(0, 255))
def test_a_damaged_pickle_never_gets_out_of_hand(
    cut: int, flip: int, tmp_path_factory: Any
) -> None:
    pixels, labels = CIFAR_PARTS[0]
    content = bytearray(python_2_pickle({b"data": pixels, b"labels": labels}))
    where = cut % len(content)
    content[where] ^= flip
    file = tmp_path_factory.mktemp("pickle") / "batch"
    file.write_bytes(bytes(content) if cut % 2 else bytes(content[:where]))
    try:
        read = read_pickled_batch(file)
    except InvalidParameter:
        return
    assert isinstance(read, dict)


def test_binary_batches_of_another_length(tmp_path: Path) -> None:
    write_binary(tmp_path)
    file = tmp_path / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1])
    assert "records of 3073 bytes" in refusal(lambda: load_cifar10(tmp_path))
    file.write_bytes(b"\x0b" + bytes(3072))
    assert "is 11" in refusal(lambda: load_cifar10(tmp_path))
    file.write_bytes(b"")
    assert "records" in refusal(lambda: load_cifar10(tmp_path))
