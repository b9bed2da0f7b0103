"""The plug-in for JAX Privacy; CI installs no JAX, so that these run where somebody has it."""

from __future__ import annotations

import pytest

import dpacct
from dpacct import Poisson, Round

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


def test_batch_sizes_that_follow_a_schedule_are_accounted_for() -> None:
    """The rates of a schedule are scalars of JAX. In float32 its own PLD accountant answers 6.73,
    more than all steps cost at the larger rate.
    """
    settings = accounting.DpParams(
        noise_multipliers=1.0,
        num_samples=2000,
        delta=1e-5,
        batch_size=50,
        batch_size_scale_schedule={100: 2},
    )
    accountant = accounting.DpsgdTrainingAccountant(plug_in.TightAccountantConfig())
    found = accountant.compute_epsilon(300, settings)
    plan = 100 * Round(1.0, Poisson(0.025)) + 200 * Round(1.0, Poisson(0.05))
    expected = dpacct.epsilon(plan, delta=1e-5)
    assert expected.lower <= found == pytest.approx(expected.upper, rel=1e-6)
