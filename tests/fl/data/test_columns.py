"""Examples from rows of torch data sets, mappings and images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dpacct.errors import InvalidParameter
from dpacct.fl.data import PartitionedClients, Scaling, from_columns
from dpacct.fl.data.partitions import iid


def test_a_data_set_of_torch_by_position():
    inputs, targets = torch.randn(5, 3), torch.arange(5)
    found = from_columns(TensorDataset(inputs, targets), 0, 1)
    assert torch.equal(found.inputs, inputs)
    assert torch.equal(found.targets, targets)
    clients = PartitionedClients(found, iid(5, 2))
    assert sum(len(client) for client in clients) == 5


def test_rows_with_names_and_numbers_of_any_kind():
    rows = [{"text": [1, 2], "label": k, "other": "x"} for k in range(3)]
    found = from_columns(rows, "text", "label")
    assert found.inputs.tolist() == [[1, 2]] * 3
    assert found.targets.dtype is torch.int64
    assert from_columns([{"x": 0.5, "y": np.int32(1)}], "x", "y").inputs.dtype is torch.float32


def test_images_of_pil_become_bytes_with_channels_first():
    image = pytest.importorskip("PIL.Image")
    values = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    rows = [{"image": image.fromarray(values), "label": 1}]
    found = from_columns(rows, "image", "label", scaling=Scaling.divided_by(255))
    assert torch.equal(found.inputs[0], torch.tensor(values.transpose(2, 0, 1)))
    assert float(found.batch(slice(None))[0].max()) == pytest.approx(23 / 255)
    gray = [{"image": image.fromarray(values[..., 0].copy()), "label": 1}]
    assert from_columns(gray, "image", "label").inputs.shape == (1, 1, 2, 4)


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    assert from_columns(rows, "x", "y").inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("rows", "inputs", "targets", "said"),
    [
        ([], "x", "y", "rows"),
        ([{"x": 1, "y": 1}], "z", "y", "one of x, y"),
        ([(1, 2)], 0, 2, "targets"),
        ([(1, 2)], "x", 1, "inputs"),
        ([{"x": [1], "y": 1}, {"x": [1, 2], "y": 1}], "x", "y", "row 1"),
        ([{"x": 1, "y": 0.5}], "x", "y", "whole numbers"),
        ([{"x": "word", "y": 0}], "x", "y", "numbers"),
    ],
)
def test_rows_that_are_no_examples(rows, inputs, targets, said):
    with pytest.raises(InvalidParameter, match=said):
        from_columns(rows, inputs, targets)
