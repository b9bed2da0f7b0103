"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from dpacct.errors import InvalidParameter
from dpacct.fl.devices import choose_device


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
