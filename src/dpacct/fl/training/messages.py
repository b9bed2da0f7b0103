"""A round as one client gets it, and the client's answer, as bytes of any transport.

    message = head's length (4 bytes) + head (JSON: facts, types and shapes of tensors) + tensors

Rule 1: reading runs nothing, and makes room for no more than the message holds. A message that does
    not fit is an InvalidParameter, whoever sent it. Of an answer, the key and the forms of all
    tensors are those that were asked for before a tensor is made.
Rule 2: an answer holds the bounded update, the client's memory and nothing else of its data.
Rule 3: an answer returns the key of its assignment, which fits one client and one round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from hmac import compare_digest
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dpacct import __version__
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout, State
from dpacct.fl.local.sgd import LOCAL_TRAINING
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, Clip, PerLayerClip, SmoothedNormalization
from dpacct.fl.training.tasks import Broadcast

# Counts up with every change of the messages.
PROTOCOL = 8
_KINDS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
# Numbers of a tensor, and bytes of a head: far more than any model needs.
_MOST, _LONGEST_HEAD = 2**62, 2**24
_BOUNDS = {
    kind.__name__: kind for kind in (Clip, AdaptiveClip, PerLayerClip, SmoothedNormalization)
}
# The facts of an assignment that JSON carries as they are, of the round and of the client.
_OF_ROUND, _OF_CLIENT = ("contributions", "method"), ("client", "key", "seed")
# What reading a message of another kind raises.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """A round as one client gets it. Everything in it is public except the client's memory.

    Attributes:
        client: the receiver. key: comes back with the answer. memory: the client's, or None.
        broadcast, bound: of the round. kept: the mask's coordinates, None for all.
        method: by its settings, in words, to compare.
        contributions: the most that a round can hold, which fixes the grid of the sum.
        seed: of the client's batches and random numbers.
    """

    client: int
    key: str
    seed: int
    memory: State | None
    broadcast: Broadcast
    bound: Bound
    kept: Tensor | None
    method: str
    contributions: int

    def of_round(self) -> bytes:
        """Return the part of the message that all clients of the round receive."""
        sent, bound = self.broadcast, self.bound
        local = {f.name: getattr(sent.local, f.name) for f in fields(sent.local) if f.init}
        facts = {name: getattr(self, name) for name in _OF_ROUND} | {
            "round": sent.round,
            "training": type(sent.local).__name__,
            "local": local,
            "bound": {"kind": type(bound).__name__, **asdict(cast("Any", bound))},
        }
        mask = {} if self.kept is None else {"mask": {"kept": self.kept}}
        return pack(facts, {"anchor": sent.anchor, "server": sent.server_state} | mask)

    def of_client(self) -> bytes:
        """Return the part of the message for this client, which comes before the other part."""
        facts = {name: getattr(self, name) for name in _OF_CLIENT}
        return pack(facts, {} if self.memory is None else {"memory": self.memory})

    @classmethod
    def read(cls, message: bytes, device: torch.device) -> Assignment:
        """Return the assignment that the server sent, with its tensors on the device."""
        with reading(message):
            own, memories, end = unpack(message, device)
            facts, groups, _ = unpack(message, device, end, last=True)
            bound = cast("Any", _BOUNDS[facts["bound"].pop("kind")])(**facts["bound"])
            local = LOCAL_TRAINING[facts["training"]](**facts["local"])
            server = groups.get("server", {})
            sent = Broadcast(facts["round"], groups["anchor"], server, local, bound.clip_norm)
            plain = {n: own[n] for n in _OF_CLIENT} | {n: facts[n] for n in _OF_ROUND}
            kept, memory = groups.get("mask", {}).get("kept"), memories.get("memory")
            # On a GPU, an index out of range would break off all that runs there.
            if kept is not None and not is_mask(kept, Layout.of(sent.anchor).size):
                raise ValueError("no coordinates of the model")
            return cls(broadcast=sent, bound=bound, kept=kept, memory=memory, **plain)


class Answer(NamedTuple):
    """A client's answer to an assignment. Rule 2.

    Attributes:
        client, key: of the assignment. memory: the client's new one, or None.
        below: whether the update was within the clip norm, told for an adaptive bound alone.
        row: the update [k] behind mask and bound.
    """

    client: int
    key: str
    below: bool
    row: Tensor
    memory: State | None

    def pack(self) -> bytes:
        """Return the message."""
        memory = {} if self.memory is None else {"memory": self.memory}
        facts = {"client": self.client, "key": self.key, "below": self.below}
        return pack(facts, {"update": {"row": self.row}} | memory)

    @classmethod
    def read(
        cls,
        message: bytes,
        device: torch.device,
        key_of: Callable[[int], str],
        memory_of: Callable[[int], State | None],
        size: int,
    ) -> Answer:
        """Return the answer that a client sent, with its tensors on the device. Rules 1 and 3.

        It has the key of its client, an update of this size, and the tensors of its memory.
        """

        def check(facts: dict[str, Any]) -> None:
            client, key, below = (facts[name] for name in ("client", "key", "below"))
            if [type(client), type(key), type(below)] != [int, str, bool]:
                raise TypeError("facts of other kinds")
            if not compare_digest(key.encode(), key_of(client).encode()):
                rule = "its key belongs to another client or round"
                raise InvalidParameter("answer", f"of client {client}", rule)
            update = [["update", "row", [size]]]
            before = memory_of(client) or {}
            memories = [["memory", name, list(value.shape)] for name, value in before.items()]
            forms = sorted([group, name, shape] for group, name, _, shape in facts["tensors"])
            if forms not in (update, sorted(update + memories)):
                rule = "it holds the update that was asked for, and the client's memory"
                raise InvalidParameter("answer", f"of client {client} with other tensors", rule)

        with reading(message):
            facts, groups, _ = unpack(message, device, last=True, check=check)
            row, memory = groups["update"]["row"], groups.get("memory")
            return cls(facts["client"], facts["key"], facts["below"], row, memory)


def is_mask(kept: Tensor, size: int) -> bool:
    """Return whether these are coordinates below ``size``, ascending."""
    if kept.dtype != torch.int64 or kept.ndim != 1:
        return False
    return bool(((kept >= 0) & (kept < size)).all() & (kept.diff() > 0).all())


def words_of(method: Method) -> str:
    """Return a method with its settings, the same in every process."""
    words = repr(method) if is_dataclass(method) else type(method).__qualname__
    return f"{words} as printed" if method.as_printed else words


def check_sent(method: Method, bound: Bound) -> None:
    """Reject what clients cannot be sent. A subclass of a bound may bound by something else."""
    if method.as_printed:
        raise Unsupported("a method as printed needs raw norms, which no client sends")
    if type(bound) not in _BOUNDS.values():
        raise Unsupported(
            f"clients cannot be sent the bound {type(bound).__name__}. Take Clip, PerLayerClip, "
            "AdaptiveClip or SmoothedNormalization"
        )


def check_protocol(facts: Mapping[str, Any]) -> None:
    """Reject a message of another version."""
    if facts.get("protocol") != PROTOCOL:
        theirs = f"{facts.get('protocol')!r:.20} (dpacct {facts.get('version')!r:.20})"
        rule = f"dpacct {__version__} here has version {PROTOCOL} of the messages"
        hint = "Install the same dpacct on the server and on all clients."
        raise InvalidParameter("protocol", theirs, rule, hint)


@contextmanager
def reading(message: object) -> Generator[None]:
    """Turn the errors of a message that was not made here into one of its own. Rule 1."""
    if not isinstance(message, bytes):
        raise InvalidParameter("message", type(message).__name__, "a message is bytes")
    try:
        yield
    except InvalidParameter:
        raise
    except _UNREADABLE as error:
        rule = f"it cannot be read ({type(error).__name__})"
        raise InvalidParameter("message", f"{len(message)} bytes", rule) from None


def pack(facts: Mapping[str, Any], groups: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """Return a message with facts, and with tensors by group and name."""
    listed = [(group, name, v) for group, own in groups.items() for name, v in own.items()]
    forms = [(g, n, str(v.dtype).removeprefix("torch."), list(v.shape)) for g, n, v in listed]
    content = {"protocol": PROTOCOL, "version": __version__, **facts, "tensors": forms}
    head = json.dumps(content).encode()
    flat = (value.detach().cpu().reshape(-1).contiguous() for _, _, value in listed)
    parts = (value.view(torch.uint8).numpy().tobytes() for value in flat)
    return b"".join((len(head).to_bytes(4, "little"), head, *parts))


def unpack(
    message: bytes,
    device: torch.device,
    start: int = 0,
    *,
    last: bool = False,
    check: Callable[[dict[str, Any]], object] = lambda _: None,
) -> tuple[dict[str, Any], dict[str, State], int]:
    """Return facts, tensors by group and name on the device, and the end of this part. Rule 1.

    To be called inside of `reading`. The ``last`` part ends the message. ``check`` may reject the
    facts, whose key ``tensors`` lists group, name, type and shape of each, before these are made.
    """
    end = start + 4 + int.from_bytes(message[start : start + 4], "little")
    if end - start > _LONGEST_HEAD:
        raise ValueError("a head of no message")
    facts, groups = json.loads(message[start + 4 : end]), dict[str, State]()
    check_protocol(facts)
    check(facts)
    for group, name, kind, shape in facts.pop("tensors"):
        # Torch computes strides, so that even an empty tensor has a largest shape.
        whole = all(type(n) is int and n >= 0 for n in shape)
        if not whole or math.prod(max(n, 1) for n in shape) > _MOST:
            raise ValueError("no shape of a tensor")
        begin, end = end, end + math.prod(shape) * _KINDS[kind].itemsize
        if end > len(message):
            raise ValueError("shorter than it says")
        # In memory of its own. Bytes of truth values may hold other numbers than 0 and 1.
        read = torch.uint8 if kind == "bool" else _KINDS[kind]
        flat = torch.frombuffer(bytearray(message[begin:end]) or bytearray(8), dtype=read)
        values = flat[: math.prod(shape)].reshape(shape).to(device)
        groups.setdefault(group, {})[name] = values != 0 if kind == "bool" else values
    if last and end != len(message):
        raise ValueError("longer than it says")
    return facts, groups, end
