"""The audit passes what is right and catches each fault that was planted."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import clip_rows, row_norms
from dpacct.rounds import Poisson, Uniform
from tests.fl.problems import cross_entropy, linear, make_clients


def faults(**options) -> set[str]:
    # Most faults do not depend on how clients are trained; one by one is the quickest.
    options = {"vectorize": False} | options
    return {finding.check for finding in fl.audit(**options).findings if not finding.passed}


@pytest.mark.parametrize(
    "options",
    [
        {"adjacency": "replace-one", "noise_multiplier": 0.05},
        {"sampling": Poisson(0.4), "noise": fl.SecureGaussianNoise()},
        {"sampling": Uniform(2, 5), "noise": fl.NoiseShares(2)},
        {"bound": fl.AdaptiveClip(0.5, indicator_noise=3.0), "adjacency": "replace-one"},
        {"bound": fl.AdaptiveClip(0.5, indicator_noise=3.0), "noise": fl.SecureGaussianNoise()},
        {"bound": fl.SmoothedNormalization(0.01), "local": fl.SGD(lr=0.5, steps=3, momentum=0.9)},
        {"bound": fl.PerLayerClip((0.1, 0.2, 0.3, 0.4))},
        {"model": linear(), "loss": cross_entropy, "clients": make_clients([5, 9, 1, 4])},
    ],
)
def test_what_is_right_passes(options):
    result = fl.audit(**options)
    result.require()
    assert result.passed
    assert len(result.findings) >= 8
    assert "FAIL" not in str(result)


def test_masks_and_memories_pass():
    @dataclass(frozen=True)
    class Memory(Method):
        mask: fl.Mask = field(default_factory=lambda: fl.RandomK(0.3))
        everyone_computes: bool = True

        def init_client(self, params):
            return {"v": torch.zeros(sum(value.numel() for value in params.values()))}

        def local_update(self, delta, client_state, context):
            return delta - client_state["v"]

        def client_state(self, client_state, bounded, context):
            return {"v": client_state["v"] + 0.5 * bounded}

    fl.audit(Memory()).require()


@dataclass(frozen=True)
class PerTensorClip:
    """Clips each tensor to C and claims C for the whole."""

    clip_norm: float

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency)

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        for start, stop in layout.segments:
            part = rows[:, start:stop]
            clip_rows(part, row_norms(part), self.clip_norm)
        return rows


def test_clipping_tensor_by_tensor_is_caught():
    assert "bound" in faults(bound=PerTensorClip(0.3))


@dataclass(frozen=True)
class CohortMedian:
    """Clips to the median norm of the chunk: one client's bound depends on the others."""

    clip_norm: float

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency)

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        return clip_rows(rows, norms, min(float(norms.median()), self.clip_norm))


def test_a_bound_that_looks_at_other_clients_is_caught():
    assert "alone" in faults(bound=CohortMedian(5.0))


class HalfTheNoise(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        return super().add(total, limits, std / 2, source)


def test_half_the_noise_is_caught():
    assert faults(noise=HalfTheNoise()) >= {"noise", "empty cohort"}


class LittleLess(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        return super().add(total, limits, 0.95 * std, source)


def test_five_percent_less_noise_is_caught():
    assert faults(noise=LittleLess()) >= {"noise", "empty cohort"}


class HalfTheNoiseOnCounts(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        return super().add(total, limits, std / 2 if len(total) == 1 else std, source)


def test_half_the_noise_on_the_indicators_is_caught():
    bound = fl.AdaptiveClip(0.5, indicator_noise=3.0)
    assert faults(bound=bound, noise=HalfTheNoiseOnCounts()) == {"indicator"}


class CountsTwice(fl.GaussianNoise):
    def encode(self, rows, limits, std):
        return super().encode(2 * rows if rows.shape[1] == 1 else rows, limits, std)


def test_an_indicator_that_moves_the_count_too_far_is_caught(monkeypatch):
    monkeypatch.setattr("dpacct.fl.auditing.audit.GaussianNoise", CountsTwice)
    bound = fl.AdaptiveClip(0.5, indicator_noise=3.0)
    assert faults(bound=bound, noise=CountsTwice()) == {"indicator"}


class FreeIndicator(fl.AdaptiveClip):
    """Gives the update the whole multiplier, as if the count cost nothing."""

    def update_multiplier(self, noise_multiplier, cohort):
        return noise_multiplier


def test_an_indicator_that_is_not_charged_for_is_refused():
    with pytest.raises(InvalidParameter, match="bound"):
        fl.audit(bound=FreeIndicator(0.5, indicator_noise=3.0))


def test_an_indicator_that_the_charge_forgets_is_caught(monkeypatch):
    event = NoisePlan.event
    monkeypatch.setattr(
        NoisePlan,
        "event",
        lambda plan, bound, *rest: event(plan, fl.Clip(bound.clip_norm), *rest),
    )
    bound = FreeIndicator(0.5, indicator_noise=3.0)
    assert faults(bound=bound) == {"joint charge"}


class SameSeed(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        generator = torch.Generator().manual_seed(1)
        return total + std * torch.randn(len(total), generator=generator)


def test_a_generator_that_starts_over_each_round_is_caught():
    assert "fresh" in faults(noise=SameSeed())


class CountsMore(fl.GaussianNoise):
    def encode(self, rows, limits, std):
        return 1.5 * super().encode(rows, limits, std)


def test_a_sum_that_holds_contributions_more_than_once_is_caught():
    assert faults(noise=CountsMore(), noise_multiplier=0.3) == {"noise"}


class Laplacian(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        return total + torch.distributions.Laplace(0.0, std / 2**0.5).sample(total.shape)


def test_noise_of_another_law_is_caught():
    assert faults(noise=Laplacian()) == {"noise", "empty cohort"}


class FromParticipants(fl.GaussianNoise):
    """Each participant adds a share; nobody adds any where nobody came."""

    def encode(self, rows, limits, std):
        return rows + std / 5**0.5 * torch.randn(rows.shape)

    def add(self, total, limits, std, source):
        return total


def test_noise_from_participants_alone_is_caught():
    found = faults(noise=FromParticipants())
    assert "empty cohort" in found


class NoNoise(fl.GaussianNoise):
    def add(self, total, limits, std, source):
        return total


@dataclass(frozen=True)
class NoiseBeforeClip(Method):
    def local_update(self, delta, client_state, context):
        return delta + torch.randn(delta.shape)


def test_noise_before_the_clip_instead_of_after_it_is_caught():
    assert faults(method=NoiseBeforeClip(), noise=NoNoise()) >= {"noise", "empty cohort"}


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


def test_a_raw_update_that_is_kept_aside_is_refused():
    with pytest.raises(Unsupported, match="Smuggler's attribute aside"):
        fl.audit(Smuggler())


@pytest.mark.usefixtures("unwatched")
def test_a_raw_update_in_the_server_state_is_caught():
    assert "release" in faults(method=Smuggler())


@dataclass(frozen=True)
class InPlace(Method):
    """Writes the raw update into the broadcast state, in place."""

    def init(self, params):
        return {"last": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta, client_state, context):
        context.server_state["last"].copy_(delta)
        return delta


def test_a_broadcast_state_that_is_written_to_is_refused():
    with pytest.raises(Unsupported, match="writes to the server state 'last'"):
        fl.audit(InPlace())


@pytest.mark.usefixtures("unwatched")
def test_a_broadcast_state_that_is_written_to_is_not_the_released_one():
    assert fl.audit(InPlace(), draws=4).passed


@dataclass(frozen=True)
class RealizedDenominator(Method):
    """Counts who came, and divides by that."""

    came: list[int] = field(default_factory=list)

    def local_update(self, delta, client_state, context):
        self.came.append(1)
        return delta

    def post(self, noised, server_state):
        came = len(self.came)
        self.came.clear()
        return noised.map(lambda vector: vector * noised.cohort_size / max(came, 1))


@pytest.mark.usefixtures("unwatched")
def test_a_realized_denominator_is_caught():
    assert "release" in faults(method=RealizedDenominator())


@dataclass(frozen=True)
class NoisyMemory(Method):
    """Stores its own noise in its memory."""

    def init_client(self, params):
        return {"v": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta, client_state, context):
        own = torch.Generator()
        own.seed()
        return delta + client_state["v"] + 0.1 * torch.randn(delta.shape, generator=own)

    def client_state(self, client_state, bounded, context):
        return {"v": bounded.clone()}


def test_a_memory_that_holds_noise_is_caught():
    assert "memory" in faults(method=NoisyMemory())


@dataclass(frozen=True)
class Understated:
    """Claims half of what it lets through."""

    clip_norm: float

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency) / 2

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        return clip_rows(rows, norms, self.clip_norm)


def test_an_understated_sensitivity_is_caught():
    assert faults(bound=Understated(0.5)) >= {"bound", "sensitivity"}


@dataclass(frozen=True)
class HalfPrecision(Understated):
    """Bounds as it should, and rounds to half precision."""

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency)

    def apply(self, rows, norms, layout, margin):
        return clip_rows(rows, norms, self.clip_norm * (1 - margin)).half()


def test_half_precision_is_caught():
    assert faults(bound=HalfPrecision(0.3)) == {"bound"}


def test_a_margin_above_one_is_caught(monkeypatch):
    monkeypatch.setattr("dpacct.fl.privacy.findings.MARGIN", 1.03)
    assert faults() == {"bound"}


def test_limits_that_leave_out_coordinates_are_caught():
    class Partial(HalfPrecision):
        def limits(self, layout):
            return [(0, layout.size - 1, self.clip_norm)]

    assert "bound" in faults(bound=Partial(0.3))


def test_a_sum_that_rounds_is_caught(monkeypatch):
    def rounded(total, rows):
        total.copy_((total + rows.sum(dim=0)).bfloat16())

    monkeypatch.setattr("dpacct.fl.engine.engine.add_rows", rounded)
    assert "alone" in faults()


def test_a_failed_audit_can_be_required():
    with pytest.raises(fl.AuditFailed, match="standard deviation"):
        fl.audit(noise=HalfTheNoise()).require()


def test_false_alarms_are_rare():
    for _ in range(8):
        assert fl.audit(draws=6, vectorize=False).passed


@pytest.mark.parametrize(
    "options",
    [
        {"model": linear()},
        {"model": linear(), "loss": cross_entropy, "clients": make_clients([3, 3])},
    ],
)
def test_half_a_problem_is_refused(options):
    with pytest.raises(InvalidParameter):
        fl.audit(**options)


def test_a_caller_without_gradients_is_told_the_same():
    plain = fl.audit()
    with torch.no_grad():
        found = fl.audit()
    [moved] = [one.detail for one in plain.findings if one.check == "sensitivity"]
    assert moved in [one.detail for one in found.findings]
    assert "by up to 0 " not in moved
