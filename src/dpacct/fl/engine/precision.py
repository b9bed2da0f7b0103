"""How many bits float32 is computed with, by whichever of PyTorch's two ways of asking there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch

_backends = cast("Any", torch.backends)


@contextmanager
def arithmetic(precision: str) -> Generator[None]:
    """Use all bits of float32 inside, or TF32 where that is the precision; then give back.

    What is called float32 must not depend on what else a program has asked for, nor on PyTorch's
    default, which is TF32 for convolutions on a device. Autocast to bfloat16 is apart from this.

    The settings of PyTorch 2.9 and those before it must not be mixed: reading an old one after a
    new one was set is an error. The new ones can be read and set whatever was set before.
    """
    wanted = _settings(fast=precision == "tf32")
    before = [getattr(place, name) for place, name, _ in wanted]
    try:
        for place, name, value in wanted:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(wanted, before, strict=True):
            setattr(place, name, value)


def _settings(*, fast: bool) -> list[tuple[Any, str, object]]:
    """Where precision is set, by which attribute, and to what."""
    cuda, cudnn, cpu = _backends.cuda.matmul, _backends.cudnn, _backends.mkldnn
    if not (hasattr(cudnn, "conv") and hasattr(cudnn.conv, "fp32_precision")):
        return [(place, "allow_tf32", fast) for place in (cuda, cudnn)]
    device = [(place, "tf32" if fast else "ieee") for place in (cuda, cudnn.conv, cudnn.rnn)]
    # On a CPU nobody is promised TF32, and bfloat16 would be less than float32.
    host = [(place, "ieee") for place in (cpu.matmul, cpu.conv, cpu.rnn)]
    return [(place, "fp32_precision", value) for place, value in device + host]
