"""How clients are trained, as a checkpoint holds it: plain numbers and text, judged when read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NoReturn

import torch

from dpacct.display import line
from dpacct.errors import InvalidParameter
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.ways import ClientWay, ExampleWay, KeptWay

_UNITS: dict[str, type[ClientWay | ExampleWay]] = {"clients": ClientWay, "examples": ExampleWay}
_LONGEST = 1000
_DTYPES = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}


def plain_way(kept: KeptWay | None) -> dict[str, Any] | None:
    """A way as a checkpoint holds it."""
    if kept is None:
        return None
    way = kept.way
    unit = next(name for name, kind in _UNITS.items() if isinstance(way, kind))
    content = asdict(way)
    content["kind"] |= {
        name: str(content["kind"][name]).removeprefix("torch.")
        for name in ("input_dtype", "target_dtype")
    }
    # Words of a model's own may stand in it; what is written here can be read again.
    content["reason"] = line(way.reason, _LONGEST)[:_LONGEST]
    return {"unit": unit, "device": kept.device} | content


def way_in(content: object) -> KeptWay | None:
    """What `plain_way` wrote; None where a checkpoint holds no way.

    Raises:
        InvalidParameter: it is nothing that `plain_way` writes.
    """
    if content is None:
        return None
    fields = dict(_expect(content, dict))
    made = _UNITS.get(_expect(fields.pop("unit", None), str))
    device = _expect(fields.pop("device", None), str)
    if made is None or set(fields) != set(made.__dataclass_fields__) or len(device) > _LONGEST:
        _refuse(content)
    fields["kind"] = _kind(_expect(fields["kind"], dict))
    labels = fields["labels"]
    fields["labels"] = None if labels is None else _labels(_expect(labels, dict))
    if fields.get("sizes") is not None:
        fields["sizes"] = _sizes(_expect(fields["sizes"], dict))
    for name in fields.keys() & {"clients", "room"}:
        fields[name] = None if fields[name] is None else _count(fields[name])
    fields["chunk"] = _count(fields["chunk"])
    if "widest" in fields and not _expect(fields["widest"], int, float) >= 0:
        _refuse(fields["widest"])
    for name in fields.keys() & {"replays", "by_place"}:
        _expect(fields[name], bool)
    reason = _expect(fields["reason"], str)
    if len(reason) > _LONGEST or not reason.isprintable():
        _refuse(reason)
    return KeptWay(made(**fields), device)


def _kind(found: dict[Any, Any]) -> Kind:
    if set(found) != set(Kind.__dataclass_fields__):
        _refuse(found)
    names = [_expect(found[name], str) for name in ("input_dtype", "target_dtype")]
    shapes = [
        tuple(map(_count, _expect(found[name], tuple, list)))
        for name in ("input_shape", "target_shape")
    ]
    if not set(names) <= _DTYPES.keys():
        _refuse(names)
    return Kind(_DTYPES[names[0]], shapes[0], _DTYPES[names[1]], shapes[1])


def _sizes(found: dict[Any, Any]) -> Sizes:
    if set(found) != set(Sizes.__dataclass_fields__):
        _refuse(found)
    least, most, step = (_count(found[name]) for name in ("least", "most", "step"))
    if not 0 < step <= least <= most or least % step or most % step:
        _refuse(found)
    return Sizes(least, most, step)


def _labels(found: dict[Any, Any]) -> Labels:
    if set(found) != set(Labels.__dataclass_fields__):
        _refuse(found)
    ignored, padded = _expect(found["ignored"], int), _expect(found["padded"], bool)
    return Labels(_count(found["count"]), ignored, padded)


def _count(value: object) -> int:
    number = _expect(value, int)
    if not 0 <= number < 2**63:
        _refuse(value)
    return number


def _expect(value: object, *kinds: type[Any]) -> Any:
    """The value, which is of exactly one of these types."""
    if type(value) not in kinds:
        _refuse(value)
    return value


def _refuse(value: object) -> NoReturn:
    raise InvalidParameter("way", str(value)[:60], "it is how clients are trained")
