"""Read images: digits, MNIST, Fashion-MNIST, CIFAR-10 and FEMNIST, all of them public data.

Looked for in the data folder, and in a folder below it that is called like the data set:

- ``mnist.npz`` and ``fashion_mnist.npz`` with ``train_x`` uint8 [n, 28, 28], ``train_y`` uint8 [n],
  ``test_x``, ``test_y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``.
- ``cifar10_train_1.npz`` ... ``cifar10_train_5.npz``, ``cifar10_test.npz``, each with ``d`` uint8
  [3, n, 32, 32] and ``y`` uint8 [n]: the planes green, red - green, blue - green, then differences
  down and across, all modulo 256 (a coding that compresses well).
- else the folders of torchvision (``MNIST/raw``, ``FashionMNIST/raw``, ``cifar-10-batches-py``),
  which torchvision reads. It checks the checksums of the CIFAR-10 pickles before it opens them.
- ``femnist_writers.npz``, see `load_femnist`.

Images stay bytes. Public constants scale them (rule 2 of `dpacct.fl.data.dataset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data.dataset import Dataset, Examples, Scaling
from dpacct.fl.data.files import (
    Array,
    Folder,
    check_array,
    check_labels,
    find,
    invalid,
    read_arrays,
)
from dpacct.fl.tensors import from_array

TEST_WRITERS = ("training", "new")
_DIGITS_TESTED = 360
_LETTERS = 62
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

Bytes = NDArray[np.uint8]
# Images and their labels.
Part = tuple[Array, Array]


def load_digits() -> Dataset:
    """Read the 1797 handwritten digits of scikit-learn, as [1, 8, 8] images in 0..1.

    Nothing has to be downloaded for them. The last 360 images are the test set.
    """
    try:
        bundled = import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError:
        raise Unsupported(
            "the digits come with scikit-learn, which is not installed: pip install -e '.[fl]'"
        ) from None
    images, labels = np.asarray(bundled.images, np.uint8)[:, None], np.asarray(bundled.target)
    cut = len(labels) - _DIGITS_TESTED
    train, test = (images[:cut], labels[:cut]), (images[cut:], labels[cut:])
    return _dataset("digits", train, test, Scaling.divided_by(16))


def load_mnist(folder: Folder = None) -> Dataset:
    """Read MNIST: 60000 and 10000 images [1, 28, 28] of digits, standardized by known constants."""
    return _load_mnist("mnist", ["mnist.npz"], "MNIST", (0.1307, 0.3081), folder)


def load_fashion_mnist(folder: Folder = None) -> Dataset:
    """Read Fashion-MNIST: as MNIST, with ten kinds of clothing."""
    names = ["fashion_mnist.npz", "fashion-mnist.npz"]
    return _load_mnist("fashion-mnist", names, "FashionMNIST", (0.2860, 0.3530), folder)


def _load_mnist(
    name: str, archives: list[str], vision: str, constants: tuple[float, float], folder: Folder
) -> Dataset:
    place = find(folder, name, archives, f"{vision}/raw")
    if place.is_dir():
        parts = _from_torchvision(vision, place.parents[1])
    else:
        parts = _from_archive(place)
    (train, labels), (test, test_labels) = parts
    scaling = Scaling.standardized([constants[0]], [constants[1]])
    return _dataset(name, (train[:, None], labels), (test[:, None], test_labels), scaling)


def _from_archive(file: Path) -> list[Part]:
    names = (
        ["train_x", "train_y", "test_x", "test_y"],
        # Those of Keras.
        ["x_train", "y_train", "x_test", "y_test"],
    )
    try:
        keys, arrays = names[0], read_arrays(file, names[0])
    except InvalidParameter as error:
        try:
            keys, arrays = names[1], read_arrays(file, names[1])
        except InvalidParameter:
            raise error from None
    for at in (0, 2):
        check_array(file, keys[at], arrays[at], (None, 28, 28))
        check_labels(file, keys[at + 1], arrays[at + 1], len(arrays[at]), 10)
    return [(arrays[0], arrays[1]), (arrays[2], arrays[3])]


def load_cifar10(folder: Folder = None) -> Dataset:
    """Read CIFAR-10: 50000 and 10000 images [3, 32, 32], standardized by known constants."""
    scaling = Scaling.standardized(_CIFAR_MEAN, _CIFAR_STD)
    names = [*(f"cifar10_train_{k}.npz" for k in range(1, 6)), "cifar10_test.npz"]
    place = find(folder, "cifar10", names, "cifar-10-batches-py")
    if place.is_dir():
        parts = _from_torchvision("CIFAR10", place.parent)
        train, test = ((images.transpose(0, 3, 1, 2), labels) for images, labels in parts)
        return _dataset("cifar10", train, test, scaling)
    pieces: list[Part] = []
    for name in names:
        file = find(folder, "cifar10", [name])
        coded, labels = read_arrays(file, ["d", "y"])
        check_array(file, "d", coded, (3, None, 32, 32))
        check_labels(file, "y", labels, coded.shape[1], 10)
        pieces.append((decode_planes(coded), labels))
    images, labels = zip(*pieces[:-1], strict=True)
    train = np.concatenate(images), np.concatenate(labels)
    return _dataset("cifar10", train, pieces[-1], scaling)


def decode_planes(coded: Bytes) -> Bytes:
    """Return images [n, 3, 32, 32], red first, of coded planes [3, n, 32, 32]."""
    green, red, blue = coded.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], axis=1)


def load_femnist(folder: Folder = None, *, test_writers: str = "new") -> Dataset:
    """Read FEMNIST: handwritten characters [1, 28, 28], ink at 1, owned by their writers.

    The file is ``femnist_writers.npz``. It has ``x`` uint8 [n, 28, 28] (ink dark on 255), and ``y``
    uint8 [n] (62 classes: digits, capitals, small letters). ``writer`` is uint8 [n], and ``split``
    uint8 [n] (0 train, 1 test).

    Args:
        folder: with the file.
        test_writers: ``new`` takes test images of writers that are not clients. ``training``
            takes other images of the clients, as LEAF does. Then these are unprotected.
    """
    if test_writers not in TEST_WRITERS:
        rule = f"it is one of {', '.join(TEST_WRITERS)}"
        raise InvalidParameter("test_writers", test_writers, rule)
    file = find(folder, "femnist", ["femnist_writers.npz"])
    images, labels, writers, split = read_arrays(file, ["x", "y", "writer", "split"])
    check_array(file, "x", images, (None, 28, 28))
    check_array(file, "writer", writers, (len(images),))
    check_labels(file, "y", labels, len(images), _LETTERS)
    check_labels(file, "split", split, len(images), 2)
    training = split == 0
    known = np.isin(writers, writers[training])
    tested = (split == 1) & (known if test_writers == "training" else ~known)
    if not training.any() or not tested.any():
        raise invalid(file, f"it has no test images of {test_writers} writers")
    train, test = ((255 - images[rows][:, None], labels[rows]) for rows in (training, tested))
    owners, test_owners = (writers[rows].astype(np.int64) for rows in (training, tested))
    return Dataset(
        "femnist",
        _examples(*train, Scaling.divided_by(255)),
        _examples(*test, Scaling.divided_by(255)),
        _LETTERS,
        owners,
        test_owners,
        "public" if test_writers == "new" else "unprotected",
    )


def _from_torchvision(name: str, root: Path) -> list[Part]:
    """Return training and test images as torchvision reads them."""
    kind: Any = getattr(torchvision_datasets(), name)
    try:
        halves = [kind(str(root), train=train, download=False) for train in (True, False)]
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        raise invalid(root, f"torchvision cannot read {name} in it ({error})") from None
    return [(np.asarray(half.data), np.asarray(half.targets)) for half in halves]


def torchvision_datasets() -> Any:
    """Return the module `torchvision.datasets`."""
    try:
        return import_module("torchvision.datasets")
    except ModuleNotFoundError:
        rule = "which is not installed: pip install -e '.[data]'"
    except RuntimeError as error:
        rule = f"which does not fit the installed PyTorch ({error})"
    raise Unsupported(f"these files are read with torchvision, {rule}")


def _examples(images: Array, labels: Sequence[int] | Array, scaling: Scaling) -> Examples:
    return Examples(
        from_array(np.ascontiguousarray(images)), from_array(np.asarray(labels, np.int64)), scaling
    )


def _dataset(name: str, train: Part, test: Part, scaling: Scaling) -> Dataset:
    return Dataset(name, _examples(*train, scaling), _examples(*test, scaling), 10)
