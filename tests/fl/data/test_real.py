"""The readers on whole data sets, where a folder holds them: sizes and known figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dpacct.errors import InvalidParameter
from dpacct.fl.data import Dataset, load

ROOT = Path(__file__).resolve().parents[3]


def read(name: str) -> Dataset:
    shared = Path(os.environ.get("DPACCT_SHARED") or ROOT.parent / "shared")
    folder = os.environ.get("DPACCT_DATA") or shared / "data"
    try:
        return load(name, folder)
    except InvalidParameter as refusal:
        if "Looked for" not in str(refusal):
            raise
        pytest.skip(f"{refusal}; DPACCT_DATA names another folder")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "mean", "std"), [("mnist", 0.13066, 0.30811), ("fashion-mnist", 0.28604, 0.35302)]
)
def test_mnist_and_fashion_mnist(name: str, mean: float, std: float) -> None:
    data = read(name)
    assert (len(data.train), len(data.test), data.input_shape) == (60000, 10000, (1, 28, 28))
    shares = torch.bincount(data.train.inputs.flatten(), minlength=256).double() / 60000 / 784
    bytes_ = torch.arange(256).double() / 255
    assert float(shares @ bytes_) == pytest.approx(mean, abs=6e-6)
    assert float(shares @ (bytes_ - mean).square()) ** 0.5 == pytest.approx(std, abs=6e-6)
    first = [5923, 6742, 5958] if name == "mnist" else [6000, 6000, 6000]
    assert torch.bincount(data.train.targets)[:3].tolist() == first


@pytest.mark.slow
def test_cifar10() -> None:
    data = read("cifar10")
    assert (len(data.train), len(data.test)) == (50000, 10000)
    # The known channel means of the training images.
    means = data.train.inputs.mean((0, 2, 3), dtype=torch.float64) / 255
    assert means.tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    means = data.test.inputs.mean((0, 2, 3), dtype=torch.float64) / 255
    assert means.tolist() == pytest.approx([0.49421428, 0.48513139, 0.45040909], abs=1e-8)
    assert torch.bincount(data.train.targets).tolist() == [5000] * 10


def test_femnist() -> None:
    data = read("femnist")
    assert data.owners is not None
    assert (len(data.train), len(data.test)) == (14561, 2493)
    assert sorted(set(data.owners.tolist())) == list(range(105))
    assert torch.bincount(data.train.targets)[:3].tolist() == [1025, 1125, 1032]
    # Ink is bright after reading, on a dark background.
    assert data.train.batch(slice(None))[0].mean().item() == pytest.approx(1 - 0.96202, abs=1e-5)


def test_shakespeare() -> None:
    data = read("shakespeare")
    assert data.owners is not None
    assert data.input_shape == (80,)
    assert len(set(data.owners.tolist())) > 900
    # Plays in ASCII: next to nothing lies outside the alphabet.
    assert (data.train.inputs == 0).double().mean() < 1e-4


def test_adult() -> None:
    data = read("adult")
    assert torch.bincount(data.train.targets).tolist() == [24720, 7841]
    assert torch.bincount(data.test.targets).tolist() == [12435, 3846]
    values = data.train.inputs
    assert (values.min(), values.max()) == (0.0, 1.0)
    # Every category that we know occurs, so none of them is misspelt.
    assert (values.max(0).values > 0).all()
