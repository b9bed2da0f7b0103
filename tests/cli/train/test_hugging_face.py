"""Folders that Hugging Face `datasets` has saved, GLUE among them. Nothing is fetched.

`pip install --group text-test` brings the packages.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from dpacct.errors import InvalidParameter
from dpacct.fl.data import TableSchema, load, load_table
from dpacct_cli.train.job import read_data
from dpacct_cli.train.settings import RunSettings
from hostile import in_time

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "good", "bad", "film", "is", "a"]
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
    "post_processor": {
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
        "add_prefix_space": True,
    },
    "model": {
        "type": "WordLevel", "vocab": {w: n for n, w in enumerate(WORDS)}, "unk_token": "<unk>",
    },
}  # fmt: skip


def saved(folder: Path, *, tokenizer: bool = True, **parts: dict[str, list[Any]]) -> Path:
    """Write parts of a data set, or one without parts, as `datasets` saves them."""
    datasets = pytest.importorskip("datasets")
    if tokenizer:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    made = {name: datasets.Dataset.from_dict(columns) for name, columns in parts.items()}
    whole = made[""] if "" in made else datasets.DatasetDict(made)
    whole.save_to_disk(str(folder))
    return folder


def films(count: int, *, hidden: bool = False) -> dict[str, list[Any]]:
    texts = [f"a {'good' if n % 2 else 'bad'} film" for n in range(count)]
    return {"sentence": texts, "label": [-1 if hidden else n % 2 for n in range(count)]}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    # It says that its own progress bars and locks are left open.
    pytest.importorskip("datasets").disable_progress_bars()


pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_task_of_glue_is_tested_on_its_part_with_labels(tmp_path):
    pytest.importorskip("tokenizers")
    parts = {"train": films(12), "validation": films(6), "test": films(4, hidden=True)}
    saved(tmp_path / "glue-sst2", **parts)
    found = load("glue", tmp_path)
    assert (found.name, len(found.train), len(found.test)) == ("glue:sst2", 12, 6)
    assert (found.num_classes, found.test_data, found.label_set) == (2, "public", "public")
    # <s> a bad film </s>, then padding up to 128.
    assert found.train.inputs[0].tolist() == [0, 9, 6, 7, 2] + 123 * [1]
    typed = RunSettings("dp-fedavg", {"data": "glue:sst2", "data_dir": str(tmp_path)})
    assert (read_data(typed).train.inputs == found.train.inputs).all()


def test_a_pair_of_texts_has_two_separators_and_owners_are_clients(tmp_path):
    pytest.importorskip("tokenizers")
    rows = {"q": ["good film"] * 40, "a": ["is a film"] * 40, "y": [n % 3 for n in range(40)],
            "who": [f"u{n % 10}" for n in range(40)]}  # fmt: skip
    folder = saved(tmp_path / "own", **{"": rows})
    meaning = TableSchema(label="y", owner="who", columns=("q", "a"), length=10)
    found = load_table(folder, meaning)
    assert found.train.inputs[0].tolist() == [0, 5, 7, 2, 2, 8, 9, 7, 2, 1]
    assert (found.num_classes, found.test_data) == (3, "unprotected")
    assert len(found.train) + len(found.test) == 40
    assert not {*found.owners} & {*found.test_owners}


def test_numbers_and_images_are_inputs_without_a_tokenizer(tmp_path):
    image = pytest.importorskip("PIL.Image")
    numbers = {"x": [[n / 10, 1.0] for n in range(30)], "label": [n % 2 for n in range(30)]}
    folder = saved(tmp_path / "n", tokenizer=False, **{"": numbers})
    found = load_table(folder, TableSchema(columns=["x"]))
    assert found.input_shape == (2,)
    pictures = [image.fromarray(np.full((4, 4, 3), n, np.uint8)) for n in range(30)]
    folder = saved(tmp_path / "i", tokenizer=False,
                   train={"x": pictures, "label": [n % 2 for n in range(30)]},
                   test={"x": pictures[:4], "label": [0, 1, 0, 1]})  # fmt: skip
    found = load_table(folder, TableSchema(columns=["x"]))
    assert (found.input_shape, len(found.test)) == ((3, 4, 4), 4)
    assert float(found.train.batch(slice(None))[0].max()) == pytest.approx(29 / 255)


@pytest.mark.parametrize(
    ("meaning", "said"),
    [
        ({}, "--columns A.,B. names those to train on"),
        ({"columns": ["text"]}, "it has no column text. Its columns are sentence, label"),
        ({"columns": ["sentence"], "label": "y"}, "with the column y"),
        ({"columns": ["sentence"], "length": 4096}, "from 1 to 512"),
        ({"columns": ["sentence"] * 3}, "one text, or a pair"),
    ],
)
def test_columns_that_are_none_are_named(tmp_path, meaning, said):
    folder = saved(tmp_path / "d", train=films(4), test=films(4))
    with pytest.raises(InvalidParameter, match=said):
        load_table(folder, TableSchema(**meaning))


@pytest.mark.needs("posix")
def test_a_folder_of_somebody_else_reads_nothing_outside_it_and_ends(tmp_path):
    meaning = TableSchema(columns=["sentence"])
    for number, name in enumerate(("../secret.arrow", "/dev/zero", "link", "pipe")):
        folder = saved(tmp_path / f"d{number}", train=films(4), test=films(4))
        (folder / "train/link").symlink_to("/dev/zero")
        os.mkfifo(folder / "train/pipe")
        state = folder / "train/state.json"
        listed = json.loads(state.read_text("utf-8")) | {"_data_files": [{"filename": name}]}
        state.write_text(json.dumps(listed), encoding="utf-8")
        with in_time(), pytest.raises(InvalidParameter, match=r"lie in it|a pipe or a device"):
            load_table(folder, meaning)
    for content in ("[", "[]", "{}", json.dumps(TOKENIZER).replace("<pad>", "[PAD]")):
        folder = saved(tmp_path / "t", train=films(4), test=films(4))
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(InvalidParameter, match="a tokenizer of RoBERTa"):
            load_table(folder, meaning)
        shutil.rmtree(folder)
    folder = saved(tmp_path / "t", tokenizer=False, train=films(4), test=films(4))
    with pytest.raises(InvalidParameter, match=r"Copy tokenizer\.json of the model there"):
        load_table(folder, meaning)
    for named in ("a\0b", "x" * 5000, None):
        content = "{" if named is None else json.dumps({"_data_files": [{"filename": named}]})
        (folder / "train/state.json").write_text(content, encoding="utf-8")
        with pytest.raises(InvalidParameter, match=r"lists no files|cannot be read"):
            load_table(folder, meaning)


@pytest.mark.needs("posix")
@pytest.mark.parametrize("place", ["secret.png", "pipe", "https://evil.example/p.png"])
def test_an_image_that_lies_elsewhere_is_neither_opened_nor_fetched(tmp_path, monkeypatch, place):
    arrow, image = pytest.importorskip("pyarrow"), pytest.importorskip("PIL.Image")
    image.new("L", (4, 4)).save(tmp_path / "secret.png")
    os.mkfifo(tmp_path / "pipe")
    names = {"x": [image.new("L", (4, 4))] * 4, "label": [0, 1, 0, 1]}
    folder = saved(tmp_path / "i", tokenizer=False, **{"": names})
    [file] = folder.glob("*.arrow")
    elsewhere = [{"bytes": None, "path": place if ":" in place else str(tmp_path / place)}] * 4
    schema = arrow.ipc.open_stream(file.read_bytes()).schema
    rows = arrow.table({"x": elsewhere, "label": names["label"]}, schema=schema)
    with arrow.OSFile(str(file), "wb") as out, arrow.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("it fetches"))
    with in_time(), pytest.raises(InvalidParameter, match="its images lie in it as bytes"):
        load_table(folder, TableSchema(columns=["x"]))


@pytest.mark.needs("posix")
def test_what_a_folder_asks_of_its_reader_is_not_done(tmp_path):
    """A format is a call, parts may be named elsewhere, and a pattern of text may take forever."""
    pytest.importorskip("tokenizers")
    meaning = TableSchema(columns=["sentence"])
    folder = saved(tmp_path / "d", train=films(4), test=films(4))
    saved(tmp_path / "other", **{"": films(4)})
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test", "../other"]}', "utf-8")
    state = folder / "train/state.json"
    asked = {"_format_type": "custom", "_format_kwargs": {"transform": "os.system"}}
    state.write_text(json.dumps(json.loads(state.read_text("utf-8")) | asked), encoding="utf-8")
    (folder / "train/dataset_info.json").unlink()
    os.mkfifo(folder / "train/dataset_info.json")
    with in_time():
        assert len(load_table(folder, meaning).train) == 4
    pattern = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated",
               "invert": False}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"pre_tokenizer": pattern}))
    with pytest.raises(InvalidParameter, match="a tokenizer of RoBERTa"):
        load_table(folder, meaning)
    (folder / "test").rename(tmp_path / "test")
    (folder / "test").symlink_to(tmp_path / "test")
    with pytest.raises(InvalidParameter, match="its files lie in it, and test does not"):
        load_table(folder, meaning)


@pytest.mark.parametrize("model", ["roberta-tiny", "roberta-tiny-lora"])
@pytest.mark.usefixtures("one_thread", "folder")
def test_a_small_roberta_trains_privately_from_the_command_line(dpacct, model):
    for package in ("tokenizers", "transformers", "peft"):
        pytest.importorskip(package)
    saved(Path("data/glue-sst2"), train=films(24), validation=films(6))
    words = "--rounds 1 --clients 4 --q 0.5 --noise 1 --local-epochs 1 --batch-size 4"
    ran = dpacct(f"train dp-fedavg --data glue:sst2 --model {model} {words} --json")
    assert ran.code == 0, ran.err
    assert ran.json["private"]
    # With adapters, noise and messages are of few weights.
    assert (ran.json["bytes_per_client"] < 10**5) == model.endswith("lora")
    [row] = Path(ran.json["report"]).read_text("utf-8").splitlines()
    assert json.loads(row)["unprotected_dropped_updates"] == 0
