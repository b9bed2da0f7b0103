"""What travels beside `dpacct.fl.flower.wire` where sums are hidden: keys, rosters, masked rows.

What is read is judged first: types, lengths, names. What does not fit is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord, RecordDict
from torch import Tensor, int64

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.flower.bounds import number
from dpacct.fl.flower.wire import (
    PROTOCOL,
    ROSTER,
    SIGN,
    arrays_of,
    check_protocol,
    tensors_of,
    text,
    whole,
)

_MASKED = "dpacct.masked"
KEY_BYTES = 32
_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class About:
    """Of which process of the server, of which round, and whose."""

    run: str
    number: int
    client: int


@dataclass(frozen=True, slots=True)
class Key:
    """A client has trained, bounded to ``clip_norm``, and waits with a public key.

    ``signature`` is empty where keys are not signed.
    """

    about: About
    clip_norm: float
    public: bytes
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Roster:
    """Whose updates are summed: the public key of each, ascending.

    Where keys are not signed nobody's number is in it, and members learn how many they are, and not
    who. Where they are, ``signed`` has the client and the signature of each key.
    """

    about: About
    keys: Sequence[bytes]
    signed: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class MaskedRow:
    """A noisy update behind masks, int64 [k]."""

    about: About
    row: Tensor


def pack_key(key: Key) -> RecordDict:
    """The first answer of a client."""
    sign = _sign(key.about) | {"clip_norm": key.clip_norm, "key": key.public}
    if key.signature:
        sign["signature"] = key.signature
    return RecordDict({SIGN: ConfigRecord(sign)})


def unpack_key(content: RecordDict) -> Key:
    """What `pack_key` wrote.

    Raises:
        InvalidParameter: it is none.
    """
    try:
        sign = _read(content)
        signature = _bytes(sign["signature"], _SIGNATURE_BYTES) if "signature" in sign else b""
        public = _bytes(sign["key"], KEY_BYTES)
        return Key(_about(sign), number(sign["clip_norm"]), public, signature)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidParameter("answer", "incomplete", f"it holds a public key ({error})") from None


def pack_roster(roster: Roster) -> RecordDict:
    """The message to one of its clients."""
    # By the keys themselves: an order of arrival or of numbers would say who they are.
    order = sorted(range(len(roster.keys)), key=lambda place: roster.keys[place])
    sign = _sign(roster.about) | {"ask": ROSTER, "keys": [roster.keys[place] for place in order]}
    if roster.signed:
        signed = [roster.signed[place] for place in order]
        sign["clients"] = [client for client, _ in signed]
        sign["signatures"] = [signature for _, signature in signed]
    return RecordDict({SIGN: ConfigRecord(sign)})


def unpack_roster(content: RecordDict) -> Roster:
    """What `pack_roster` wrote.

    Raises:
        InvalidParameter: it is none.
    """
    try:
        sign = _read(content)
        keys = [_bytes(key, KEY_BYTES) for key in cast("list[Any]", sign["keys"])]
        clients = [whole(client) for client in cast("list[Any]", sign.get("clients", []))]
        found = cast("list[Any]", sign.get("signatures", []))
        signatures = [_bytes(signature, _SIGNATURE_BYTES) for signature in found]
        return Roster(_about(sign), keys, list(zip(clients, signatures, strict=True)))
    except (KeyError, TypeError, ValueError) as error:
        rule = f"it holds the public key of each client of the sum ({error})"
        raise InvalidParameter("roster", "incomplete", rule) from None


def pack_masked(found: MaskedRow) -> RecordDict:
    """The second answer of a client."""
    sign = ConfigRecord(_sign(found.about))
    return RecordDict({SIGN: sign, _MASKED: arrays_of({"row": found.row})})


def unpack_masked(content: RecordDict) -> MaskedRow:
    """What `pack_masked` wrote.

    Raises:
        InvalidParameter: it is none.
    """
    try:
        row = tensors_of(content.array_records[_MASKED])["row"]
        about = _about(_read(content))
    except (KeyError, TypeError, ValueError) as error:
        rule = f"it holds a masked update ({error})"
        raise InvalidParameter("answer", "incomplete", rule) from None
    if row.ndim != 1 or row.dtype != int64:
        rule = "a masked update is one vector of whole numbers"
        raise InvalidParameter("answer", f"{row.dtype} {tuple(row.shape)}", rule)
    return MaskedRow(about, row)


def _sign(about: About) -> dict[str, Any]:
    whose = {"run": about.run, "round": about.number, "client": about.client}
    return {"protocol": PROTOCOL, "version": __version__, **whose}


def _read(content: RecordDict) -> ConfigRecord:
    sign = content.config_records[SIGN]
    check_protocol(sign.get("protocol"), str(sign.get("version", "")))
    return sign


def _about(sign: ConfigRecord) -> About:
    return About(text(sign["run"]), whole(sign["round"]), whole(sign["client"]))


def _bytes(value: object, length: int) -> bytes:
    if not isinstance(value, bytes) or len(value) != length:
        raise TypeError(f"{value!r:.60} is no key or signature of {length} bytes")
    return value
