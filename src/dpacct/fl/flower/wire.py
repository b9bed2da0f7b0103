"""The messages between `PrivateStrategy` and its clients: a round's assignment, and the answer.

Rule 1: Types, shapes and names of an answer are checked before its values are used. A message that
    does not fit is no answer.
Rule 2: An answer holds the bounded update, the client's memory and nothing else of its data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from dpacct import __version__
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import State
from dpacct.fl.local.sgd import LOCAL_TRAINING
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, Clip, PerLayerClip, SmoothedNormalization
from dpacct.fl.tensors import from_array
from dpacct.fl.training.tasks import Broadcast

# Counts up with every change of the messages.
PROTOCOL = 7
# The record that marks a message as ours, and the records of its tensors.
SIGN = "dpacct"
ARRAYS = "arrays"
SERVER_STATE = "dpacct.server_state"
MEMORY = "dpacct.memory"
MASK = "dpacct.mask"
UPDATE = "dpacct.update"
# What a message asks for: which client a node is, or the update of a round.
HELLO, ROUND = "hello", "round"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """A round as one client gets it. Everything in it is public except the client's memory.

    Attributes:
        run: tag of the server's process. client: the receiver. memory: the client's, or None.
        broadcast, bound: of the round. kept: the mask's coordinates, None for all.
        counted: whether the norm is adaptive, and the answer has whether the update was below it.
        contributions: the most that a round can hold, which fixes the grid of the sum.
        seed: of the client's batches.
    """

    run: str
    client: int
    broadcast: Broadcast
    memory: State | None
    bound: Bound
    counted: bool
    kept: Tensor | None
    contributions: int
    seed: int


# The parts of an assignment that JSON carries as they are.
_PLAIN = ("run", "client", "counted", "contributions", "seed")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """A client's answer to an assignment.

    Attributes:
        run, number, client: of the assignment.
        row: the bounded update [k]. below: as in `Contributions`. memory: the new one, or None.
    """

    run: str
    number: int
    client: int
    row: Tensor
    below: bool
    memory: State | None


def sign(**entries: Any) -> ConfigRecord:
    """Return the record that marks a message of this version, with these entries."""
    return ConfigRecord({"protocol": PROTOCOL, "version": __version__, **entries})


def check_protocol(record: ConfigRecord) -> None:
    """Check that a message is of this version."""
    if record.get("protocol") != PROTOCOL:
        found = f"{record.get('protocol')} (dpacct {record.get('version') or 'unknown'})"
        rule = f"dpacct {__version__} here has version {PROTOCOL} of the messages"
        hint = "Install the same dpacct on the server and on all clients."
        raise InvalidParameter("protocol", found, rule, hint)


def shared_records(broadcast: Broadcast, kept: Tensor | None) -> dict[str, ArrayRecord]:
    """Return the records that are the same in all messages of a round."""
    records = {ARRAYS: arrays_of(broadcast.anchor)}
    if broadcast.server_state:
        records[SERVER_STATE] = arrays_of(broadcast.server_state)
    if kept is not None:
        records[MASK] = arrays_of({"kept": kept})
    return records


def pack_assignment(given: Assignment, shared: Mapping[str, ArrayRecord]) -> RecordDict:
    """Return the message of a round to one client. ``shared`` is from `shared_records`."""
    sent = given.broadcast
    settings = {name: getattr(given, name) for name in _PLAIN}
    local = {f.name: getattr(sent.local, f.name) for f in fields(sent.local) if f.init}
    settings |= {"training": type(sent.local).__name__, "local": local}
    settings |= {"bound": bound_to_json(given.bound)}
    words = json.dumps(settings | {"names": list(sent.anchor), "round": sent.round})
    content = RecordDict({SIGN: sign(ask=ROUND, round=sent.round, settings=words), **shared})
    if given.memory is not None:
        content[MEMORY] = arrays_of(given.memory)
    return content


def unpack_assignment(content: RecordDict) -> Assignment:
    """Read the message of `pack_assignment`, by the same version of dpacct."""
    settings = json.loads(cast("str", content.config_records[SIGN]["settings"]))
    records = content.array_records
    params, memory = tensors_of(records[ARRAYS]), records.get(MEMORY)
    bound = _bound_from_json(settings["bound"])
    return Assignment(
        broadcast=Broadcast(
            settings["round"],
            # In the server's order, on which the flat vector rests.
            {name: params[name] for name in settings["names"]},
            tensors_of(records.get(SERVER_STATE, ArrayRecord())),
            LOCAL_TRAINING[settings["training"]](**settings["local"]),
            bound.clip_norm,
        ),
        memory=None if memory is None else tensors_of(memory),
        kept=tensors_of(records[MASK])["kept"] if MASK in records else None,
        bound=bound,
        **{name: settings[name] for name in _PLAIN},
    )


def pack_answer(answer: Answer) -> RecordDict:
    """Return the reply to an assignment."""
    facts = sign(run=answer.run, round=answer.number, client=answer.client, below=answer.below)
    content = RecordDict({SIGN: facts, UPDATE: arrays_of({"row": answer.row})})
    if answer.memory is not None:
        content[MEMORY] = arrays_of(answer.memory)
    return content


def unpack_answer(content: RecordDict) -> Answer:
    """Read the message of `pack_answer`, or reject anything else that a client may send. Rule 1."""
    facts = content.config_records.get(SIGN)
    if facts is None:
        rule = "an answer is made by the mod of this package, the first of a ClientApp's mods"
        raise InvalidParameter("answer", "without a sign of the mod", rule)
    check_protocol(facts)
    records = content.array_records
    try:
        row, memory = tensors_of(records[UPDATE])["row"], records.get(MEMORY)
        remembered = None if memory is None else tensors_of(memory)
        entries: list[Any] = [facts[n] for n in ("run", "round", "client", "below")]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidParameter("answer", "incomplete", f"it holds an update ({error})") from None
    if list(map(type, entries)) != [str, int, int, bool]:
        rule = "round and client are whole numbers"
        raise InvalidParameter("answer", f"{entries!r:.100}", rule)
    if row.ndim != 1 or not row.is_floating_point():
        rule = "an update is one vector of floating-point numbers"
        raise InvalidParameter("answer", f"{row.dtype} {tuple(row.shape)}", rule)
    run, number, client, below = entries
    return Answer(run, number, client, row, below, remembered)


def arrays_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors by name as a record of Flower."""
    return ArrayRecord(
        {
            name: Array(np.asarray(t.detach().cpu().numpy(), order="C"))
            for name, t in tensors.items()
        }
    )


# The header that numpy itself writes for an array of numbers. numpy's reader accepts more: it reads
# archives, makes room for as many numbers as a header claims, and parses the header as Python.
_HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
    rb"\{'descr': '([<|][?biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},? ?){0,32})\), \} *\n",
    re.DOTALL,
)


def tensors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """Return tensors by name, in memory of their own. Nothing in a record is trusted.

    Raises:
        TypeError: a value is no array of numbers.
        ValueError: its length contradicts its header.
    """
    tensors: dict[str, Tensor] = {}
    for name, array in record.items():
        found = _HEADER.match(array.data) if array.stype == SType.NUMPY else None
        if found is None:
            raise TypeError("an array is a file of numpy that holds numbers")
        kind = np.dtype(found[1].decode())
        shape = tuple(map(int, re.findall(rb"\d+", found[3])))
        size = len(array.data) - found.end()
        if size != math.prod(shape) * kind.itemsize:
            raise ValueError(f"{size} bytes are no {kind} of shape {shape}")
        order = "F" if found[2] == b"True" else "C"
        values = np.frombuffer(array.data, kind, offset=found.end())
        tensors[name] = from_array(values.reshape(shape, order=order).copy(order=order))
    return tensors


_BOUNDS = {kind.__name__: kind for kind in (Clip, PerLayerClip, SmoothedNormalization)}


def bound_to_json(bound: Bound) -> dict[str, Any]:
    """Return kind and numbers of a bound, of an adaptive one those of `Clip` at its norm."""
    if type(bound) is AdaptiveClip:
        bound = Clip(bound.clip_norm)
    # By the exact type: a subclass may bound by something else.
    if type(bound) not in _BOUNDS.values():
        raise Unsupported(
            f"clients cannot be sent the bound {type(bound).__name__}. Take Clip, PerLayerClip, "
            "AdaptiveClip or SmoothedNormalization"
        )
    return {"kind": type(bound).__name__, **asdict(cast("Any", bound))}


def _bound_from_json(found: dict[str, Any]) -> Bound:
    kind: Any = _BOUNDS[found["kind"]]
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in found.items() if n != "kind"}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return kind(**values)
