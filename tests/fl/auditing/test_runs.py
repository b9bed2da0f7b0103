"""Audits of whole runs: what is right passes, and planted faults are seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from dpacct import Budget, Full, Poisson, Round, Uniform, epsilon, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries, with_canaries
from dpacct.fl.auditing.canary_audit import least_canaries
from dpacct.fl.auditing.runs import audit_run
from tests.fl.problems import cross_entropy, make_clients

pytestmark = pytest.mark.usefixtures("uncounted")


def builder(**options):
    given = {
        "rounds": 15,
        "clip_norm": 0.5,
        "noise_multiplier": 3.0,
        "sampling": Full(),
        "local": fl.SGD(lr=0.1, steps=1),
        "delta": 1e-5,
        "vectorize": True,
    } | options

    def build(clients):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 120), nn.Tanh(), nn.Linear(120, 3))
        return fl.Federation(model, cross_entropy, clients, **given)

    return build


# Noise comes from the operating system, so that an interval misses as often as it may: what it must
# hold is asserted of intervals that miss with a probability of 1e-8.
SURE = 1 - 1e-8


def audited(canaries=120, confidence=0.95, **options):
    # Coins and directions from a seed: what passes here passes everywhere but for the noise.
    known = torch.Generator().manual_seed(5)
    people = make_clients([5, 3, 4])
    build = builder(**options)
    return audit_run(build, people, canaries=canaries, confidence=confidence, generator=known)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Poisson(0.4), "noise_multiplier": 1.0},
        {"adjacency": "replace-one", "vectorize": False, "rounds": 3},
        {"secure_noise": True, "clip_norm": None, "bound": fl.PerLayerClip((0.2, 0.2, 0.3, 0.1))},
        {"method": fl.AlphaNormEC(), "clip_norm": None},
        # Most directions have no coordinate in most rounds.
        {"method": fl.FedSMPRandK(0.05)},
        {"method": fl.Scaffold(), "server": fl.Adam()},
        pytest.param(
            {"noise": fl.NoiseShares(minimum=20), "adjacency": "replace-one", "rounds": 6},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"sampling": Uniform(50, 123), "noise_multiplier": 8.0, "rounds": 6},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_right_passes(options):
    found = audited(confidence=SURE, **({"rounds": 6} | options))
    assert found.passed
    found.require()
    assert found.shown.epsilon < found.charged.upper
    assert found.gaussian_epsilon < found.charged.upper


def test_most_of_a_gaussian_epsilon_is_shown():
    found = audited(noise_multiplier=1.0, rounds=10, canaries=200)
    assert found.gaussian_epsilon > found.charged.upper / 2
    assert found.shown.epsilon > 1.0


def test_a_count_of_clipped_clients_has_noise_of_its_own():
    # Canaries show the spread of the updates. Beside a count of clipped clients of little noise,
    # most of what is charged is the count's, and nobody looked at its noise.
    bound = fl.AdaptiveClip(0.5, indicator_noise=1.5)
    found = audited(200, clip_norm=None, bound=bound, noise_multiplier=2.0)
    assert found.passed
    # Precisions add up; one client moves the count by half, as it is centered.
    updates = (2.0**-2 - (0.5 / 1.5) ** 2) ** -0.5
    seen = (15 * Round(updates)).scale_noise(found.shown.noise_factor)
    assert found.gaussian_epsilon == pytest.approx(epsilon(seen, delta=1e-5).lower, rel=1e-4)
    assert found.charged.lower == pytest.approx(
        epsilon(15 * Round(2.0), delta=1e-5).lower, rel=1e-4
    )


@dataclass(frozen=True)
class Quieter(fl.GaussianNoise):
    """Noise of a standard deviation that is a part of what it says."""

    part: float = 0.6

    def add(self, total, limits, std, source):
        return super().add(total, limits, self.part * std, source)


@dataclass(frozen=True)
class Longer(fl.GaussianNoise):
    """Noise whose sum holds each contribution one and a half times."""

    def encode(self, rows, limits, std):
        return 1.5 * super().encode(rows, limits, std)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"noise": Quieter()}, "noise"),
        ({"noise": Quieter(), "sampling": Poisson(0.4)}, "noise"),
        ({"noise": Longer(), "noise_multiplier": 1.0}, "contribution"),
    ],
)
def test_a_fault_is_seen(options, fault):
    # The preflight would refuse these runs; the canaries must see it without.
    found = audited(preflight=False, **options)
    assert fault in found.shown.faults
    assert not found.passed
    with pytest.raises(fl.AuditFailed):
        found.require()


@pytest.mark.parametrize("part", [0.0, 1e-9])
def test_no_noise_at_all_is_a_fault_too(part):
    found = audited(preflight=False, noise=Quieter(part=part), rounds=3)
    assert "noise" in found.shown.faults
    assert found.gaussian_epsilon > 1e6


def test_the_preflight_sees_them_before():
    with pytest.raises(fl.AuditFailed):
        audited(noise=Quieter())


def test_canaries_are_trained_and_bounded_like_all_others():
    canaries = Canaries(40)
    people = with_canaries(make_clients([5, 3]), canaries, silent=True)
    canaries.aim(600, 0.5, replaced=False)
    assert len(people) == 42
    assert len(people[-40:]) == 40
    inside = [number for number in range(40) if canaries.coins[number]]
    for number in range(40):
        update = people[2 + number].update
        assert bool(update.any()) == (number in inside)
    rows = torch.stack([canaries.raw(number) for number in range(40)]).double()
    assert torch.equal((rows @ rows.T).fill_diagonal_(0), torch.zeros(40, 40))
    assert rows.norm(dim=1).min() > 0.5
    assert not people[0].update.any()
    assert canaries.count > 40


def test_coins_are_fair_and_decide_what_is_sent():
    canaries = Canaries(2000, torch.Generator().manual_seed(3))
    assert 800 < int(canaries.coins.sum()) < 1200
    for replaced, opposite in ((False, 0.0), (True, -1.0)):
        canaries.aim(6000, 0.5, replaced=replaced)
        for number in range(50):
            factor = 1.0 if canaries.coins[number] else opposite
            assert torch.equal(canaries.sent(number), factor * canaries.raw(number))


def test_directions_project_on_themselves():
    canaries = Canaries(6)
    canaries.aim(50, 0.5, replaced=False)
    rows = torch.stack([canaries.raw(number) for number in range(canaries.count)])
    vector = torch.randn(50)
    found = canaries.project(vector, rows.sum(dim=0))
    assert torch.allclose(found, (rows @ vector).double())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"canaries": 5}, f"canaries is 5; .* at least {least_canaries(1e-6)}"),
        ({"canaries": 5000}, "canaries"),
        ({"canaries": 10**12}, "canaries"),
        ({"canaries": 40, "error": 0.0}, "error"),
        ({"canaries": 40, "confidence": 1.0}, "confidence"),
        ({"canaries": 40, "others": "loud"}, "others"),
        ({"canaries": 40, "generator": 7}, "generator is 'int'; it is"),
    ],
)
def test_bad_audits_are_refused(options, name):
    with pytest.raises(InvalidParameter, match=name):
        audit_run(builder(), make_clients([5, 3]), **options)


def test_a_run_without_a_promise_is_refused():
    with pytest.raises(Unsupported, match="promised"):
        audit_run(builder(seed=1), make_clients([5, 3]), canaries=40)


def test_a_run_that_its_budget_ends_is_audited_as_far_as_it_came():
    found = audited(budget=Budget(3, 1e-5), delta=None)
    assert found.passed
    assert found.rounds < 15
    assert found.charged.upper <= 3


def test_a_run_that_goes_on_is_refused(tmp_path):
    files = {"checkpoint": tmp_path / "a.checkpoint", "ledger": tmp_path / "a.ledger"}
    with builder(**files)(make_clients([5, 3, 4] * 21)) as first:
        next(iter(first))
        first.save()
    build = builder(**files)
    with pytest.raises(Unsupported, match="from its beginning"):
        audit_run(lambda people: build(people).resume(), make_clients([5, 3, 4]), canaries=60)


@pytest.mark.parametrize("name", ["checkpoint", "ledger"])
def test_an_audit_charges_no_ledger_and_writes_no_checkpoint(tmp_path, name):
    file = tmp_path / f"a.{name}"
    with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
        audited(canaries=40, **{name: file})
    assert not list(tmp_path.iterdir())


def test_a_run_of_other_clients_is_refused():
    others = make_clients([5, 3, 4])
    build = builder()
    with pytest.raises(InvalidParameter, match="build"):
        audit_run(lambda _: build(others), make_clients([5, 3]), canaries=40)


def test_an_audit_leaves_torchs_generator_alone():
    """The run draws what it draws without an audit, and its seed does not choose the canaries."""
    build = seeded_once(builder(rounds=2))
    torch.manual_seed(9)
    build(make_clients([5, 3]))
    without = torch.get_rng_state()
    torch.manual_seed(9)
    audit_run(build, make_clients([5, 3]), canaries=40)
    assert torch.equal(torch.get_rng_state(), without)


def seeded_once(build):
    """The model of a run as its author draws it, from whatever state there is."""

    def built(clients):
        state = torch.get_rng_state()
        run = build(clients)
        torch.set_rng_state(state)
        torch.rand(5)
        return run

    return built


def test_a_seed_does_not_choose_coins_and_a_generator_does():
    drawn = []
    for known in (None, None, *(torch.Generator().manual_seed(4) for _ in range(2))):
        torch.manual_seed(9)
        canaries = Canaries(200, known)
        canaries.aim(2000, 0.5, replaced=False)
        drawn.append(canaries.drawn)
    # 200 fair coins twice: one time in 2^200.
    assert not any(map(torch.equal, drawn[0], drawn[1]))
    assert all(map(torch.equal, drawn[2], drawn[3]))


def test_several_processes_of_which_there_is_one(tmp_path):
    group = {"world_size": 1, "rank": 0, "init_method": f"file://{tmp_path}/rendezvous"}
    torch.distributed.init_process_group("gloo", **group)
    try:
        assert audited(canaries=40, distributed=True).passed
        with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
            audited(canaries=40, distributed=True, ledger=tmp_path / "a.ledger")
    finally:
        torch.distributed.destroy_process_group()
