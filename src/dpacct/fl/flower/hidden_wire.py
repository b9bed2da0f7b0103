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
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class About:
    """Of which process of the server, of which round, and whose."""

    run: str
    number: int
    client: int


@dataclass(frozen=True, slots=True)
class Key:
    """A client has trained, bounded to ``clip_norm``, and waits with a public key."""

    about: About
    clip_norm: float
    public: bytes


@dataclass(frozen=True, slots=True)
class Roster:
    """Whose updates are summed: the public key of each, ascending, and nobody's number.

    Members learn how many they are, and not who: the cohort stays secret among them.
    """

    about: About
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedRow:
    """A noisy update behind masks, int64 [k]."""

    about: About
    row: Tensor


def pack_key(key: Key) -> RecordDict:
    """The first answer of a client."""
    sign = _sign(key.about) | {"clip_norm": key.clip_norm, "key": key.public}
    return RecordDict({SIGN: ConfigRecord(sign)})


def unpack_key(content: RecordDict) -> Key:
    """What `pack_key` wrote.

    Raises:
        InvalidParameter: it is none.
    """
    try:
        sign = _read(content)
        return Key(_about(sign), number(sign["clip_norm"]), _key(sign["key"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidParameter("answer", "incomplete", f"it holds a public key ({error})") from None


def pack_roster(roster: Roster) -> RecordDict:
    """The message to one of its clients."""
    # By the keys themselves: an order of arrival or of numbers would say who they are.
    sign = _sign(roster.about) | {"ask": ROSTER, "keys": sorted(roster.keys)}
    return RecordDict({SIGN: ConfigRecord(sign)})


def unpack_roster(content: RecordDict) -> Roster:
    """What `pack_roster` wrote.

    Raises:
        InvalidParameter: it is none.
    """
    try:
        sign = _read(content)
        keys = [_key(key) for key in cast("list[Any]", sign["keys"])]
        return Roster(_about(sign), keys)
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


def _key(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != _KEY_BYTES:
        raise TypeError(f"{value!r:.60} is no key of {_KEY_BYTES} bytes")
    return value
