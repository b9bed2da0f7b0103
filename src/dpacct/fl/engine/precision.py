"""How many bits float32 is computed with, by whichever of PyTorch's two ways of asking there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any, cast

import torch

_backends = cast("Any", torch.backends)


class _InUse:
    """Who computes by which precision at the moment, and what was asked for before anybody did.

    PyTorch has one setting for all threads.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.precisions: list[str] = []
        self.before: list[object] = []

    def apply(self) -> None:
        """All bits for all, as long as one of them is promised all."""
        fast = all(precision == "tf32" for precision in self.precisions)
        for place, name, value in _settings(fast=fast):
            setattr(place, name, value)


_in_use = _InUse()


@contextmanager
def arithmetic(precision: str) -> Generator[None]:
    """Use all bits of float32 inside, or TF32 where that is the precision; then give back.

    What is called float32 must not depend on what else a program has asked for, nor on PyTorch's
    default, which is TF32 for convolutions on a device. Autocast to bfloat16 is apart from this.
    Where several threads compute at a time, all have what the most exact of them is promised.

    The settings of PyTorch 2.9 and those before it must not be mixed: reading an old one after a
    new one was set is an error. The new ones can be read and set whatever was set before.
    """
    with _in_use.lock:
        if not _in_use.precisions:
            _in_use.before = [getattr(place, name) for place, name, _ in _settings(fast=False)]
        _in_use.precisions.append(precision)
        _in_use.apply()
    try:
        yield
    finally:
        with _in_use.lock:
            _in_use.precisions.remove(precision)
            if _in_use.precisions:
                _in_use.apply()
            else:
                now = _settings(fast=False)
                for (place, name, _), value in zip(now, _in_use.before, strict=True):
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
