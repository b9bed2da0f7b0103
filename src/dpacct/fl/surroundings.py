"""What a program has switched on or off in torch around a run, and what must not reach the run.

Rule 1: clients train, and sums are released, as they would be in a program that has switched
nothing. Gradients that a caller has switched off would leave noise alone, autocast would be another
precision than the one that was asked for, and tensors of `torch.inference_mode` cannot be watched.
Rule 2: what may stay, because a model may count on it, is what it was when the run was tried.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, cast

import torch

from dpacct.errors import Unsupported

# Those whose autocast PyTorch knows, and for which anything here is written.
_KINDS = ("cpu", "cuda")
_HOOKED = (
    "hooks on what backward passes save (torch.autograd.graph.saved_tensors_hooks, save_on_cpu) "
    "are on around the run; a model may use them inside its forward"
)


@contextmanager
def undisturbed() -> Generator[None]:
    """Gradients on; no inference mode, autocast or anomaly detection; the CPU as default device.

    What is switched inside stays so until the end: a model's own autocast is its own.

    Raises:
        Unsupported: hooks on saved tensors, with which PyTorch cannot train side by side.
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
            # It reads every gradient, which side by side are those of all.
            stack.enter_context(torch.autograd.set_detect_anomaly(mode=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        _refuse_hooks()
        yield


def _refuse_hooks() -> None:
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(_HOOKED):
            pass
    except RuntimeError:
        raise Unsupported(_HOOKED) from None


def kept_settings() -> dict[str, str]:
    """What `undisturbed` leaves as it is, in words. Rule 2."""
    return {
        "default dtype": str(torch.get_default_dtype()),
        "deterministic mode": str(torch.are_deterministic_algorithms_enabled()),
    }


def check_kept(tried: Mapping[str, str]) -> None:
    """Refuse settings with which a run was not tried: every client might fail at them.

    Args:
        tried: `kept_settings` as they were then.
    Raises:
        Unsupported: one has changed.
    """
    for name, now in kept_settings().items():
        before = tried.get(name, now)
        if now != before:
            raise Unsupported(
                f"torch's {name} was {before} when the run was tried, and is {now}: a model may "
                "fail at that for every client, and noise alone would be released"
            )


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
