from __future__ import annotations

import csv
import json
import math

import pytest
import torch

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.report import TensorBoardWriter
from tests.fl.problems import cross_entropy, federation, linear, make_clients


@pytest.mark.parametrize("seed", [None, 1])
def test_json_lines_and_csv_hold_every_round(tmp_path, seed):
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.csv"
    writers = [fl.JSONLinesWriter(lines), fl.CSVWriter(table)]
    with federation(linear(), make_clients([5] * 3), callbacks=writers, seed=seed) as run:
        reports = list(run)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    # Infinities stay valid JSON.
    assert rows[-1]["epsilon_upper"] == ("inf" if seed else reports[-1].epsilon.upper)
    assert rows[-1]["private"] is (seed is None)
    with table.open(newline="") as stream:
        cells = list(csv.DictReader(stream))
    assert [int(row["round"]) for row in cells] == [1, 2, 3]
    assert float(cells[0]["noise_std"]) == reports[0].noise_std


def test_a_resumed_table_has_one_header(tmp_path):
    table, path = tmp_path / "a.csv", tmp_path / "run.pt"
    options = {"checkpoint": path, "callbacks": [fl.CSVWriter(table)]}
    with federation(linear(), make_clients([5] * 3), **options) as run:
        next(iter(run))
    with federation(linear(), make_clients([5] * 3), **options).resume() as run:
        run.run()
    assert table.read_text().count("noise_multiplier") == 1
    assert len(table.read_text().splitlines()) == 4


def test_tensorboard_is_needed_only_where_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(Unsupported, match="pip install tensorboard"):
        TensorBoardWriter(tmp_path)


def test_evaluation_counts_what_is_right_at_every_position():
    model = torch.nn.Identity()
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(1)))
    data = fl.ClientData(torch.eye(3), torch.tensor([0, 1, 1]))
    found = fl.evaluate(model.train(), cross_entropy, data, batch_size=2)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.loss == pytest.approx(float(cross_entropy(torch.eye(3), data.targets)))
    assert model.training
    outputs = torch.zeros(2, 4, 5)
    outputs[:, 1, :3] = 1
    sequences = fl.ClientData(outputs, torch.ones(2, 5, dtype=torch.int64))
    assert fl.evaluate(model, cross_entropy, sequences).accuracy == pytest.approx(0.6)


def test_settings_of_local_training_out_of_range_are_refused():
    for options in (
        {"lr": 0},
        {"lr": math.inf},
        {"steps": 0},
        {"epochs": 0},
        {"steps": 1, "epochs": 1},
        {"batch_size": 0},
        {"momentum": 1},
        {"weight_decay": -1},
        {"lr_decay": 0},
        {"lr_decay": 1.1},
        {"precision": "float16"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            fl.SGD(**options)
    assert fl.SGD(lr=0.5, lr_decay=0.5).learning_rate(3) == 0.125
    assert fl.SGD(epochs=2, batch_size=4).count_steps(9) == 6
    assert fl.SGD(steps=7).count_steps(0) == 0
