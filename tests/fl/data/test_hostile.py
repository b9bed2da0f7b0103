"""Data files that somebody else made: none hangs, and none takes far more memory than its bytes."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from dpacct.errors import InvalidParameter
from dpacct.fl.data import load_shakespeare, table
from dpacct.fl.data.files import read_archive
from dpacct.fl.data.hugging_face import tokenizer_of
from hostile import in_time

# Bytes of memory that a file of some kilobytes may not take.
MUCH = 2**26


def header(shape: tuple[int, ...], kind: str) -> bytes:
    """An array's beginning, which may state any shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def packed(path: Path, **entries: bytes) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)


def zeros(path: Path) -> None:
    packed(path, inputs=header((MUCH, 1), "|u1") + bytes(MUCH))


def many(path: Path) -> None:
    packed(path, **{f"a{n}": header((2**22,), "|u1") + bytes(2**22) for n in range(16)})


def claimed(path: Path) -> None:
    packed(path, inputs=header((6 * 10**9, 1), "|u1") + bytes(100))


def endless_rows(path: Path) -> None:
    """Rows without a column take no byte, whatever their number."""
    packed(path, inputs=header((10**15, 0), "|u1"), label=header((10**15,), "<U0"))


def objects(path: Path) -> None:
    packed(path, inputs=header((1, 1), "|O") + b"cos\nsystem\n(S'true'\ntR.")


def encrypted(path: Path) -> None:
    packed(path, inputs=header((1, 1), "|u1") + b"a")
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)


ARCHIVES = (zeros, many, claimed, endless_rows, objects, encrypted)


@pytest.mark.parametrize("make", ARCHIVES)
def test_an_archive_of_somebody_else_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "a.npz")
    for read in (table.load_table, read_archive):
        with in_time(), pytest.raises(InvalidParameter) as refused:
            read(tmp_path / "a.npz")
        assert str(refused.value).isprintable()


def test_a_table_with_one_long_cell_is_refused(tmp_path: Path) -> None:
    """The cells of a column get the place of its longest one: here 80 GB."""
    pytest.importorskip("pandas")
    rows = "".join(f"{number},{'ab'[number % 2]}\n" for number in range(20_000))
    (tmp_path / "a.csv").write_text(f"x,label\n{rows}1,{'b' * 1_000_000}\n", encoding="utf-8")
    with in_time(), pytest.raises(InvalidParameter, match="and would take 80,"):
        table.load_table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(f"x,label\n{rows}1,{'b' * 100}\n", encoding="utf-8")
    assert len(table.load_table(tmp_path / "b.csv").train) > 10_000


@pytest.mark.needs("posix")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    for name in ("a.csv", "a.npz", "shakespeare_roles.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "b.csv").symlink_to("/dev/zero")
    with in_time(), pytest.raises(InvalidParameter, match="a pipe or a device"):
        load_shakespeare(tmp_path)
    (tmp_path / "images/class").mkdir(parents=True)
    os.mkfifo(tmp_path / "images/class/a.png")
    for file in ("a.csv", "b.csv", "a.npz", "images"):
        with in_time(), pytest.raises(InvalidParameter, match="a pipe or a device"):
            table.load_table(tmp_path / file)


def test_a_picture_of_more_than_memory_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    for size in (8_000, 60_000):
        place = tmp_path / f"{size}" / "class" / "a.png"
        place.parent.mkdir(parents=True)
        place.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(bytes(1000)))
            + chunk(b"IEND", b"")
        )
        with in_time(), pytest.raises(InvalidParameter, match=r"would take 192,|not an image"):
            table.load_table(tmp_path / f"{size}")


def test_a_picture_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives PostScript to a program, whatever the name of the file is."""
    pytest.importorskip("PIL")
    place = tmp_path / "class" / "a.png"
    place.parent.mkdir()
    place.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program ran"))
    with pytest.raises(InvalidParameter, match="not an image"):
        table.load_table(tmp_path)


WORDS = ["<s>", "<pad>", "</s>", "<unk>", "g", "o", "go", "<mask>"]
# As the file of roberta-base, which names no kind of its model.
TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
    "added_tokens": [{"id": 7, "content": "<mask>", "lstrip": True, "special": True}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
    "model": {"unk_token": None, "vocab": {w: n for n, w in enumerate(WORDS)}, "merges": ["g o"]},
}  # fmt: skip
REPEATED = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 10**5,
}  # fmt: skip
MODEL = TOKENIZER["model"]


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [REPEATED] * 9}},
        {"normalizer": 5},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}}},
        {"pre_tokenizer": None},
        {"post_processor": TEMPLATE},
        {"post_processor": {"type": "Nope"}},
        {"added_tokens": None},
        {"added_tokens": [{"id": 9, "content": "new", "lstrip": False}]},
        {"added_tokens": [{"id": 0, "content": [], "lstrip": False}]},
        {"model": MODEL | {"type": "Unigram"}},
        {"model": MODEL | {"merges": ["g x"]}},
        {"model": MODEL | {"merges": ["g o o"]}},
        {"model": MODEL | {"merges": [["g", 5]]}},
        {"model": MODEL | {"vocab": MODEL["vocab"] | {"go": 2**40}}},
        {"model": MODEL | {"vocab": MODEL["vocab"] | {"<pad>": 0, "<s>": 1}}},
        {"model": MODEL | {"vocab": MODEL["vocab"] | {"go": float("nan")}}},
        {"model": MODEL | {"vocab": MODEL["vocab"] | {"\ud800": 8}}},
        {"model": MODEL | {"vocab": [["<pad>", 0]]}},
        {"model": None},
    ],
)
def test_a_tokenizer_of_somebody_else_is_named_with_the_way_out(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(TOKENIZER | changes), encoding="utf-8")
    with (
        in_time(),
        pytest.raises(InvalidParameter, match=r"Copy tokenizer\.json of RoBERTa") as said,
    ):
        tokenizer_of(file)
    assert said.value.value == str(file)


def test_a_tokenizer_keeps_its_known_parts_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    cut = {"truncation": {"max_length": 1}, "padding": {"pad_to_multiple_of": 2**40}, "more": [1]}
    file.write_text(json.dumps(TOKENIZER | cut | {"version": "9"}), encoding="utf-8")
    made = json.loads(tokenizer_of(file))
    assert (made["version"], made["truncation"], made["padding"]) == ("1.0", None, None)
    assert made["model"]["vocab"] == MODEL["vocab"]
    assert (made["model"]["type"], made["model"]["merges"]) == ("BPE", [["g", "o"]])
    [added] = made["added_tokens"]
    assert (added["content"], added["id"], added["lstrip"]) == ("<mask>", 7, True)
    assert made.keys() <= TOKENIZER.keys()
