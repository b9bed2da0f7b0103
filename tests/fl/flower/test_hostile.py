"""A client that may send anything: the run goes on without it, and a log has words of one line."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire
from hostile import in_time
from tests.fl.flower.test_strategy import FULL, app, cohorts, grid, server
from tests.strategies import FEWER

CONTROL = "\x1b]0;owned\x07\x9b31m\r\n2026 INFO a line of a log\u202e"
HOSTILE = 4
# What Flower carries in a record of settings, and as the name of a record.
TEXTS = st.one_of(st.text(), st.just(CONTROL), st.just("9" * 10_000), st.just(CONTROL * 1000))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()
VALUES = st.one_of(TEXTS, NUMBERS, st.binary(), st.lists(TEXTS), st.lists(st.floats()))
SIGN = ("protocol", "version", "round")
HELLO = ("protocol", "version", "client", "missing", "fails", "method", "clip_norm")
ARRAYS = st.builds(
    lambda kind, shape, stype, data: ArrayRecord({"answer": Array(kind, shape, stype, data)}),
    TEXTS,
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.sampled_from([wire.BYTES, "numpy.ndarray", CONTROL]),
    st.binary(),
)
RECORDS = st.dictionaries(
    st.sampled_from([wire.SIGN, wire.BYTES, "other"]),
    st.one_of(
        ARRAYS,
        st.dictionaries(st.sampled_from(SIGN), VALUES).map(ConfigRecord),
        st.just(MetricRecord({"a": 1.0})),
    ),
)


def each(*names: str) -> Callable[[Any], Any]:
    """Try every field once with digits, on which a pattern that backtracks takes days."""

    def with_examples(test: Any) -> Any:
        for name in names:
            test = example(entries={name: "9" * 1000})(test)
        return test

    return with_examples


FUZZ = settings(FEWER, suppress_health_check=[HealthCheck.function_scoped_fixture])


def counted(change, caplog) -> int:
    """How many contributions a round has in which one client's reply is another one."""
    caplog.clear()
    act = lambda client, _, replies: change(replies[0]) if client == HOSTILE else replies  # noqa: E731
    with in_time(), server(**FULL) as run:
        [count] = cohorts(run, grid(act))
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert all(len(record.getMessage()) < 5000 for record in caplog.records)
    return count


def put(reply: Message, content: RecordDict) -> list[Message]:
    found = Message(content, reply_to=reply)
    found.__dict__["_metadata"] = reply.metadata
    return [found]


@FUZZ
@each(*SIGN)
@given(entries=st.dictionaries(st.sampled_from(SIGN), VALUES, min_size=1))
def test_any_entry_of_an_answer(caplog, entries):
    def change(reply: Message) -> list[Message]:
        sign = ConfigRecord(dict(reply.content[wire.SIGN]) | entries)
        return put(reply, RecordDict({wire.SIGN: sign, wire.BYTES: reply.content[wire.BYTES]}))

    assert counted(change, caplog) in (5, 6)


@FUZZ
@given(records=RECORDS)
def test_any_records_in_the_place_of_an_answer(caplog, records):
    assert counted(lambda reply: put(reply, RecordDict(records)), caplog) == 5


@FUZZ
@given(update=ARRAYS)
def test_any_array_in_the_place_of_an_answer(caplog, update):
    def change(reply: Message) -> list[Message]:
        sign = reply.content[wire.SIGN]
        return put(reply, RecordDict({wire.SIGN: sign, wire.BYTES: update}))

    assert counted(change, caplog) == 5


@FUZZ
@given(reason=TEXTS)
def test_any_reason_of_an_error(caplog, reason):
    def failed(reply: Message) -> list[Message]:
        found = Message(Error(code=1, reason=reason), reply_to=reply)
        found.__dict__["_metadata"] = reply.metadata
        return [found]

    assert counted(failed, caplog) == 5


@FUZZ
@each(*HELLO)
@given(entries=st.dictionaries(st.sampled_from(HELLO), VALUES, min_size=1))
def test_any_word_of_a_client_that_comes(caplog, entries):
    """At the start and later: it is left out, or it is one of the clients."""

    class Talking:
        def __init__(self) -> None:
            self.app = app()

        def __call__(self, message, context):
            reply = self.app(message, context)
            if wire.BYTES in reply.content:
                return reply
            sign = ConfigRecord(dict(reply.content[wire.SIGN]) | entries)
            return Message(RecordDict({wire.SIGN: sign}), reply_to=message)

    network = grid()
    network.join(HOSTILE, Talking())
    caplog.clear()
    with in_time(), server(**FULL) as run:
        assert cohorts(run, network, min_clients=5)[0] in (5, 6)
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_client_that_does_not_fit_stops_no_run_that_can_do_without_it():
    wrong = app(clip_norm=9.0)
    network = grid()
    network.nodes[network.node_of(HOSTILE)] = (HOSTILE, wrong)
    with server(**FULL) as run:
        assert cohorts(run, network, min_clients=5) == [5]
    with server(**FULL) as run, pytest.raises(InvalidParameter, match="clip_norm"):
        cohorts(run, network)


def damaged(message: Message, draws: random.Random) -> Message:
    """The message, read again after bytes of one of its objects and all hashes have changed."""
    contents = {number: one.deflate() for number, one in get_all_nested_objects(message).items()}
    old, root = draws.choice(list(contents)), message.object_id
    data = bytearray(contents.pop(old))
    for _ in range(draws.randint(1, 4)):
        place = draws.randrange(len(data) + 1)
        data[place : place + draws.randint(0, 3)] = draws.randbytes(draws.randint(0, 3))
    new = hashlib.sha256(data).hexdigest()
    contents[new] = bytes(data)
    root = new if old == root else root
    while parents := [n for n, held in contents.items() if old.encode() in held and n != new]:
        held = contents.pop(parents[0]).replace(old.encode(), new.encode())
        old, new = parents[0], hashlib.sha256(held).hexdigest()
        contents[new] = held
        root = new if old == root else root
    return inflate_object_from_contents(root, contents)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_any_bytes_of_a_message(caplog, seed):
    """Flower raises errors of many kinds, in the middle of reading several messages."""
    network, draws = grid(), random.Random(seed)  # noqa: S311 - not for privacy
    pull, node = network.pull_messages, network.node_of(HOSTILE)

    def garbled(numbers):
        found = []
        for number in list(numbers):
            for reply in pull([number]):
                hostile = reply.metadata.src_node_id == node and wire.BYTES in reply.content
                found.append(damaged(reply, draws) if hostile else reply)
                if hostile:
                    found[-1].metadata.__dict__.update(reply.metadata.__dict__)
        return found

    network.pull_messages = garbled
    caplog.clear()
    with in_time(), server(**FULL) as run:
        [count] = cohorts(run, network)
    # Those that were read before the unreadable one are lost with it.
    assert 0 <= count <= 6
    assert torch.isfinite(next(run.model.parameters())).all()
    assert all(record.getMessage().isprintable() for record in caplog.records)
