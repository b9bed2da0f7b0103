"""CIFAR-10: 50000 and 10000 color images of 32 x 32 pixels, ten classes.

Looked for in the data folder, in this order:

- ``cifar10_train_1.npz`` ... ``cifar10_train_5.npz``, ``cifar10_test.npz``, each with ``d`` uint8
  [3, n, 32, 32] and ``y`` uint8 [n]: the planes green, red - green, blue - green, then differences
  down and across, all modulo 256 (a coding that compresses well);
- the original Python batches ``data_batch_1`` ... ``data_batch_5`` and ``test_batch``, there or in
  ``cifar-10-batches-py``: pickles, read without running anything in them;
- the original binary batches ``data_batch_1.bin`` ... and ``test_batch.bin``, there or in
  ``cifar-10-batches-bin``: one byte of label and 3072 of pixels, record after record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpacct.fl.data.dataset import Dataset, Examples, Scaling, tensor_of
from dpacct.fl.data.files import (
    check_array,
    check_labels,
    folder_of,
    invalid,
    missing,
    read_arrays,
    read_bytes,
)
from dpacct.fl.data.mnist import Folder
from dpacct.fl.data.safe_pickle import read_pickled_batch

CLASSES = 10
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
PIXELS = 3 * 32 * 32

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Bytes]
_Reader = Callable[[Path], Part]


def load_cifar10(folder: Folder = None) -> Dataset:
    """CIFAR-10 as [3, 32, 32] images, standardized by its known constants; without augmentation.

    Raises:
        InvalidParameter: the files are missing or damaged.
    """
    root = folder_of(folder)
    for names, below, read in _FORMS:
        for place in (root, *(root / name for name in below)):
            if all((place / name).is_file() for name in names):
                parts = [read(place / name) for name in names]
                return Dataset("cifar10", _joined(parts[:-1]), _joined(parts[-1:]), CLASSES)
    alternatives = [f"{names[0]} ... {names[4]} and {names[5]}" for names, _, _ in _FORMS]
    raise missing(root, "cifar10", alternatives)


def decode_planes(coded: Bytes) -> Bytes:
    """Images [n, 3, 32, 32], red first, of coded planes [3, n, 32, 32]."""
    green, red, blue = coded.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], axis=1)


def _read_planes(file: Path) -> Part:
    coded, labels = read_arrays(file, ["d", "y"])
    check_array(file, "d", coded, (3, None, 32, 32))
    check_array(file, "y", labels, (None,))
    check_labels(file, "y", labels, coded.shape[1], CLASSES)
    return decode_planes(coded), labels


def _read_pickle(file: Path) -> Part:
    batch = read_pickled_batch(file)
    lacking = [key.decode() for key in (b"data", b"labels") if key not in batch]
    if lacking:
        raise invalid(file, f"a batch of CIFAR-10 lacks {' and '.join(lacking)}")
    found, labels = batch[b"data"], _label_array(file, batch[b"labels"])
    if not isinstance(found, np.ndarray):
        raise invalid(file, "data is an array of pixels")
    pixels = cast("Bytes", found)
    check_array(file, "data", pixels, (None, PIXELS))
    check_labels(file, "labels", labels, len(pixels), CLASSES)
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.uint8)


def _label_array(file: Path, labels: Any) -> NDArray[Any]:
    whole = isinstance(labels, list) and all(
        type(label) is int for label in cast("list[object]", labels)
    )
    if not whole:
        raise invalid(file, "labels is a list of whole numbers")
    # Objects first: a number of any size must be refused by its value, not by numpy.
    return np.array(labels, dtype=object)


def _read_binary(file: Path) -> Part:
    content = np.frombuffer(read_bytes(file), np.uint8)
    if content.size == 0 or content.size % (1 + PIXELS):
        rule = f"it consists of records of {1 + PIXELS} bytes, and has {content.size} bytes"
        raise invalid(file, rule)
    records = content.reshape(-1, 1 + PIXELS)
    check_labels(file, "the labels", records[:, 0], len(records), CLASSES)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


_Form = tuple[Sequence[str], Sequence[str], _Reader]
_FORMS: tuple[_Form, ...] = (
    (
        [*(f"cifar10_train_{k}.npz" for k in range(1, 6)), "cifar10_test.npz"],
        ["cifar10"],
        _read_planes,
    ),
    (
        [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"],
        ["cifar-10-batches-py"],
        _read_pickle,
    ),
    (
        [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"],
        ["cifar-10-batches-bin"],
        _read_binary,
    ),
)


def _joined(parts: Sequence[Part]) -> Examples:
    images = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return Examples(tensor_of(images), tensor_of(labels), Scaling.standardized(MEAN, STD))
