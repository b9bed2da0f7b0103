"""The plug-in for JAX Privacy; CI installs no JAX, so that these run where somebody has it."""

from __future__ import annotations

import pytest

import dpacct

accounting = pytest.importorskip("jax_privacy.accounting", reason="jax-privacy is not installed")
plug_in = pytest.importorskip("dpacct.interop.jax_privacy")


def test_its_calibration_asks_the_tight_accountant() -> None:
    found = accounting.calibrate_noise_multiplier(
        target_epsilon=3.0,
        accountant=accounting.DpsgdTrainingAccountant(plug_in.TightAccountantConfig()),
        batch_sizes=50,
        num_updates=160,
        num_samples=2000,
        target_delta=1e-5,
        tol=1e-6,
    )
    ours = dpacct.calibrate(epsilon=3, delta=1e-5, rounds=160, sampling_rate=1 / 40)
    assert found == pytest.approx(ours.noise_multiplier, abs=2e-6)
    assert found == pytest.approx(0.86619, abs=1e-5)


def test_it_counts_updates_too() -> None:
    steps = accounting.calibrate_num_updates(
        target_epsilon=3.0,
        accountant=accounting.DpsgdTrainingAccountant(plug_in.TightAccountantConfig()),
        noise_multipliers=0.8662,
        batch_sizes=50,
        num_samples=2000,
        target_delta=1e-5,
    )
    assert steps == 160
