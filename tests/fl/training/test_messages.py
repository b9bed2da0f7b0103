"""Messages of a round as bytes: what was sent arrives, and nothing in a message is trusted."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.training.messages import PROTOCOL, Assignment, pack, reading, unpack
from dpacct.fl.training.tasks import Broadcast
from hostile import in_time

CPU = torch.device("cpu")
KINDS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def read(message, *, last=True):
    with reading(message):
        return unpack(message, CPU, last=last)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 1), (2, 0, 4), (2, 3, 4)], ids=str)
def test_tensors_arrive_as_they_were_sent(kind, shape):
    values = (torch.arange(24)[: torch.Size(shape).numel()].reshape(shape) % 3).to(kind)
    turned = values.T if values.ndim == 2 else values
    groups = {"a": {"x": values, "y": turned}, "b": {"x": torch.ones(1)}}
    facts, found, end = read(pack({"client": 3}, groups))
    assert facts["client"] == 3
    for name, sent in groups["a"].items():
        assert found["a"][name].dtype == kind
        assert torch.equal(found["a"][name], sent)
    assert float(found["b"]["x"]) == 1
    assert end == len(pack({"client": 3}, groups))


def test_numbers_that_are_not_finite_keep_their_bits():
    sent = torch.tensor([float("nan"), float("inf"), -0.0])
    _, found, _ = read(pack({}, {"a": {"x": sent}}))
    assert torch.equal(found["a"]["x"].view(torch.int32), sent.view(torch.int32))


def given(local=None, bound=None, **options) -> Assignment:
    anchor = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    bound = fl.Clip(0.7) if bound is None else bound
    sent = Broadcast(3, anchor, {"h": torch.ones(4)}, local or fl.SGD(), bound.clip_norm)
    parts = {
        "client": 1, "key": "k", "seed": 3, "memory": None, "broadcast": sent, "bound": bound,
        "kept": torch.tensor([0, 2]), "method": "DPFedAvg()", "contributions": 7,
    }  # fmt: skip
    return Assignment(**(parts | options))


@pytest.mark.parametrize("local", [fl.SGD(lr=0.2, momentum=0.5), fl.LocalAdam(epochs=2, beta1=0.5)])
@pytest.mark.parametrize(
    "bound",
    [fl.Clip(0.3), fl.PerLayerClip((0.1, 0.2)), fl.SmoothedNormalization(0.5), fl.AdaptiveClip(2)],
)
def test_an_assignment_arrives_as_it_was_sent(local, bound):
    sent = given(local, bound, memory={"memory": torch.arange(3.0)})
    found = Assignment.read(sent.of_client() + sent.of_round(), CPU)
    assert (found.client, found.key, found.seed, found.method) == (1, "k", 3, "DPFedAvg()")
    assert (found.bound, found.broadcast.local, found.contributions) == (bound, local, 7)
    assert found.broadcast.clip_norm == bound.clip_norm
    # The order of the server's parameters is that of the flat vector.
    assert list(found.broadcast.anchor) == ["weight", "bias"]
    assert torch.equal(found.broadcast.server_state["h"], torch.ones(4))
    assert torch.equal(found.kept, torch.tensor([0, 2]))
    assert torch.equal(found.memory["memory"], torch.arange(3.0))


@pytest.mark.parametrize(
    "kept",
    [
        torch.tensor([0, 8]), torch.tensor([-1, 2]), torch.tensor([2, 0]), torch.tensor([1, 1]),
        torch.tensor([[0, 1]]), torch.tensor(1), torch.tensor([0.0, 1.0]),
        torch.tensor([True, False]), torch.tensor([0, 2**62]),
    ],
    ids=str,
)  # fmt: skip
def test_a_mask_of_other_coordinates_is_refused(kept):
    """On a GPU an index out of range would end the process, after the client has trained."""
    sent = given(fl.SGD(), fl.Clip(0.3), kept=kept)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        Assignment.read(sent.of_client() + sent.of_round(), CPU)
    right = given(fl.SGD(), fl.Clip(0.3), kept=torch.arange(0))
    assert len(Assignment.read(right.of_client() + right.of_round(), CPU).kept) == 0


def headed(head: object, body: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + body


def said(*tensors, **facts) -> dict:
    return {"protocol": PROTOCOL, "tensors": list(tensors), **facts}


def one(kind="float32", shape=(21,), group="update", name="row"):
    return (group, name, kind, shape)


def stored(values) -> bytes:
    file = io.BytesIO()
    torch.save(values, file)
    return file.getvalue()


HOSTILE = {
    "nothing": b"",
    "three bytes": b"\x01\x00\x00",
    "a head longer than the message": b"\xff\xff\xff\xff{}",
    "no JSON": headed(b"{"),
    "no text": headed(b"\xff\xfe"),
    "brackets": headed(b"[" * 100_000),
    "a list": headed([1]),
    "a number of many digits": headed(b"9" * 10_000),
    "no tensors": headed({"protocol": PROTOCOL}),
    "tensors of another kind": headed(said() | {"tensors": 5}),
    "a tensor of three words": headed(said(("a", "b", "float32"))),
    "a kind that is none": headed(said(one("float31")), bytes(84)),
    "a kind of a pickle": headed(said(one("object")), bytes(84)),
    "more than memory": headed(said(one(shape=(2**50,)))),
    "more than an index": headed(said(one(shape=(10**40,)))),
    "nothing of much": headed(said(one(shape=(0, 2**40, 2**40)))),
    "less than nothing": headed(said(one(shape=(-1, -21))), bytes(84)),
    "a half": headed(said(one(shape=(10.5, 2))), bytes(84)),
    "a truth": headed(said(one(shape=(True,))), bytes(4)),
    "a shape in words": headed(said(one(shape="21")), bytes(84)),
    "shorter than it says": headed(said(one()), bytes(83)),
    "longer than it says": headed(said(one()), bytes(85)),
    "a name that is a list": headed(said(one(name=["row"])), bytes(84)),
    "a group that is a table": headed(said(one(group={})), bytes(84)),
    "a head of 16 MiB": headed(said(more="a" * 2**24)),
    "an archive of torch": stored({"row": torch.ones(21)}),
    "a pickle": b"\x80\x04.",
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_refused_in_a_sentence(message):
    with pytest.raises(InvalidParameter, match=r"cannot be read|protocol"):
        read(message)
    with pytest.raises(InvalidParameter):
        Assignment.read(message, CPU)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
FORMS = st.tuples(
    st.sampled_from(["update", "memory", ""]) | JSON,
    st.sampled_from(["row", "kept"]) | JSON,
    st.sampled_from(["float32", "bool", "int8"]) | JSON,
    st.lists(st.integers(-3, 10**20), max_size=40) | JSON,
)


@drawn(
    facts=st.dictionaries(st.sampled_from(["protocol", "client", "key", "x"]), JSON),
    tensors=st.lists(FORMS | JSON, max_size=3) | JSON,
    body=st.binary(max_size=100),
)
def test_any_facts_and_bytes_are_read_or_refused(facts, tensors, body):
    message = headed({"protocol": PROTOCOL, "tensors": tensors} | facts, body)
    with suppress(InvalidParameter), in_time():
        read(message)


def test_a_byte_is_a_truth_value_or_none():
    _, found, _ = read(headed(said(one("bool", (3,))), b"\x00\x01\xff"))
    assert found["update"]["row"].tolist() == [False, True, True]


def test_every_cut_of_a_message_is_refused():
    sent = given(memory={"memory": torch.ones(2)})
    whole = sent.of_client() + sent.of_round()
    for cut in {*range(0, len(whole), 97), len(sent.of_client()), len(whole) - 1}:
        with pytest.raises(InvalidParameter):
            Assignment.read(whole[:cut], CPU)
    with pytest.raises(InvalidParameter):
        Assignment.read(whole + b"\x00", CPU)


@pytest.mark.parametrize("value", [None, "text", 5, [b"a"], bytearray(b"abc"), torch.ones(3)])
def test_only_bytes_are_read(value):
    with pytest.raises(InvalidParameter, match="a message is bytes"):
        read(value)


def test_another_version_is_refused_by_name():
    whole = pack({}, {}).replace(b'"protocol": %d' % PROTOCOL, b'"protocol": 7')
    with pytest.raises(InvalidParameter, match="Install the same dpacct"):
        read(whole)


def test_settings_out_of_range_are_refused_when_they_are_read():
    sent = given()
    own, shared = sent.of_client(), sent.of_round()
    for old, new in ((b'"clip_norm": 0.7', b'"clip_norm": 0.0'), (b'"Clip"', b'"Clap"')):
        assert old in shared
        with pytest.raises(InvalidParameter):
            Assignment.read(own + shared.replace(old, new), CPU)
    assert replace(sent, client=2).of_client() != own
