"""What objects of torch, numpy and the standard library hold, and what torch is set to.

They are no dictionaries, and yet something may be put into them: namespaces, queues, generators of
random numbers, buffers of bytes, arrays. Not read: caches of `functools`, loggers, locks, files.
"""

from __future__ import annotations

import array
import contextvars
import functools
import io
import pickle
import random
import threading
from collections.abc import Callable
from types import GeneratorType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Read = Callable[[], list[Any]]
_torch: Any = torch
# Their instances hold things in attributes.
_WITH_ATTRIBUTES = frozenset({"types", "argparse", "collections", "queue"})
_MIXED = 2**16


class Held(NamedTuple):
    """What an object holds now: ``read`` gives one entry for each of ``names``."""

    read: Read
    names: list[str]


def held(value: Any) -> Held | None:
    """What an object of somebody else's class holds; None for what is not read."""
    attributes = _attributes(value)
    if attributes is not None:
        names = [f".{name}" for name in attributes]
        return Held(lambda: [*map(attributes.get, list(attributes))], names)
    read = _reader(value)
    return None if read is None else Held(read, [""] * len(read()))


def _attributes(value: Any) -> dict[str, Any] | None:
    local = isinstance(value, threading.local)
    plain = type(value).__module__ in _WITH_ATTRIBUTES and not isinstance(value, type)
    own = getattr(value, "__dict__", None) if local or plain else None
    return cast("dict[str, Any]", own) if isinstance(own, dict) else None


def _reader(value: Any) -> Read | None:
    """A function that reads an object anew."""
    match value:
        case property():
            return lambda: [value.fget, value.fset, value.fdel]
        case functools.cached_property():
            function = cast("Any", value).func
            return lambda: [function]
        case contextvars.ContextVar():
            variable = cast("contextvars.ContextVar[Any]", value)
            return lambda: [variable.get(None)]
        case GeneratorType():
            return lambda: _frame(value)
        case WeakKeyDictionary() | WeakValueDictionary():
            entries = cast("WeakKeyDictionary[Any, Any]", value)
            return lambda: [*entries.values(), *entries.keys()]
        case array.array() | memoryview():
            return lambda: [value.tobytes()]
        case io.BytesIO() | io.StringIO():
            return lambda: [value.getvalue(), value.tell()]
        case np.ndarray():
            return _array(cast("NDArray[Any]", value))
        case _:
            return _generator(value)


def _array(values: NDArray[Any]) -> Read:
    if values.dtype.hasobject and values.dtype.names is None and values.size <= _MIXED:
        return lambda: list(values.flat)
    return lambda: [values.tobytes()]


def _frame(generator: GeneratorType[Any, Any, Any]) -> list[Any]:
    """Variables of a generator that waits, and where it waits."""
    frame = generator.gi_frame
    return [] if frame is None else [frame.f_lasti, *frame.f_locals.values()]


def _generator(value: Any) -> Read | None:
    """The state of a generator of random numbers, unless it is seeded for each client."""
    match value:
        case random.Random():
            shared: Any = random.random
            if value is shared.__self__:
                return None
            return lambda: [pickle.dumps(value.getstate())]
        case np.random.Generator():
            return lambda: [pickle.dumps(value.bit_generator.state)]
        case np.random.RandomState():
            if value is np.random.mtrand._rand:  # noqa: SLF001  # pyright: ignore
                return None
            return lambda: [pickle.dumps(value.get_state(legacy=False))]
        case torch.Generator():
            if value is _torch.default_generator or value.device.type != "cpu":
                return None
            return lambda: [cast("Any", value.get_state()).numpy().tobytes()]
        case _:
            return None


def parts(tensor: Tensor) -> dict[str, Tensor]:
    """The plain tensors in a sparse one, by what is called to get them; of others none."""
    bare = tensor.detach()
    match bare.layout:
        case torch.sparse_coo:
            return {"._indices()": bare._indices(), "._values()": bare._values()}  # noqa: SLF001  # pyright: ignore
        case torch.sparse_csr | torch.sparse_bsr:
            found = (bare.crow_indices(), bare.col_indices(), bare.values())
            return dict(zip((".crow_indices()", ".col_indices()", ".values()"), found, strict=True))
        case torch.sparse_csc | torch.sparse_bsc:
            found = (bare.ccol_indices(), bare.row_indices(), bare.values())
            return dict(zip((".ccol_indices()", ".row_indices()", ".values()"), found, strict=True))
        case _:
            return {}


SETTINGS = ("default dtype", "default device", "gradient mode", "inference mode", "autocast",
            "deterministic mode", "number of threads", "treatment of subnormal numbers")  # fmt: skip


def settings() -> list[Any]:
    """What torch is set to at the moment, one entry for each of `SETTINGS`."""
    return [
        str(_torch.get_default_dtype()),
        str(_torch.get_default_device()),
        _torch.is_grad_enabled(),
        _torch.is_inference_mode_enabled(),
        _torch.is_autocast_enabled(),
        _torch.are_deterministic_algorithms_enabled(),
        _torch.get_num_threads(),
        bool(torch.full((1,), 1e-40, dtype=torch.float32).mul_(0.5).any()),
    ]
