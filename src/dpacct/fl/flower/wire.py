"""The records of Flower's messages: which client a node is, and parts of other messages as bytes.

Nothing in a record is trusted: `dpacct.fl.training.messages` reads the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.training.messages import PROTOCOL, check_protocol

# The record that marks a message as ours, and that of its bytes.
SIGN, BYTES = "dpacct", "dpacct.bytes"
# What a message asks for: which client a node is, or the update of a round.
HELLO, ROUND = "hello", "round"


def signed(message: Message) -> ConfigRecord:
    """Return the record that marks a message of this version, or reject the message."""
    if message.has_error():
        hint = "Is its ClientApp that of dpacct.fl.flower.client_app?"
        raise InvalidParameter("message", "an error", (message.error.reason or "")[-300:], hint)
    # Nothing is of its type on trust.
    content: object = message.content
    record = content.get(SIGN) if isinstance(content, RecordDict) else None
    if not isinstance(record, ConfigRecord):
        rule = "it is of no client_app of dpacct, and of no strategy"
        hint = "Use dpacct.fl.flower.PrivateStrategy on the server, client_app on clients."
        raise InvalidParameter("message", "without a sign", rule, hint)
    check_protocol(record)
    return record


def sign(**entries: Any) -> ConfigRecord:
    """Return the record that marks a message of this version, with these entries."""
    return ConfigRecord({"protocol": PROTOCOL, "version": __version__, **entries})


def message_of(facts: ConfigRecord, **parts: bytes) -> RecordDict:
    """Return the content of a message. Flower sends equal parts of several messages once."""
    arrays = {name: Array("uint8", (len(part),), BYTES, part) for name, part in parts.items()}
    return RecordDict({SIGN: facts, BYTES: ArrayRecord(arrays)})


def bytes_of(message: Message, *parts: str) -> bytes:
    """Return parts of a signed message, one behind the other."""
    signed(message)
    record: object = message.content.get(BYTES)
    pieces: list[bytes] = []
    for part in parts:
        array: object = record.get(part) if isinstance(record, ArrayRecord) else None
        data: object = array.data if isinstance(array, Array) else None
        if not isinstance(data, bytes):
            raise InvalidParameter("message", f"without {part!r}", "it holds the bytes of one")
        pieces.append(data)
    return b"".join(pieces)


def arrays_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors by name as a record of Flower."""
    arrays = {name: np.asarray(t.detach().cpu().numpy(), order="C") for name, t in tensors.items()}
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})
