"""Handwritten digits that come with scikit-learn: 1797 images of 8 x 8 pixels, ten classes.

The data set that training falls back on, since nothing has to be downloaded for it. The last 360
images, in scikit-learn's order, are the test set.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np

from dpacct.errors import Unsupported
from dpacct.fl.data.dataset import Dataset, Examples, Scaling, tensor_of

NUM_TEST = 360
LARGEST = 16


def load_digits() -> Dataset:
    """The digits, as [1, 8, 8] images in 0..1.

    Raises:
        Unsupported: scikit-learn is not installed.
    """
    try:
        bundled = import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError:
        raise Unsupported(
            "the digits come with scikit-learn, which is not installed: pip install 'dpacct[fl]'"
        ) from None
    images = tensor_of(np.asarray(bundled.images, np.uint8)).unsqueeze(1)
    labels = tensor_of(np.asarray(bundled.target, np.int64))
    scaling = Scaling.divided_by(LARGEST)
    return Dataset(
        name="digits",
        train=Examples(images[:-NUM_TEST], labels[:-NUM_TEST], scaling),
        test=Examples(images[-NUM_TEST:], labels[-NUM_TEST:], scaling),
        num_classes=10,
    )
