"""MNIST and Fashion-MNIST, in the original idx files or as one .npz file.

Looked for in the data folder, and in a folder below it that is called like the data set:

- ``mnist.npz`` (``fashion_mnist.npz``) with ``train_x`` uint8 [n, 28, 28], ``train_y`` uint8 [n],
  ``test_x``, ``test_y``; also with the keys ``x_train``, ``y_train``, ``x_test``, ``y_test``;
- ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
  ``t10k-labels-idx1-ubyte``, each with or without ``.gz`` (or with a dot before ``idx``).

An idx file is: two bytes 0, one byte for the type (8: unsigned bytes), one for the number of
dimensions, each dimension in four bytes, highest first, then the values.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.fl.data.dataset import Dataset, Examples, Scaling, tensor_of
from dpacct.fl.data.files import (
    check_array,
    check_labels,
    first_existing,
    folder_of,
    invalid,
    missing,
    read_arrays,
    read_bytes,
)

CLASSES = 10
SIDE = 28
Folder = str | os.PathLike[str] | None
Array = NDArray[Any]

_UNSIGNED_BYTES = 8
_KEYS = (("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))
_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


class _Source(NamedTuple):
    """What tells one of the two data sets from the other."""

    name: str
    archives: tuple[str, ...]
    folders: tuple[str, ...]
    scaling: Scaling


def load_mnist(folder: Folder = None) -> Dataset:
    """MNIST: 60000 and 10000 images [1, 28, 28] of digits, standardized by its known constants.

    Raises:
        InvalidParameter: the files are missing or damaged.
    """
    scaling = Scaling.standardized([0.1307], [0.3081])
    return _load(_Source("mnist", ("mnist.npz",), ("mnist", "MNIST/raw"), scaling), folder)


def load_fashion_mnist(folder: Folder = None) -> Dataset:
    """Fashion-MNIST: as MNIST, with ten kinds of clothing.

    Raises:
        InvalidParameter: the files are missing or damaged.
    """
    names = ("fashion_mnist.npz", "fashion-mnist.npz")
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw")
    scaling = Scaling.standardized([0.2860], [0.3530])
    return _load(_Source("fashion-mnist", names, folders, scaling), folder)


def read_idx(file: Path, dimensions: int) -> Array:
    """The unsigned bytes of an idx file, in as many dimensions.

    Raises:
        InvalidParameter: another magic number, or a length that its header does not promise.
    """
    content = read_bytes(file)
    magic = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if content[:4] != magic:
        rule = f"an idx file of bytes in {dimensions} dimensions starts with {magic.hex(' ')}"
        raise invalid(file, f"{rule}, this one with {content[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise invalid(file, f"it is truncated: the header has {start} bytes, here {len(content)}")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, 4))
    # Python's integers: the product of four-byte lengths must not wrap around.
    expected = start
    for length in shape:
        expected = start + (expected - start or 1) * length if length else start
    if len(content) != expected or 0 in shape:
        state = "truncated" if len(content) < expected else "not what its header says"
        raise invalid(
            file, f"it is {state}: shape {shape} takes {expected} bytes, here {len(content)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _load(source: _Source, folder: Folder) -> Dataset:
    root = folder_of(folder)
    for place in (root, *(root / name for name in source.folders)):
        archive = first_existing(place, source.archives)
        if archive is not None:
            return _dataset(source, _from_archive(archive))
        files = [first_existing(place, _idx_names(part)) for part in _PARTS]
        if all(file is not None for file in files):
            return _dataset(source, _from_idx([file for file in files if file is not None]))
    wanted = ", ".join(_idx_names(part)[0] for part in _PARTS)
    alternatives = [source.archives[0], f"{wanted} (or those with .gz)"]
    raise missing(root, source.name, alternatives)


def _idx_names(part: str) -> list[str]:
    dimensions = 3 if part.endswith("images") else 1
    plain = [f"{part}-idx{dimensions}-ubyte", f"{part}.idx{dimensions}-ubyte"]
    return [name + suffix for name in plain for suffix in ("", ".gz")]


def _from_archive(file: Path) -> list[tuple[Array, Array]]:
    with_keys = _KEYS[0]
    try:
        arrays = read_arrays(file, with_keys)
    except ValueError as refusal:
        with_keys = _KEYS[1]
        try:
            arrays = read_arrays(file, with_keys)
        except ValueError:
            raise refusal from None
    pairs = [(arrays[0], arrays[1]), (arrays[2], arrays[3])]
    names = [with_keys[:2], with_keys[2:]]
    for (images, labels), (image_key, label_key) in zip(pairs, names, strict=True):
        check_array(file, image_key, images, (None, SIDE, SIDE))
        check_array(file, label_key, labels, (None,))
        check_labels(file, label_key, labels, len(images), CLASSES)
    return pairs


def _from_idx(files: list[Path]) -> list[tuple[Array, Array]]:
    pairs: list[tuple[Array, Array]] = []
    for image_file, label_file in (files[:2], files[2:]):
        images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
        check_array(image_file, "the images", images, (None, SIDE, SIDE))
        check_labels(label_file, "labels", labels, len(images), CLASSES)
        pairs.append((images, labels))
    return pairs


def _dataset(source: _Source, pairs: list[tuple[Array, Array]]) -> Dataset:
    train, test = (
        Examples(
            tensor_of(images.copy()).unsqueeze(1),
            tensor_of(labels.astype(np.int64)),
            source.scaling,
        )
        for images, labels in pairs
    )
    return Dataset(source.name, train, test, CLASSES)
