"""What travels: a round's assignment to a client, its answer, and who is asked for what.

Rule 1: what is read is judged first: types, shapes, names. What does not fit is no answer. Rule 2:
an answer holds the bounded update, the client's memory and nothing else of its data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, int64

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.flower.arrays import decoded
from dpacct.fl.flower.bounds import bound_from_json, bound_to_json, number
from dpacct.fl.layout import Params, State
from dpacct.fl.local.sgd import SGD
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.tensors import from_array

# Counts up with every change of what travels.
PROTOCOL = 4
# The record that says what a message is, and those of its tensors; Flower's own names for the rest.
SIGN = "dpacct"
ARRAYS = "arrays"
SERVER_STATE = "dpacct.server_state"
MEMORY = "dpacct.memory"
MASK = "dpacct.mask"
UPDATE = "dpacct.update"
HELLO, ROUND, ROSTER = "hello", "round", "roster"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """What a client is told in a round, all of it public but its own memory.

    Attributes:
        run: tag of the server's process. number: of the round. client: whom it is for.
        setting: of the run, in words.
        params, server_state: as in `Broadcast`. memory: the client's, or None.
        local: local training. bound: of the round. kept: the mask's coordinates, None for all.
        counted: whether the norm is adaptive, and the answer says if the update was below it.
        contributions: the most that a round can hold, which fixes the grid of the sum.
        seed: of the client's batches.
        shares: where clients add the noise: how many shares make it up, and the standard deviation
            of the whole. None where the server does.
    """

    run: str
    number: int
    client: int
    setting: str
    params: Params
    server_state: State
    memory: State | None
    local: SGD
    bound: Bound
    counted: bool
    kept: Tensor | None
    contributions: int
    seed: int
    shares: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """What a client sends.

    Attributes:
        run, number, client: of the assignment that it answers. clip_norm: that it was bounded to.
        row: the bounded update [k]. below: as in `Contributions`. memory: the new one, or None.
    """

    run: str
    number: int
    client: int
    clip_norm: float
    row: Tensor
    below: bool
    memory: State | None


def arrays_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors by name, as Flower carries them."""
    return ArrayRecord(
        {
            name: Array(np.asarray(t.detach().cpu().numpy(), order="C"))
            for name, t in tensors.items()
        }
    )


def tensors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """Tensors by name, in memory of their own.

    Raises:
        TypeError, ValueError: see `dpacct.fl.flower.arrays.decoded`.
    """
    return {name: from_array(decoded(array)) for name, array in record.items()}


def hello() -> RecordDict:
    """The question who a client is, and by what it trains."""
    return RecordDict({SIGN: ConfigRecord({"protocol": PROTOCOL, "ask": HELLO})})


def ask_of(content: RecordDict) -> str | None:
    """What a message asks for; None where it is not ours.

    Raises:
        InvalidParameter: it is of another version.
    """
    sign = content.config_records.get(SIGN)
    if sign is None:
        return None
    check_protocol(sign.get("protocol"), str(sign.get("version", "")))
    return str(sign.get("ask"))


def check_protocol(protocol: object, version: str) -> None:
    """The other side speaks as we do.

    Raises:
        InvalidParameter: it does not.
    """
    if protocol != PROTOCOL:
        rule = f"dpacct {__version__} here speaks version {PROTOCOL} of the messages"
        hint = "Install the same dpacct on the server and on all clients."
        raise InvalidParameter(
            "protocol", f"{protocol} (dpacct {version or 'unknown'})", rule, hint
        )


def shared_records(
    params: Params, server_state: State, kept: Tensor | None
) -> dict[str, ArrayRecord]:
    """What is the same in all messages of a round, made once."""
    records = {ARRAYS: arrays_of(params)}
    if server_state:
        records[SERVER_STATE] = arrays_of(server_state)
    if kept is not None:
        records[MASK] = arrays_of({"kept": kept})
    return records


def pack_assignment(given: Assignment, shared: Mapping[str, ArrayRecord]) -> RecordDict:
    """The message of a round to one client; ``shared`` by `shared_records`."""
    sign = ConfigRecord(
        {
            "protocol": PROTOCOL,
            "version": __version__,
            "ask": ROUND,
            "run": given.run,
            "round": given.number,
            "client": given.client,
            "setting": given.setting,
            "local": json.dumps(asdict(given.local)),
            "bound": json.dumps(bound_to_json(given.bound)),
            "counted": given.counted,
            "contributions": given.contributions,
            "seed": given.seed,
            "names": list(given.params),
        }
    )
    if given.shares is not None:
        sign["minimum"], sign["std"] = given.shares
    content = RecordDict({SIGN: sign, **shared})
    if given.memory is not None:
        content[MEMORY] = arrays_of(given.memory)
    return content


def unpack_assignment(content: RecordDict) -> Assignment:
    """What `pack_assignment` wrote.

    Raises:
        InvalidParameter: something of it is missing, or another type.
    """
    sign, records = content.config_records[SIGN], content.array_records
    try:
        mask = records.get(MASK)
        memory = records.get(MEMORY)
        params = _in_order(tensors_of(records[ARRAYS]), sign["names"])
        return Assignment(
            run=text(sign["run"]),
            number=whole(sign["round"]),
            client=whole(sign["client"]),
            setting=text(sign["setting"]),
            params=params,
            server_state=tensors_of(records.get(SERVER_STATE, ArrayRecord())),
            memory=None if memory is None else tensors_of(memory),
            local=SGD(**json.loads(text(sign["local"]))),
            bound=bound_from_json(json.loads(text(sign["bound"]))),
            counted=truth(sign["counted"]),
            kept=None if mask is None else _places(tensors_of(mask)["kept"], params),
            contributions=whole(sign["contributions"]),
            seed=whole(sign["seed"]),
            shares=(whole(sign["minimum"]), number(sign["std"])) if "minimum" in sign else None,
        )
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        rule = f"the server's message says all that a client needs ({error})"
        raise InvalidParameter("message", ROUND, rule) from None


def pack_answer(answer: Answer) -> RecordDict:
    """The reply to an assignment."""
    sign = ConfigRecord(
        {
            "protocol": PROTOCOL,
            "version": __version__,
            "run": answer.run,
            "round": answer.number,
            "client": answer.client,
            "clip_norm": answer.clip_norm,
            "below": answer.below,
        }
    )
    content = RecordDict({SIGN: sign, UPDATE: arrays_of({"row": answer.row})})
    if answer.memory is not None:
        content[MEMORY] = arrays_of(answer.memory)
    return content


def unpack_answer(content: RecordDict) -> Answer:
    """What `pack_answer` wrote, as far as it says what an answer has to.

    Raises:
        InvalidParameter: it is no such answer.
    """
    sign = content.config_records.get(SIGN)
    if sign is None:
        rule = "an answer is made by the mod of this package, the first of a ClientApp's mods"
        raise InvalidParameter("answer", "without a sign of the mod", rule)
    check_protocol(sign.get("protocol"), str(sign.get("version", "")))
    records = content.array_records
    try:
        row = tensors_of(records[UPDATE])["row"]
        memory = records.get(MEMORY)
        answer = Answer(
            run=text(sign["run"]),
            number=whole(sign["round"]),
            client=whole(sign["client"]),
            clip_norm=number(sign["clip_norm"]),
            row=row,
            below=truth(sign["below"]),
            memory=None if memory is None else tensors_of(memory),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidParameter("answer", "incomplete", f"it holds an update ({error})") from None
    if row.ndim != 1 or not row.is_floating_point():
        rule = "an update is one vector of floating-point numbers"
        raise InvalidParameter("answer", f"{row.dtype} {tuple(row.shape)}", rule)
    return answer


def text(value: object) -> str:
    """A value that travelled, as the text that it has to be. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


def whole(value: object) -> int:
    """As a whole number. Raises TypeError."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is no whole number")
    return value


def truth(value: object) -> bool:
    """As true or false. Raises TypeError."""
    if type(value) is not bool:
        raise TypeError(f"{value!r:.60} is neither true nor false")
    return value


def _in_order(tensors: Params, names: object) -> Params:
    """By the server's order, on which the flat vector rests."""
    if not isinstance(names, list) or sorted(map(str, cast("list[Any]", names))) != sorted(tensors):
        raise TypeError("the parameters are not those that are named")
    return {str(name): tensors[str(name)] for name in cast("list[Any]", names)}


def _places(kept: Tensor, params: Params) -> Tensor:
    """Some of the coordinates of all parameters, ascending."""
    size = sum(value.numel() for value in params.values())
    if kept.dtype != int64 or kept.ndim != 1:
        raise TypeError(f"a mask of {kept.dtype} {tuple(kept.shape)} is no list of places")
    if bool((kept.diff() <= 0).any()) or bool(((kept < 0) | (kept >= size)).any()):
        raise ValueError(f"a mask names some of {size} places, ascending")
    return kept
