"""Arrays that travelled, read without trusting who wrote them.

Flower carries arrays as files of numpy. Its loader takes others for them as well (archives), makes
room for as many numbers as a file says it holds, and parses its header as Python. Here a header is
one of numpy's own, and says exactly as much as there is.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from flwr.app import Array
from flwr.common.constant import SType
from numpy.typing import NDArray

_HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
    rb"\{'descr': '([<|][?biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},? ?){0,32})\), \} *\n",
    re.DOTALL,
)


def decoded(array: Array) -> NDArray[Any]:
    """The numbers of an array, in memory of their own.

    Raises:
        TypeError: it is no array of numbers. ValueError: it holds more or less than it says.
    """
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
    return values.reshape(shape, order=order).copy(order=order)
