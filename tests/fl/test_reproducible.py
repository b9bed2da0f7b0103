"""Products of matrices have the same bits wherever their factors lie."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import dpacct.fl  # noqa: F401 - asks for kernels that repeat themselves
from dpacct.fl.trainers.addresses import shows_addresses

_ASK = "import os, dpacct.fl; print(os.environ['MKL_CBWR'])"


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


_PRODUCT_FIRST = """
import torch
torch.randn(9, 9) @ torch.randn(9, 9)
from torch import nn
from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.trainers.addresses import shows_addresses

# Layers of which made-up clients and examples did not tell it.
parts = [nn.Conv2d(2, 5, 3, dilation=2), nn.SiLU(), nn.Flatten(), nn.Linear(125, 3)]
model = nn.Sequential(*parts)
people = [fl.ClientData(torch.randn(5, 2, 9, 9), torch.arange(5) % 3) for _ in range(33)]
known = shows_addresses(torch.device("cpu"))
for population in (people, fl.Examples(people[0])):
    for vectorize in ("auto", True):
        options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sampling": fl.Full(), "rounds": 1}
        run = fl.Federation(
            model, nn.functional.cross_entropy, population, vectorize=vectorize, **options
        )
        try:
            run.run()
            alone = "at a time" in run.training_path
            assert not known or (vectorize == "auto" and alone), run.training_path
        except Unsupported as error:
            assert known and vectorize is True
            assert "where their factors lie" in str(error)
print("in order")
"""


def test_a_product_before_the_import_costs_training_many_at_once():
    """Where products then depend on addresses, which is so on AMD's processors."""
    there = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    ran = subprocess.run(
        [sys.executable, "-c", _PRODUCT_FIRST],
        env=there,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "in order"


def test_products_repeat_here():
    assert not shows_addresses(torch.device("cpu"))


@pytest.mark.parametrize(("own", "kept"), [(None, "AUTO"), ("COMPATIBLE", "COMPATIBLE")])
def test_a_setting_of_the_users_own_is_kept(own, kept):
    there = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    if own is not None:
        there["MKL_CBWR"] = own
    ran = subprocess.run(
        [sys.executable, "-c", _ASK], env=there, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == kept
