"""DP-Fed-LS: the projection of local iterates, and the smoothing of what is released."""

from __future__ import annotations

import pytest
import torch

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.methods import DPFedAvg, DPFedLS
from dpacct.fl.methods.protocol import Context
from dpacct.fl.postprocess import james_stein, soft_threshold
from tests.fl.methods.stage import moved, points, quadratics, simulate, vector
from tests.fl.problems import cross_entropy, federation, make_clients, perceptron

LAYOUT = Layout.of(dict(perceptron().named_parameters()))


def run(method, rounds=1, **options):
    settings = {
        "loss": cross_entropy, "clip_norm": 0.3,
        "local": fl.SGD(lr=0.5, epochs=3, batch_size=4), "noise": fl.GaussianNoise(),
        "noise_multiplier": 0.5,
    }  # fmt: skip
    return simulate(method, perceptron(), make_clients([8, 3, 5]), rounds, **(settings | options))


@pytest.mark.usefixtures("unwatched")
def test_every_local_iterate_stays_in_the_ball():
    seen: list[float] = []

    class Watched(DPFedLS):
        def gradient(self, loss, params, batch, context):
            gap = torch.cat([(params[n] - context.anchor[n]).flatten() for n in params])
            seen.append(float(gap.norm()))
            return loss.gradient(params, batch)

        def local_update(self, delta, client_state, context):
            seen.append(float(delta.norm()))
            return delta

    run(Watched(smoothing=0.0), clip_norm=0.05)
    assert max(seen) <= 0.05 * (1 + 1e-5)
    # The ball was left, and returned to, at most of the steps.
    assert sum(length > 0.0499 for length in seen) > len(seen) / 2


def test_the_projection_is_the_nearest_point_and_leaves_short_steps_alone():
    anchor = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[2.0]])}
    context = Context(1, anchor, {}, fl.SGD(), 0.1, 1, clip_norm=0.5)

    def projected(gap):
        gap = torch.tensor(gap)
        found = DPFedLS().after_step(
            {"a": anchor["a"] + gap[:2], "b": anchor["b"] + gap[2:]}, context
        )
        return vector(found) - vector(anchor)

    # Inside, outside, on the sphere, and at the anchor.
    for gap, expected in (
        ([0.1, -0.2, 0.3], [0.1, -0.2, 0.3]),
        ([3.0, 0.0, 4.0], [0.3, 0.0, 0.4]),
        ([0.3, 0.0, 0.4], [0.3, 0.0, 0.4]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ):
        torch.testing.assert_close(projected(gap), torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_with_one_step_the_projection_is_clipping():
    for steps, rounds, least, most in ((1, 3, 0, 1e-5), (5, 1, 0.02, 9)):
        options = {"local": fl.SGD(lr=2.0, steps=steps, batch_size=None), "noise_multiplier": 1e-3}
        one, two = (run(method, rounds, **options) for method in (DPFedLS(0.0), DPFedAvg()))
        gap = float((vector(one[1].params) - vector(two[1].params)).norm())
        # Projected to C, clipped to C (1 - 2^-17); rounding of float32 besides.
        assert least <= gap < most


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("james-stein", james_stein),
        ("james-stein-plus", lambda v, s: james_stein(v, s, positive_part=True)),
        ("soft-threshold", soft_threshold),
    ],
)
def test_denoisers_are_told_the_noise_on_the_mean(name, change):
    plain = moved(run(DPFedLS(smoothing=0.0)))[0]
    found = moved(run(DPFedLS(denoiser=name)))[0]
    for start, stop in LAYOUT.segments:
        expected = change(plain[start:stop], 0.5 * 0.3 / 3)
        assert torch.allclose(found[start:stop], expected, atol=1e-6)


def test_an_empty_poisson_cohort_releases_smoothed_noise():
    clients = quadratics([[1.0] * 2000] * 10)
    options = {"noise": fl.GaussianNoise(), "noise_multiplier": 1.0, "clip_norm": 2.0}
    for strength, gain in ((0.0, 1.0), (1.0, 0.2683)):
        final = simulate(
            DPFedLS(smoothing=strength), points([0.0] * 2000), clients, 1,
            sampling=fl.Poisson(0.5), cohorts=[[]], **options,
        )[-1]  # fmt: skip
        # Noise of standard deviation z C / (q N) on each coordinate of the mean.
        assert float(vector(final.params).var()) == pytest.approx(0.16 * gain, rel=0.2)


def test_what_is_projected_does_not_count_as_clipped():
    with federation(
        perceptron(), make_clients([8] * 4), method=DPFedLS(smoothing=1.0), clip_norm=0.05,
        rounds=1, local=fl.SGD(lr=2.0, epochs=3, batch_size=4),
    ) as run:  # fmt: skip
        report = run.run()
    assert report.diagnostics.norm_median == pytest.approx(0.05, rel=1e-5)
    assert report.clipped_fraction == 0
