"""What a client may send in the place of an array: judged, and never loaded on trust."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire
from dpacct.fl.training.tasks import Broadcast

SIGN = {
    "protocol": wire.PROTOCOL, "version": "", "run": "a", "round": 1, "client": 0,
    "below": True,
}  # fmt: skip
ORDERS = ("C", "F")


def stored(save, *values) -> bytes:
    file = io.BytesIO()
    save(file, *values)
    return file.getvalue()


def headed(text: str, body: bytes = b"") -> bytes:
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + body


def said(shape: str, kind: str = "<i8") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


ARCHIVE = stored(np.savez, np.arange(21))
HOSTILE = {
    "empty": b"",
    "archive": ARCHIVE,
    "archive cut": ARCHIVE[:60],
    "archive of the future": ARCHIVE.replace(b"PK\x03\x04-\x00", b"PK\x03\x04\xff\xff"),
    "pickle": b"\x80\x04.",
    "objects": stored(np.save, np.array([{}], dtype=object)),
    "text": stored(np.save, np.array(["a"])),
    "dates": stored(np.save, np.array([1], dtype="M8[s]")),
    "more than memory": headed(said("(1099511627776,)")),
    "more than an index": headed(said("(10000000000000000000000000,)")),
    "less than nothing": headed(said("(-1,)")),
    "less than it says": headed(said("(21,)"), bytes(160)),
    "more than it says": headed(said("(21,)"), bytes(176)),
    "nothing of much": headed(said("(0, 999999999999999999, 999999999999999999)")),
    "no end": headed("{'descr': '<i8', 'shape': (21"),
    "brackets": headed("(" * 3000),
    "no size": headed(said("(1,)", "<i0")),
    "no kind": headed(said("(1,)", "<f3"), bytes(3)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_array_is_no_answer(data):
    array = Array(dtype="int64", shape=(21,), stype="numpy.ndarray", data=data)
    content = RecordDict({wire.SIGN: ConfigRecord(SIGN), wire.UPDATE: ArrayRecord({"row": array})})
    with pytest.raises(InvalidParameter, match="incomplete"):
        wire.unpack_answer(content)


@pytest.mark.parametrize("kind", ["<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 1), (2, 3, 4)], ids=str)
def test_what_numpy_and_torch_write_is_read(kind, shape):
    values = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(kind)
    whole = torch.from_numpy(values.copy())
    records = [ArrayRecord({"w": Array(np.asarray(values, order=order))}) for order in ORDERS]
    for record in (*records, wire.arrays_of({"w": whole})):
        found = wire.tensors_of(record)["w"]
        assert found.dtype == whole.dtype
        assert found.shape == whole.shape
        assert torch.equal(found, whole)


@pytest.mark.parametrize("local", [fl.SGD(lr=0.2, momentum=0.5), fl.LocalAdam(epochs=2, beta1=0.5)])
def test_local_training_arrives_as_it_was_sent(local):
    broadcast = Broadcast(3, {"w": torch.ones(2)}, {}, local, 1.0)
    given = wire.Assignment(
        run="a", client=1, counted=True, contributions=1, seed=3, memory=None,
        kept=None, bound=fl.Clip(1.0), broadcast=broadcast,
    )  # fmt: skip
    sent = wire.pack_assignment(given, wire.shared_records(broadcast, None))
    assert wire.unpack_assignment(sent).broadcast.local == local
