"""Tensors on their way to a device, devices by name, and the seconds of a round's parts."""

from __future__ import annotations

import pytest
import torch

import dpacct.fl  # noqa: F401 - asks for kernels that repeat themselves
from dpacct.errors import InvalidParameter
from dpacct.fl.tensors import (
    choose_device,
    forked_generators,
    listed,
    near_numbers,
    seed_generators,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_lists_keep_their_values_and_an_empty_one_its_type():
    assert listed([2**63 - 1, 0], CPU).tolist() == [2**63 - 1, 0]
    assert listed([], CPU).dtype == torch.int64
    assert listed([0.1], CPU, torch.float64).tolist() == [0.1]


def test_names_are_those_of_pytorch() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:x", "", "cuda:-1", "cuda:4096"])
def test_what_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match=f"device is '{name}'"):
        choose_device(name)


def test_the_first_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InvalidParameter, match="2 CUDA devices"):
        choose_device("cuda:2")


def test_the_gpu_of_a_run_is_seeded_and_not_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current, seeded = [0], {}

    class Current:
        def __init__(self, device: torch.device) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.update({current[-1]: seed}))
    with forked_generators():
        seed_generators(5, torch.device("cuda:1"))
    assert (seeded, current) == ({1: 5}, [0])


def test_near_numbers_differ_by_rounding_alone() -> None:
    values = torch.tensor([1.0, -2.0, 3e4])
    assert near_numbers(values, values * (1 + 1e-4))
    assert near_numbers(torch.full((2,), torch.nan), torch.full((2,), torch.nan))
    for other in (values * (1 + 2e-3), torch.full((3,), torch.nan), values[:2]):
        assert not near_numbers(values, other)


@pytest.mark.parametrize(("many", "rows", "depth", "columns"), [(16, 31, 9, 5), (3, 31, 65, 5)])
def test_a_product_does_not_depend_on_its_place_among_others(many, rows, depth, columns):
    # On AMD's processors, other places give other bits unless the library is asked.
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(many, rows, depth, generator=generator)
    right = torch.randn(many, depth, columns, generator=generator)
    together = left @ right
    for place in range(many):
        alone = left[place : place + 1].clone() @ right[place : place + 1].clone()
        assert torch.equal(together[place], alone[0])
