"""The plug-in for JAX Privacy; CI installs no JAX, so that these run where somebody has it."""

from __future__ import annotations

import pytest

import dpacct
from dpacct import Poisson, Round

accounting = pytest.importorskip("jax_privacy.accounting", reason="jax-privacy is not installed")
plug_in = pytest.importorskip("dpacct.interop.jax_privacy")


def test_its_calibration_asks_the_tight_accountant_and_counts_updates_too() -> None:
    accountant = accounting.DpsgdTrainingAccountant(plug_in.TightAccountantConfig())
    setting = {
        "target_epsilon": 3.0, "accountant": accountant, "batch_sizes": 50, "num_samples": 2000,
        "target_delta": 1e-5,
    }  # fmt: skip
    found = accounting.calibrate_noise_multiplier(num_updates=160, tol=1e-6, **setting)
    ours = dpacct.calibrate(epsilon=3, delta=1e-5, rounds=160, sampling_rate=1 / 40)
    assert found == pytest.approx(ours.noise_multiplier, abs=2e-6)
    assert found == pytest.approx(0.86619, abs=1e-5)
    assert accounting.calibrate_num_updates(noise_multipliers=0.8662, **setting) == 160


def test_batch_sizes_that_follow_a_schedule_are_accounted_for() -> None:
    """The rates of a schedule are scalars of JAX, whose own accountant answers 6.73 in float32."""
    settings = accounting.DpParams(
        noise_multipliers=1.0, num_samples=2000, delta=1e-5, batch_size=50,
        batch_size_scale_schedule={100: 2},
    )  # fmt: skip
    accountant = accounting.DpsgdTrainingAccountant(plug_in.TightAccountantConfig())
    found = accountant.compute_epsilon(300, settings)
    plan = 100 * Round(1.0, Poisson(0.025)) + 200 * Round(1.0, Poisson(0.05))
    expected = dpacct.epsilon(plan, delta=1e-5)
    assert expected.lower <= found == pytest.approx(expected.upper, rel=1e-6)
