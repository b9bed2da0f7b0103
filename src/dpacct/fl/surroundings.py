"""Settings of torch that a program has changed around a run, and that must not reach the run.

Clients train, and sums are released, as they would be in a program that has changed nothing.
Without gradients there would be noise alone. Autocast would be another precision than the chosen
one. Tensors of `torch.inference_mode` cannot be watched.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch

_KINDS = ("cpu", "cuda")


@contextmanager
def undisturbed() -> Generator[None]:
    """Turn gradients on, and inference mode, autocast and anomaly detection off.

    The CPU is the default device. A model's own autocast, switched inside, stays on.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            # It would switch other things on, too.
            stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_anomaly_enabled():
            # It reads every gradient, and in a group these are the gradients of all clients.
            stack.enter_context(torch.autograd.set_detect_anomaly(mode=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def arithmetic(precision: str) -> Generator[None]:
    """Use all bits of float32 inside, or TF32 if that is the precision. Then restore the settings.

    The precision must not depend on other settings of a program, nor on PyTorch's default, which is
    TF32 for convolutions on a device. Autocast to bfloat16 is apart from this. PyTorch has one
    setting for all threads: runs in several threads of a process take the same precision.

    The settings of PyTorch 2.9 and older ones must not be mixed: reading an old one after a
    new one was set is an error. The new settings can be read and set after any others.
    """
    backends, fast = cast("Any", torch.backends), precision == "tf32"
    cuda, cudnn, cpu = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    if hasattr(cudnn, "conv") and hasattr(cudnn.conv, "fp32_precision"):
        name: str = "fp32_precision"
        values: list[tuple[Any, object]] = [
            (place, "tf32" if fast else "ieee") for place in (cuda, cudnn.conv, cudnn.rnn)
        ]
        # A CPU has no TF32, and bfloat16 would be less than float32.
        values += [(place, "ieee") for place in (cpu.matmul, cpu.conv, cpu.rnn)]
    else:
        name, values = "allow_tf32", [(place, fast) for place in (cuda, cudnn)]
    before = [getattr(place, name) for place, _ in values]
    for place, value in values:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, _), value in zip(values, before, strict=True):
            setattr(place, name, value)
