"""What a program has switched on or off in torch around a run, and what must not reach the run.

Rule 1: clients train, and sums are released, as they would be in a program that has switched
nothing. Gradients that a caller has switched off would leave noise alone, autocast would be another
precision than the one that was asked for, and tensors of `torch.inference_mode` cannot be watched.
Rule 2: what may stay, because a model may count on it, is what it was when the run was tried.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

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
