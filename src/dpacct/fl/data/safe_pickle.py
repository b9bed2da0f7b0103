"""The pickles of the original CIFAR-10 batches, read without running what they say.

A pickle is a program: it names functions and calls them. Here every name is looked up among three,
and stands for a class of this file, so not even numpy's own reconstruction runs on foreign bytes.

Rule 1: a name other than numpy's array, dtype and reconstruction is refused.
Rule 2: arrays are of bytes, in C order, and exactly as long as their shape says.
Rule 3: what comes out is a dict with bytes as keys, holding lists, bytes, numbers and such arrays.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpacct.fl.data.files import invalid, read_bytes

_REFUSED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    UnicodeError,
    ValueError,
)


class _Dtype:
    """Stands for a numpy dtype, of which only unsigned bytes are known."""

    __slots__ = ()

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"arrays are of bytes, not of {code!r}")

    def __setstate__(self, _: object) -> None:
        # Byte order and alignment mean nothing for single bytes.
        return


class _Array:
    """Stands for a numpy array until its state arrives."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(cast("tuple[Any, ...]", state)) != 5:
            raise pickle.UnpicklingError("an array has five parts")
        _, said, dtype, fortran, content = cast("tuple[Any, ...]", state)
        shape = cast("tuple[Any, ...]", said if isinstance(said, tuple) else ())
        lengths = all(type(length) is int and length > 0 for length in shape)
        if (
            not shape
            or not lengths
            or not isinstance(dtype, _Dtype)
            or not isinstance(content, bytes)
        ):
            raise pickle.UnpicklingError("an array has a shape, a dtype and bytes")
        if fortran or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"{len(content)} bytes are no array of shape {shape}")
        self.values = np.frombuffer(content, np.uint8).reshape(shape)


class _Reconstruct:
    """Stands for the function that makes an empty array."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()

    def __setstate__(self, _: object) -> None:
        raise pickle.UnpicklingError("a function has no state")


_KNOWN: dict[tuple[str, str], object] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
}


class _Reader(pickle.Unpickler):
    """An unpickler that knows four names."""

    def find_class(self, module: str, name: str, /) -> Any:
        """What a name stands for."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no data file needs")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refused."""
        del pid
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_pickled_batch(file: Path) -> dict[bytes, Any]:
    """The dictionary in a pickled batch; arrays in it are uint8.

    Raises:
        InvalidParameter: it names anything but arrays of bytes, is damaged, or is no dictionary.
    """
    try:
        content: object = _Reader(io.BytesIO(read_bytes(file)), encoding="bytes").load()
    except _REFUSED as error:
        reason = str(error) or type(error).__name__
        raise invalid(file, f"it is not a pickled batch, or is damaged ({reason})") from None
    if not isinstance(content, dict):
        raise invalid(file, f"a pickled batch is a dictionary, this is a {type(content).__name__}")
    return {
        key if isinstance(key, bytes) else str(key).encode(): _unwrapped(file, value)
        for key, value in cast("dict[object, object]", content).items()
    }


def _unwrapped(file: Path, value: object) -> object:
    if not isinstance(value, _Array):
        return value
    if value.values is None:
        raise invalid(file, "it is not a pickled batch: an array without values")
    return value.values
