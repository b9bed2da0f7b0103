"""What objects of torch, numpy and the standard library hold, and what torch is set to.

They are no dictionaries, and yet something may be put into them: namespaces, queues, generators of
random numbers, iterators, buffers of bytes, arrays. Not read: caches of `functools`, loggers,
locks, files, how far a cycle of `itertools` is.
"""

from __future__ import annotations

import array
import contextvars
import functools
import gc
import io
import itertools
import operator
import pickle
import queue
import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
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
_WITH_ITERATORS = frozenset({"builtins", "itertools"})
_MIXED = 2**16
_SUBNORMAL = 2.0**-1050


class Held(NamedTuple):
    """What an object holds now: ``read`` gives one entry for each of ``names``."""

    read: Read
    names: list[str]


def entries(held: Mapping[Any, Any]) -> list[Any]:
    """The values of a dictionary, then its keys."""
    return [*held.values(), *held]


def held(value: Any) -> Held | None:
    """What an object of somebody else's class holds; None for what is not read."""
    attributes = _attributes(value)
    if attributes is not None:
        names = [f".{name}" for name in attributes] + [""] * len(attributes)
        # Asked for each time: a thread's own are others in another thread.
        return Held(lambda: entries(value.__dict__), names)
    read = _reader(value)
    return None if read is None else Held(read, [""] * len(read()))


def _attributes(value: Any) -> dict[str, Any] | None:
    local = isinstance(value, threading.local)
    plain = type(value).__module__ in _WITH_ATTRIBUTES and not isinstance(value, type)
    own = getattr(value, "__dict__", None) if local or plain else None
    return cast("dict[str, Any]", own) if isinstance(own, dict) else None


def _reader(value: Any) -> Read | None:  # noqa: PLR0911 - one for each kind of object
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
            return partial(_frame, cast("GeneratorType[Any, Any, Any]", value))
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
            return _passing(value) or _generator(value)


def _passing(value: Any) -> Read | None:
    """What is left of something that is used up as it is read."""
    kind = cast("type[object]", type(value))
    match value:
        case queue.SimpleQueue():
            waiting = cast("queue.SimpleQueue[Any]", value)
            return lambda: [waiting.qsize()]
        case itertools.count():
            return lambda: [repr(cast("itertools.count[Any]", value))]
        case _ if kind.__module__ in _WITH_ITERATORS and hasattr(kind, "__next__"):
            # What it goes through may be an iterator as well.
            return lambda: [operator.length_hint(value, -1), *gc.get_referents(value)]
        case _:
            return None


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
    if any(value is shared for shared in _shared()):
        return None
    state: Callable[[], Any] | None = None
    match value:
        case random.Random():
            state = value.getstate
        case np.random.Generator():
            state = partial(getattr, value.bit_generator, "state")
        case np.random.RandomState():
            state = partial(cast("Any", value).get_state, legacy=False)
        case torch.Generator() if value.device.type == "cpu":
            state = partial(_bytes, value)
        case _:
            pass
    return None if state is None else partial(_pickled, state)


def _shared() -> list[object]:
    """The generators that everybody draws from."""
    plain: Any = random.random
    old: Any = np.random.rand
    return [plain.__self__, old.__self__, _torch.default_generator]


def _bytes(generator: torch.Generator) -> bytes:
    return cast("Any", generator.get_state()).numpy().tobytes()


def _pickled(state: Callable[[], Any]) -> list[Any]:
    return [pickle.dumps(state())]


def parts(tensor: Tensor) -> dict[str, Tensor]:
    """The plain tensors in a sparse one, by what is called to get them; of others none."""
    match tensor.layout:
        case torch.sparse_coo:
            names = ("_indices", "_values")
        case torch.sparse_csr | torch.sparse_bsr:
            names = ("crow_indices", "col_indices", "values")
        case torch.sparse_csc | torch.sparse_bsc:
            names = ("ccol_indices", "row_indices", "values")
        case _:
            names = ()
    return {f".{name}()": getattr(tensor.detach(), name)() for name in names}


SETTINGS = (
    "default dtype",
    "default device",
    "gradient mode",
    "inference mode",
    "autocast",
    "deterministic mode",
    "number of threads",
    "treatment of subnormal numbers",
)


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
        # The processor's setting, for every product of this thread.
        _SUBNORMAL * 0.5 > 0,
    ]
