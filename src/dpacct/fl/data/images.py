"""Read images: digits, FEMNIST, and the public data sets of torchvision (`IMAGES`).

Looked for in the data folder, and in a folder below it that is called like the data set:

- the folder or file of torchvision, which reads it. It opens pickles only if their checksums are
  the known ones.
- or ``NAME.npz`` with ``train_x`` uint8 [n, ...], ``train_y`` uint8 [n], ``test_x``, ``test_y``, or
  ``x_train``, ``y_train``, ``x_test``, ``y_test``. Images have the shape that torchvision gives.
- ``cifar10_train_1.npz`` ... ``cifar10_train_5.npz``, ``cifar10_test.npz``, each with ``d`` uint8
  [3, n, 32, 32] and ``y`` uint8 [n]: the planes green, red - green, blue - green, then differences
  down and across, all modulo 256 (a coding that compresses well).
- ``femnist_writers.npz``, see `load_femnist`.

Images stay bytes. Public constants scale them (rule 2 of `dpacct.fl.data.dataset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data.dataset import Dataset, Examples, Scaling
from dpacct.fl.data.files import (
    Array,
    Folder,
    check_array,
    check_labels,
    find,
    invalid,
    read_archive,
    read_arrays,
)
from dpacct.fl.tensors import from_array
from dpacct.packages import install_command

TEST_WRITERS = ("training", "new")
_DIGITS_TESTED = 360
_LETTERS = 62
# Splits of EMNIST, and the number of their classes.
EMNIST_SPLITS = {
    "balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10,
}  # fmt: skip
_CIFAR10_PLANES = [*(f"cifar10_train_{k}.npz" for k in range(1, 6)), "cifar10_test.npz"]
_ARCHIVE_KEYS = (
    ("train_x", "train_y", "test_x", "test_y"),
    ("x_train", "y_train", "x_test", "y_test"),
)

Bytes = NDArray[np.uint8]
# Images and their labels.
Part = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class PublicImages:
    """A public data set of images.

    Attributes:
        kind: its class in `torchvision.datasets`. place: torchvision's files in the data folder.
        classes: their number. side: height and width.
        mean, std: known constants of its training images, for each channel.
    """

    kind: str
    place: str
    classes: int
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGES = {
    "mnist": PublicImages("MNIST", "MNIST/raw", 10, 28, (0.1307,), (0.3081,)),
    "fashion-mnist": PublicImages("FashionMNIST", "FashionMNIST/raw", 10, 28, (0.2860,), (0.3530,)),
    "emnist": PublicImages("EMNIST", "EMNIST/raw", 47, 28, (0.1751,), (0.3332,)),
    "cifar10": PublicImages(
        "CIFAR10", "cifar-10-batches-py", 10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": PublicImages(
        "CIFAR100", "cifar-100-python", 100, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "svhn": PublicImages(
        "SVHN", "train_32x32.mat", 10, 32, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    ),
}


def load_digits() -> Dataset:
    """Read the 1797 handwritten digits of scikit-learn, as [1, 8, 8] images in 0..1.

    Nothing has to be downloaded for them. The last 360 images are the test set.
    """
    try:
        bundled = import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError:
        raise Unsupported(
            f"the digits come with scikit-learn, which is not installed: {install_command('fl')}"
        ) from None
    images, labels = np.asarray(bundled.images, np.uint8)[:, None], np.asarray(bundled.target)
    cut = len(labels) - _DIGITS_TESTED
    train, test = (images[:cut], labels[:cut]), (images[cut:], labels[cut:])
    return _dataset("digits", train, test, Scaling.divided_by(16), 10)


def image_files(name: str) -> list[str]:
    """Return the files of a data set of `IMAGES`, of which any one serves."""
    archives = [f"{name.replace('-', '_')}.npz", f"{name}.npz"]
    coded = _CIFAR10_PLANES[:1] if name == "cifar10" else []
    return [*dict.fromkeys(archives), *coded, IMAGES[name].place]


def load_images(
    name: str, folder: Folder = None, *, split: str = "balanced", extra: bool = False
) -> Dataset:
    """Read a data set of `IMAGES`, from an archive or by torchvision, and check its arrays.

    Args:
        name: of the data set. folder: with its files.
        split: of EMNIST, one of `EMNIST_SPLITS`.
        extra: with the 531,131 extra training images of SVHN, in torchvision's files.
    """
    validate.one_of("split", split, "a split", EMNIST_SPLITS)
    if validate.flag("extra", extra) and name != "svhn":
        raise InvalidParameter("extra", extra, f"SVHN has extra images, and {name} has none")
    known = IMAGES[name]
    file = find(folder, name, image_files(name))
    if file.name in _CIFAR10_PLANES:
        parts = _from_planes(folder)
    elif file.suffix == ".npz":
        if extra:
            raise invalid(file, f"the extra images are torchvision's, beside {known.place}")
        parts = _from_archive(file)
    else:
        parts = _from_torchvision(known, file, split)
        if extra:
            own, more = parts[0], _from_torchvision(known, file, split, ("extra",))[0]
            parts[0] = np.concatenate([own[0], more[0]]), np.concatenate([own[1], more[1]])
    count = EMNIST_SPLITS[split] if name == "emnist" else known.classes
    channels = len(known.mean)
    for part, (images, labels) in zip(("train", "test"), parts, strict=True):
        check_array(file, f"{part}_x", images, (None, channels, known.side, known.side))
        check_labels(file, f"{part}_y", labels, len(images), count)
    train, test = parts
    return _dataset(name, train, test, Scaling.standardized(known.mean, known.std), count)


def _from_archive(file: Path) -> list[Part]:
    arrays = read_archive(file)
    # The second form is that of Keras.
    keys = next((keys for keys in _ARCHIVE_KEYS if arrays.keys() >= set(keys)), _ARCHIVE_KEYS[0])
    held = read_arrays(file, keys)
    return [(_channels_first(held[at]), held[at + 1]) for at in (0, 2)]


def _from_planes(folder: Folder) -> list[Part]:
    pieces: list[Part] = []
    for name in _CIFAR10_PLANES:
        file = find(folder, "cifar10", [name])
        coded, labels = read_arrays(file, ["d", "y"])
        check_array(file, "d", coded, (3, None, 32, 32))
        check_labels(file, "y", labels, coded.shape[1], 10)
        pieces.append((decode_planes(coded), labels))
    images, labels = zip(*pieces[:-1], strict=True)
    return [(np.concatenate(images), np.concatenate(labels)), pieces[-1]]


def decode_planes(coded: Bytes) -> Bytes:
    """Return images [n, 3, 32, 32], red first, of coded planes [3, n, 32, 32]."""
    green, red, blue = coded.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], axis=1)


def _from_torchvision(
    known: PublicImages, file: Path, split: str, halves: Sequence[str] = ("train", "test")
) -> list[Part]:
    kind: Any = getattr(torchvision_part("datasets", "these files are read with"), known.kind)
    root = file.parents[known.place.count("/")]
    parts: list[Part] = []
    for half in halves:
        chosen: dict[str, Any] = {"train": half == "train"}
        if known.kind == "SVHN":
            chosen = {"split": half}
        elif known.kind == "EMNIST":
            chosen["split"] = split
        try:
            held: Any = kind(str(root), **chosen, download=False)
        except (RuntimeError, OSError, ValueError, AssertionError) as error:
            raise invalid(root, f"torchvision cannot read {known.kind} in it ({error})") from None
        images = np.asarray(held.data)
        labels = np.asarray(held.labels if known.kind == "SVHN" else held.targets)
        if known.kind == "EMNIST":
            # Its files hold columns where others hold rows, and letters are counted from 1.
            images = images.transpose(0, 2, 1)
            labels = labels - (split == "letters")
        parts.append((_channels_first(images), labels.astype(np.uint8)))
    return parts


def _channels_first(images: Array) -> Array:
    """Return images [n, channels, height, width] of [n, height, width] or with channels last."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] == 3:
        return images.transpose(0, 3, 1, 2)
    return images


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
    validate.one_of("test_writers", test_writers, "it", TEST_WRITERS)
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


def torchvision_part(part: str, what: str) -> Any:
    """Return a module of torchvision, which ``what`` needs."""
    try:
        return import_module(f"torchvision.{part}")
    except ModuleNotFoundError:
        rule = f"which is not installed: {install_command('data')}"
    except RuntimeError as error:
        rule = f"which does not fit the installed PyTorch ({error})"
    raise Unsupported(f"{what} torchvision, {rule}")


def _examples(images: Array, labels: Sequence[int] | Array, scaling: Scaling) -> Examples:
    return Examples(
        from_array(np.ascontiguousarray(images)), from_array(np.asarray(labels, np.int64)), scaling
    )


def _dataset(name: str, train: Part, test: Part, scaling: Scaling, classes: int) -> Dataset:
    return Dataset(name, _examples(*train, scaling), _examples(*test, scaling), classes)
