"""The audit passes sound methods and catches each planted fault."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.bounds import clip_rows, row_norms
from dpacct.rounds import Poisson, Uniform
from tests.fl.problems import cross_entropy, linear, make_clients

ADAPTIVE = fl.AdaptiveClip(0.5, indicator_noise=3.0)


def faults(**options) -> set[str]:
    # Most faults do not depend on how clients are trained; one by one is the quickest.
    options = {"vectorize": False} | options
    return {finding.check for finding in fl.audit(**options).findings if not finding.passed}


@pytest.mark.parametrize(
    "options",
    [
        {"adjacency": "replace-one", "noise_multiplier": 0.05, "vectorize": False},
        pytest.param(
            {"sampling": Poisson(0.4), "noise": fl.SecureGaussianNoise()}, marks=pytest.mark.slow
        ),
        {"sampling": Uniform(2, 5), "noise": fl.NoiseShares(2), "vectorize": False},
        pytest.param({"bound": ADAPTIVE, "adjacency": "replace-one"}, marks=pytest.mark.slow),
        {"bound": ADAPTIVE, "noise": fl.SecureGaussianNoise(), "vectorize": False},
        {"bound": fl.SmoothedNormalization(0.01), "local": fl.SGD(lr=0.5, steps=3, momentum=0.9)},
        {"bound": fl.PerLayerClip((0.1, 0.2, 0.3, 0.4)), "vectorize": False},
        {"model": linear(), "loss": cross_entropy, "clients": make_clients([5, 9, 1, 4])},
        {"method": "memory"},
    ],
)
def test_sound_methods_pass(options):
    if "method" in options:
        options = {"method": Memory()}
    result = fl.audit(**options)
    result.require()
    assert result.passed
    assert len(result.findings) >= 8
    assert "FAIL" not in str(result)


# Bounds.


@dataclass(frozen=True)
class OwnBound:
    """Clips, claims so, and does something to the clipped rows."""

    clip_norm: float
    change: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    claimed: float = 1.0

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency) * self.claimed

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        return self.change(clip_rows(rows, norms, self.clip_norm * (1 - margin)))


class PerTensorClip(OwnBound):
    """Clips each tensor to C and claims C for the whole."""

    def apply(self, rows, norms, layout, margin):
        for start, stop in layout.segments:
            part = rows[:, start:stop]
            clip_rows(part, row_norms(part), self.clip_norm)
        return rows


class CohortMedian(OwnBound):
    """Clips to the median norm of the chunk: one client's bound depends on the others."""

    def apply(self, rows, norms, layout, margin):
        return clip_rows(rows, norms, min(float(norms.median()), self.clip_norm))


class PartialLimits(OwnBound):
    """Leaves out a coordinate of its limits."""

    def limits(self, layout):
        return [(0, layout.size - 1, self.clip_norm)]


class FreeIndicator(fl.AdaptiveClip):
    """Gives the update the whole multiplier, as if the count cost nothing."""

    def update_multiplier(self, noise_multiplier, cohort):
        return noise_multiplier


# Noise.


def noisy(add=fl.GaussianNoise.add, encode=fl.GaussianNoise.encode):
    """Noise with another draw, or another form of its rows."""
    return type("Noisy", (fl.GaussianNoise,), {"add": add, "encode": encode})()


def scaled(factor, size=None):
    """Noise of another standard deviation, on sums of one size or on all of them."""

    def add(self, total, limits, std, source):
        std = std * factor if size in (None, len(total)) else std
        return fl.GaussianNoise.add(self, total, limits, std, source)

    return noisy(add)


def same_seed(_, total, __, std, ___):
    return total + std * torch.randn(len(total), generator=torch.Generator().manual_seed(1))


def laplacian(_, total, __, std, ___):
    return total + torch.distributions.Laplace(0.0, std / 2**0.5).sample(total.shape)


def silent_coordinate(_, total, __, std, ___):
    noisy = total + std * torch.randn(len(total))
    noisy[3] = total[3]
    return noisy


def no_noise(_, total, *__):
    return total


def counts_twice(_, rows, *__):
    return 2 * rows if rows.shape[1] == 1 else rows


def from_participants(_, rows, __, std):
    """Each participant adds a share. An empty cohort has no noise."""
    return rows + std / 5**0.5 * torch.randn(rows.shape)


# Methods.


@dataclass(frozen=True)
class NoiseBeforeClip(Method):
    def local_update(self, delta, client_state, context):
        return delta + torch.randn(delta.shape)


@dataclass(frozen=True)
class Smuggler(Method):
    """Keeps the raw update aside and puts it into the server state."""

    aside: list[torch.Tensor] = field(default_factory=list)

    def local_update(self, delta, client_state, context):
        self.aside.append(delta.clone())
        return delta

    def server(self, params, noised, server_state):
        moved, _ = super().server(params, noised, server_state)
        return moved, {"direction": self.aside[-1]}


@dataclass(frozen=True)
class InPlace(Method):
    """Writes the raw update into the broadcast state, in place."""

    def init(self, params):
        return {"last": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta, client_state, context):
        context.server_state["last"].copy_(delta)
        return delta


@dataclass(frozen=True)
class RealizedDenominator(Method):
    """Divides by the number of clients that trained."""

    came: list[int] = field(default_factory=list)

    def local_update(self, delta, client_state, context):
        self.came.append(1)
        return delta

    def post(self, noised, server_state):
        came = len(self.came)
        self.came.clear()
        return noised.map(lambda vector: vector * noised.cohort_size / max(came, 1))


@dataclass(frozen=True)
class Memory(Method):
    """Remembers bounded updates, and masks them."""

    mask: fl.Mask = field(default_factory=lambda: fl.RandomK(0.3))
    everyone_computes: bool = True

    def init_client(self, params):
        return {"v": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta, client_state, context):
        return delta - client_state["v"]

    def client_state(self, client_state, bounded, context):
        return {"v": client_state["v"] + 0.5 * bounded}


@dataclass(frozen=True)
class NoisyMemory(Memory):
    """Stores its own noise in its memory."""

    mask: fl.Mask = field(default_factory=fl.Dense)
    everyone_computes: bool = False

    def local_update(self, delta, client_state, context):
        own = torch.Generator()
        own.seed()
        return delta + client_state["v"] + 0.1 * torch.randn(delta.shape, generator=own)


BOTH = {"noise", "empty cohort"}


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"bound": PerTensorClip(0.3)}, {"bound"}, None),
        ({"bound": CohortMedian(5.0)}, {"alone"}, None),
        ({"bound": OwnBound(0.5, claimed=0.5)}, {"bound", "sensitivity"}, None),
        ({"bound": OwnBound(0.3, torch.Tensor.half)}, {"bound"}, {"bound"}),
        ({"bound": PartialLimits(0.3)}, {"bound"}, None),
        ({"noise": scaled(0.5)}, BOTH, None),
        ({"noise": scaled(0.95)}, BOTH, None),
        ({"noise": scaled(0.5, size=1), "bound": ADAPTIVE}, {"indicator"}, {"indicator"}),
        ({"noise": noisy(silent_coordinate)}, BOTH, BOTH),
        ({"noise": noisy(same_seed)}, {"fresh"}, None),
        (
            {"noise": noisy(encode=lambda _, rows, *__: 1.5 * rows), "noise_multiplier": 0.3},
            {"noise"},
            {"noise"},
        ),
        ({"noise": noisy(laplacian)}, BOTH, BOTH),
        ({"noise": noisy(no_noise, from_participants)}, {"empty cohort"}, None),
        ({"method": NoiseBeforeClip(), "noise": noisy(no_noise)}, BOTH, None),
        ({"method": NoisyMemory()}, {"memory"}, None),
    ],
)
def test_a_fault_is_caught(options, least, most):
    found = faults(**options)
    assert least <= found <= (most or found)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("method", [Smuggler(), RealizedDenominator()])
def test_a_state_that_follows_from_raw_updates_is_caught(method):
    assert "release" in faults(method=method)


@pytest.mark.usefixtures("unwatched")
def test_a_broadcast_state_that_is_written_to_is_not_the_released_one():
    assert fl.audit(InPlace(), draws=4).passed


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"method": InPlace()}, Unsupported, "last is written to in place"),
        ({"bound": FreeIndicator(0.5, indicator_noise=3.0)}, InvalidParameter, "bound"),
        ({"model": linear()}, InvalidParameter, "all of model, loss and clients"),
        (
            {"model": linear(), "loss": cross_entropy, "clients": make_clients([3, 3])},
            InvalidParameter,
            "at least three",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        fl.audit(**options)


def test_an_indicator_that_moves_the_count_too_far_is_caught(monkeypatch):
    noise = noisy(encode=counts_twice)
    monkeypatch.setattr("dpacct.fl.auditing.audit.GaussianNoise", type(noise))
    assert faults(bound=ADAPTIVE, noise=noise) == {"indicator"}


def test_an_indicator_that_the_charge_forgets_is_caught(monkeypatch):
    def forgetful(plan, bound, *rest, event=RoundNoise.event):
        return event(plan, fl.Clip(bound.clip_norm), *rest)

    monkeypatch.setattr(RoundNoise, "event", forgetful)
    assert faults(bound=FreeIndicator(0.5, indicator_noise=3.0)) == {"joint charge"}


def test_a_margin_above_one_is_caught(monkeypatch):
    monkeypatch.setattr("dpacct.fl.privacy.findings.MARGIN", 1.03)
    assert faults() == {"bound"}


def test_a_sum_that_rounds_is_caught(monkeypatch):
    def rounded(total, rows):
        total.copy_((total + rows.sum(dim=0)).bfloat16())

    monkeypatch.setattr("dpacct.fl.engine.engine.add_rows", rounded)
    assert "alone" in faults()


def test_a_failed_audit_can_be_required():
    with pytest.raises(fl.AuditFailed, match="standard deviation"):
        fl.audit(noise=scaled(0.5), vectorize=False).require()


def test_a_caller_without_gradients_gets_the_same_answer():
    found = []
    for around in (nullcontext, torch.no_grad):
        with around():
            findings = fl.audit(vectorize=False).findings
        found += [one.detail for one in findings if one.check == "sensitivity"]
    assert found[0] == found[1]
    assert "by up to 0 " not in found[0]
