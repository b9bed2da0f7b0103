"""TensorFloat-32 for a while, by whichever of PyTorch's two ways of asking there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch

_backends = cast("Any", torch.backends)


@contextmanager
def reduced_precision(precision: str) -> Generator[None]:
    """Allow TF32 inside, where that is the precision, and give all settings back.

    The settings of PyTorch 2.9 and those before it must not be mixed: reading an old one after a
    new one was set is an error. The new ones can be read and set whatever was set before.
    """
    if precision != "tf32":
        yield
        return
    places, name, fast = _switches()
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, fast)
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(place, name, value)


def _switches() -> tuple[list[Any], str, object]:
    """Where precision is set, by which attribute, and to what."""
    cuda, cudnn = _backends.cuda.matmul, _backends.cudnn
    if hasattr(cudnn, "conv") and hasattr(cudnn.conv, "fp32_precision"):
        return [cuda, cudnn.conv, cudnn.rnn], "fp32_precision", "tf32"
    return [cuda, cudnn], "allow_tf32", True
