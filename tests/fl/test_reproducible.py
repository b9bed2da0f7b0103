"""Products of matrices have the same bits wherever their factors lie."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import dpacct.fl  # noqa: F401 - asks for kernels that repeat themselves

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


@pytest.mark.parametrize(("own", "kept"), [(None, "AUTO"), ("COMPATIBLE", "COMPATIBLE")])
def test_a_setting_of_the_users_own_is_kept(own, kept):
    there = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    if own is not None:
        there["MKL_CBWR"] = own
    ran = subprocess.run(
        [sys.executable, "-c", _ASK], env=there, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == kept
