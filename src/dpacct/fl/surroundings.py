"""What a program has switched on or off in torch around a run, and what must not reach the run.

Rule: clients train, and sums are released, as they would be in a program that has switched nothing.
Gradients that a caller has switched off would leave noise alone, autocast would be another
precision than the one that was asked for, and tensors of `torch.inference_mode` cannot be watched.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch

# Those whose autocast PyTorch knows, and for which anything here is written.
_KINDS = ("cpu", "cuda")


@contextmanager
def undisturbed() -> Generator[None]:
    """Gradients are on; no inference mode, no autocast; tensors are made on the CPU by default.

    What is on inside stays so until the end: a model's own autocast is its own.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            # It would switch other things on, too.
            stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield
