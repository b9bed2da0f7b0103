"""Audits by canaries of runs, of DP-SGD, and of one round: sound runs pass, faults are seen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from dpacct import Budget, Poisson, Round, Uniform, epsilon, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries, with_canaries
from dpacct.fl.auditing.runs import least_canaries
from dpacct.fl.privacy.randomness import Seeded
from tests.fl.problems import federation, make_clients

pytestmark = pytest.mark.usefixtures("uncounted")
SLOW = pytest.mark.slow
# Noise comes from the operating system, so that an interval misses as often as it may: sound runs
# are tested with intervals that miss with a probability of 1e-8.
SURE = 1 - 1e-8
# A long audit, as the documentation has it.
LONG = {"canaries": 120, "rounds": 15}
# The fewest repetitions of a round for an error of 1e-6.


@dataclass(frozen=True)
class Quieter(fl.GaussianNoise):
    """Noise of a smaller standard deviation than charged."""

    part: float = 0.6

    def add(self, total, limits, std, source):
        return super().add(total, limits, self.part * std, source)


@dataclass(frozen=True)
class Repeated(fl.GaussianNoise):
    """Noise that is the same at each run of the test."""

    source: Seeded = field(default_factory=lambda: Seeded(3))

    def add(self, total, limits, std, source):
        return super().add(total, limits, std, self.source)


@dataclass(frozen=True)
class Longer(fl.GaussianNoise):
    """Noise whose sum holds each contribution one and a half times."""

    def encode(self, rows, limits, std):
        return 1.5 * super().encode(rows, limits, std)


@dataclass(frozen=True)
class Forgetful(fl.GaussianNoise):
    """Noise that is missing in some rounds, and there in some coordinates."""

    rounds: Collection[int]
    coordinates: slice = field(default_factory=lambda: slice(None))
    calls: list[int] = field(default_factory=list)

    def add(self, total, limits, std, source):
        self.calls.append(len(self.calls) + 1)
        noisy = super().add(total, limits, std, source)
        # The first one is that of the rehearsal.
        if len(self.calls) - 1 in self.rounds:
            noisy[self.coordinates] = total[self.coordinates]
        return noisy


def builder(**options):
    given = {
        "rounds": 4, "clip_norm": 0.5, "noise_multiplier": 3.0, "delta": 1e-5, "vectorize": True,
    } | options  # fmt: skip

    def build(clients):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 120), nn.Tanh(), nn.Linear(120, 3))
        local = {} if isinstance(clients, fl.Examples) else {"local": fl.SGD(lr=0.1, steps=1)}
        return federation(model, clients, **local, **given)

    return build


def examples(count=30):
    return fl.Examples(make_clients([count])[0])


def audited(people=None, canaries=60, confidence=SURE, build=None, error=1e-6, **options):
    # Coins and directions from a seed: what passes here passes everywhere but for the noise.
    given = {"generator": torch.Generator().manual_seed(5)}
    given |= {name: options.pop(name) for name in ("generator", "others") if name in options}
    people = people or make_clients([5, 3, 4])
    build = build or builder(**options)
    return fl.audit_run(
        build, people, canaries=canaries, confidence=confidence, error=error, **given
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Poisson(0.4), "noise_multiplier": 1.0, "rounds": 8},
        {"adjacency": "replace-one", "vectorize": False, "rounds": 3},
        {
            "secure_noise": True,
            "clip_norm": None,
            "bound": fl.PerLayerClip((0.2, 0.2, 0.3, 0.1)),
            "rounds": 2,
        },
        pytest.param({"method": fl.AlphaNormEC(), "clip_norm": None, "rounds": 2}, marks=SLOW),
        # Most directions have no coordinate in most rounds.
        {"method": fl.FedSMPRandK(0.05)},
        pytest.param({"method": fl.Scaffold(), "server": fl.Adam()}, marks=SLOW),
        {"people": examples(), "method": fl.FedSMPRandK(), "secure_noise": True, "rounds": 3},
        pytest.param({"people": examples(), "sampling": Poisson(0.4), **LONG}, marks=SLOW),
        pytest.param({"people": examples(), "vectorize": False, "rounds": 3}, marks=SLOW),
        pytest.param(
            {"noise": fl.NoiseShares(minimum=20), "adjacency": "replace-one", **LONG}, marks=SLOW
        ),
        pytest.param({"sampling": Uniform(50, 123), "noise_multiplier": 8.0, **LONG}, marks=SLOW),
    ],
)
def test_a_sound_run_passes(options):
    found = audited(**options)
    found.require()
    assert found.passed
    assert found.clients == (30 if "people" in options else 3)
    assert found.shown.epsilon < found.charged.upper
    assert found.gaussian_epsilon < found.charged.upper


def test_most_of_a_gaussian_epsilon_is_shown():
    found = audited(noise_multiplier=0.25, confidence=0.95)
    assert found.gaussian_epsilon > found.charged.upper / 2
    assert found.shown.epsilon > 1.0


def test_canaries_of_examples_reach_the_release():
    found = audited(examples(), noise_multiplier=0.2)
    # Missed only by noise of more than eight standard deviations.
    assert found.shown.noise_factor < 2.4
    assert found.passed


def test_a_count_of_clipped_clients_has_noise_of_its_own():
    # Canaries show the spread of the updates. Beside a count of clipped clients of little noise,
    # most of the charge is the count's, whose noise was not measured.
    bound = fl.AdaptiveClip(0.5, indicator_noise=1.5)
    options = {"clip_norm": None, "bound": bound, "noise_multiplier": 2.0, "noise": Repeated()}
    found = audited(confidence=0.95, **options)
    assert found.passed
    # Precisions add up; one client moves the count by half, as it is centered.
    updates = (2.0**-2 - (0.5 / 1.5) ** 2) ** -0.5
    seen = (4 * Round(updates)).scale_noise(found.shown.noise_factor)
    assert found.gaussian_epsilon == pytest.approx(epsilon(seen, delta=1e-5).lower, rel=1e-4)
    charged = epsilon(4 * Round(2.0), delta=1e-5).lower
    assert found.charged.lower == pytest.approx(charged, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"noise": Quieter()}, "noise"),
        pytest.param(
            {"noise": Quieter(), "sampling": Poisson(0.4), "rounds": 8}, "noise", marks=SLOW
        ),
        ({"noise": Longer(), "noise_multiplier": 0.25}, "contribution"),
        pytest.param({"noise": Quieter(), "people": examples()}, "noise", marks=SLOW),
        ({"noise": Longer(), "people": examples(), "noise_multiplier": 0.25}, "contribution"),
        ({"noise": Quieter(part=0.0), "rounds": 2}, "noise"),
        pytest.param({"noise": Quieter(part=1e-9), "rounds": 2}, "noise", marks=SLOW),
        pytest.param(
            {"noise": Longer(), "noise_multiplier": 1.0, **LONG}, "contribution", marks=SLOW
        ),
    ],
)
def test_a_fault_is_seen(options, fault):
    found = audited(**options)
    assert fault in found.shown.faults
    assert not found.passed
    if options["noise"] == Quieter(part=0.0):
        assert found.gaussian_epsilon > 1e6
    with pytest.raises(fl.AuditFailed):
        found.require()


@pytest.mark.parametrize(
    ("noise", "options", "where"),
    [
        (Forgetful([12]), {"rounds": 20}, "round 12, tensor 1"),
        pytest.param(Forgetful([3]), {"sampling": Poisson(0.3)}, "round 3, tensor 1", marks=SLOW),
        pytest.param(
            Forgetful([2]), {"canaries": 800, "rounds": 5}, "round 2, tensor 1", marks=SLOW
        ),
        (Forgetful(range(99), slice(640, 641)), {}, "coordinate 641"),
        (Forgetful(range(99), slice(640, 641)), {"sampling": Poisson(0.3)}, "coordinate 641"),
        (Forgetful(range(99), slice(5, None, 100)), {}, "tensor 1"),
        # A bias of three weights.
        (Forgetful(range(99), slice(1200, None)), {"adjacency": "replace-one"}, "tensor 4"),
        (Forgetful([7], slice(640, 672)), {}, "round 7, block 21"),
    ],
)
def test_noise_that_is_missing_in_one_place_is_seen(noise, options, where):
    found = audited(**({"noise": noise, "noise_multiplier": 1.0, "rounds": 8} | options))
    assert found.shown.faults == ("noise",)
    assert where in found.faults[0]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"canaries": 5}, InvalidParameter, f"canaries is 5; .* at least {least_canaries(1e-6)}"),
        ({"canaries": 5000}, InvalidParameter, "canaries"),
        ({"canaries": 10**12}, InvalidParameter, "canaries"),
        ({"error": 0.0}, InvalidParameter, "error"),
        ({"confidence": 1.0}, InvalidParameter, "confidence"),
        ({"build": lambda _: builder()(make_clients([5, 3, 4]))}, InvalidParameter, "build"),
        ({"seed": 1}, Unsupported, "no guarantee"),
        ({"others": "loud"}, InvalidParameter, "others"),
        ({"generator": 7}, InvalidParameter, "is 'int'; it is"),
    ],
)
def test_bad_audits_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        audited(**options)


def test_a_run_that_its_budget_ends_is_audited_as_far_as_it_came():
    found = audited(budget=Budget(3, 1e-5), delta=None, rounds=15, canaries=30)
    assert found.passed
    assert found.rounds < 15
    assert found.charged.upper <= 3


def test_a_run_that_goes_on_is_refused(tmp_path):
    files = {"checkpoint": tmp_path / "a.checkpoint", "ledger": tmp_path / "a.ledger"}
    with builder(**files)(make_clients([5, 3, 4] * 21)) as first:
        next(iter(first))
        first.save()
    build = builder(**files)
    with pytest.raises(Unsupported, match="begins with the first round"):
        audited(build=lambda people: build(people).resume())


@pytest.mark.parametrize("name", ["checkpoint", "ledger"])
def test_an_audit_charges_no_ledger_and_writes_no_checkpoint(tmp_path, name):
    with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
        audited(**{name: tmp_path / f"a.{name}"})
    assert not list(tmp_path.iterdir())


def test_several_processes_of_which_there_is_one(tmp_path):
    group = {"world_size": 1, "rank": 0, "init_method": f"file://{tmp_path}/rendezvous"}
    torch.distributed.init_process_group("gloo", **group)
    try:
        assert audited(canaries=40, distributed=True, rounds=2).passed
        with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
            audited(canaries=40, distributed=True, ledger=tmp_path / "a.ledger")
    finally:
        torch.distributed.destroy_process_group()


# Canaries.


def test_canaries_are_trained_and_bounded_like_all_others():
    canaries = Canaries(40)
    people = with_canaries(make_clients([5, 3]), canaries, silent=True)
    canaries.aim(600, 0.5, replaced=False)
    assert (len(people), len(people[-40:])) == (42, 40)
    for number, inside in enumerate(canaries.coins.tolist()):
        assert bool(people[2 + number].update.any()) == inside
    rows = torch.stack([canaries.raw(number) for number in range(40)]).double()
    assert torch.equal((rows @ rows.T).fill_diagonal_(0), torch.zeros(40, 40))
    assert rows.norm(dim=1).min() > 0.5
    assert not people[0].update.any()
    assert canaries.count > 40


@pytest.mark.parametrize("silent", [True, False])
def test_examples_stand_before_canaries(silent):
    canaries, others = Canaries(40), examples(7)
    people = with_canaries(others, canaries, silent=silent)
    canaries.aim(600, 0.5, replaced=False)
    assert isinstance(people, fl.Examples)
    assert len(people) == 47
    read, own = people.batch([3, 46, 0]), others.batch([3, 0, 0])
    assert torch.equal(read.inputs, own.inputs)
    assert torch.equal(read.targets, own.targets)
    for row in range(47):
        update = people.planted(row)
        if row < 7:
            assert update is None if not silent else not update.any()
        else:
            assert bool(update.any()) == bool(canaries.coins[row - 7])
    assert all(others.planted(row) is None for row in range(7))


def test_coins_are_fair_and_decide_what_is_sent():
    canaries = Canaries(2000, torch.Generator().manual_seed(3))
    assert 800 < int(canaries.coins.sum()) < 1200
    for replaced, opposite in ((False, 0.0), (True, -1.0)):
        canaries.aim(6000, 0.5, replaced=replaced)
        for number in range(50):
            factor = 1.0 if canaries.coins[number] else opposite
            assert torch.equal(canaries.sent(number), factor * canaries.raw(number))
    # Directions project on themselves.
    few, vector = Canaries(6), torch.randn(50)
    few.aim(50, 0.5, replaced=False)
    rows = torch.stack([few.raw(number) for number in range(few.count)])
    found = few.project(vector, rows.sum(dim=0))
    assert torch.allclose(found, (rows @ vector).double(), rtol=1e-4)


def test_an_audit_leaves_torchs_generator_alone():
    """The run draws as without an audit, and its seed does not choose the canaries."""

    def build(clients):
        state = torch.get_rng_state()
        run = builder(rounds=2)(clients)
        torch.set_rng_state(state)
        torch.rand(5)
        return run

    torch.manual_seed(9)
    build(make_clients([5, 3]))
    without = torch.get_rng_state()
    torch.manual_seed(9)
    audited(build=build, canaries=40)
    assert torch.equal(torch.get_rng_state(), without)


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
