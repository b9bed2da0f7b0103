"""What goes to a GPU goes by way of pinned memory of PyTorch's own, or it is waited for."""

from __future__ import annotations

import pytest
import torch

from dpacct.fl.uploads import listed, sent

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Told:
    """A tensor that says how it is sent."""

    def __init__(self, device=CPU, nbytes=8, *, pinned=False):
        self.device, self.nbytes, self.pinned = device, nbytes, pinned
        self.how = ""

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        self.how += "by a copy that is pinned, "
        return self

    def to(self, device, *, non_blocking=False):
        assert device in {CPU, GPU}
        return self.how + ("at once" if non_blocking else "and waited for")


@pytest.mark.parametrize(
    ("values", "device", "how"),
    [
        (Told(), GPU, "by a copy that is pinned, at once"),
        # Somebody else may write to it before it has arrived.
        (Told(pinned=True), GPU, "and waited for"),
        (Told(nbytes=1 << 21), GPU, "and waited for"),
        (Told(GPU), GPU, "and waited for"),
        (Told(GPU), CPU, "and waited for"),
        (Told(), CPU, "and waited for"),
    ],
)
def test_nobody_else_holds_what_is_not_waited_for(values, device, how):
    assert sent(values, device) == how


def test_lists_keep_their_values_and_an_empty_one_its_type():
    assert listed([2**63 - 1, 0], CPU).tolist() == [2**63 - 1, 0]
    assert listed([], CPU).dtype == torch.int64
    assert listed([0.1], CPU, torch.float64).tolist() == [0.1]
