"""FEMNIST: handwritten digits and letters, grouped by the person who wrote them.

Looked for: ``femnist_writers.npz`` with ``x`` uint8 [n, 28, 28] (ink dark on 255), ``y`` uint8 [n]
(62 classes: digits, capitals, small letters), ``writer`` uint8 [n] and ``split`` uint8 [n]
(0 train, 1 test). Writers without training images are people whom no client stands for: the test
set, which is public. Test images of the training writers are other images of protected people.
"""

from __future__ import annotations

import numpy as np

from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Dataset, Examples, Scaling, tensor_of
from dpacct.fl.data.files import (
    check_array,
    check_labels,
    first_existing,
    folder_of,
    invalid,
    missing,
    read_arrays,
)
from dpacct.fl.data.mnist import Folder

CLASSES = 62
TEST_WRITERS = ("training", "new")
_FILE = "femnist_writers.npz"


def load_femnist(folder: Folder = None, *, test_writers: str = "new") -> Dataset:
    """FEMNIST as [1, 28, 28] images with ink at 1 on a background of 0; owners are the writers.

    Args:
        folder: where the file lies.
        test_writers: whose test images: of ``new`` writers, or (unprotected) of the ``training``
            writers, as LEAF splits the data.

    Raises:
        InvalidParameter: the file is missing or damaged, or another word for the writers.
    """
    if test_writers not in TEST_WRITERS:
        raise InvalidParameter(
            "test_writers", test_writers, f"it is one of {', '.join(TEST_WRITERS)}"
        )
    root = folder_of(folder)
    file = first_existing(root, [_FILE]) or first_existing(root / "femnist", [_FILE])
    if file is None:
        raise missing(root, "femnist", [_FILE])
    images, labels, writers, split = read_arrays(file, ["x", "y", "writer", "split"])
    check_array(file, "x", images, (None, 28, 28))
    for key, array in (("y", labels), ("writer", writers), ("split", split)):
        check_array(file, key, array, (len(images),))
    check_labels(file, "y", labels, len(images), CLASSES)
    check_labels(file, "split", split, len(images), 2)
    training = split == 0
    known = np.isin(writers, writers[training])
    tested = (split == 1) & (known if test_writers == "training" else ~known)
    if not training.any() or not tested.any():
        raise invalid(file, f"it has no test images of {test_writers} writers")
    images = 255 - images
    scaling = Scaling.divided_by(255.0)
    train, test = (
        Examples(
            tensor_of(images[rows]).unsqueeze(1),
            tensor_of(labels[rows].astype(np.int64)),
            scaling,
        )
        for rows in (training, tested)
    )
    owners, test_owners = (writers[rows].astype(np.int64) for rows in (training, tested))
    protection = "public" if test_writers == "new" else "unprotected"
    return Dataset("femnist", train, test, CLASSES, owners, test_owners, protection)
