"""Operations that make a device wait are counted, also where there is none."""

from __future__ import annotations

import torch

from benchmarks.host_traffic import HostTraffic


def test_reads_and_masks_are_seen():
    values = torch.arange(4.0)
    with HostTraffic() as seen:
        _ = float(values[0]), bool(values.any()), values[values > 1], values.nonzero()
        values[values > 2] = 0.0
        torch.tensor([1, 2])
    assert seen.reads == {
        "_local_scalar_dense": 2,
        "index by a mask": 1,
        "index_put_ by a mask": 1,
        "nonzero": 1,
    }
    assert seen.copies == {"upload": 1}


def test_arithmetic_waits_for_nothing():
    values = torch.ones(4)
    with HostTraffic() as seen:
        values.add(1).mul_(2).sum(dim=0)
    assert not seen.reads
    assert not seen.copies
    assert seen.operations.total() == 3
