"""The values of a run and its rounds: plan, state, draw, contributions, their sums, the release.

Rule: private and secret values have no ``repr``. A log, or a traceback with variables, shows the
name of the class alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_bytes
from typing import TypeVar

import torch
from torch import Tensor

from dpacct.fl.layout import Layout, Noised, Params, State
from dpacct.fl.local.sgd import RoundValues
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.allocation import rounds_of, sampling_of
from dpacct.fl.privacy.bounds import Bound, Clip, Limits, SmoothedNormalization
from dpacct.fl.privacy.correlated import NoiseStream
from dpacct.fl.privacy.noise import grid_exponent
from dpacct.fl.report import Diagnostics
from dpacct.fl.tensors import listed, norm, numbers, split
from dpacct.ledger import Plan, noise_of
from dpacct.rounds import Phase, Release, Schedule

# An update that a method has projected onto the ball lies on its edge, up to this share.
_ROUNDING = 1e-5


Key = TypeVar("Key")


def client_seed(order: int, client: int) -> int:
    """Return the seed of a client's batches and dropout, from the seed of the round.

    This is SplitMix64. The seeds of local steps add multiples of the same constant. Without the
    mixing two clients would share dropout masks, depending on the clients listed between them.
    """
    word = (order + (client + 1) * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return (word ^ (word >> 31)) % 2**63


HOST = torch.device("cpu")


def together(tensors: Mapping[Key, Tensor], device: torch.device = HOST) -> dict[Key, Tensor]:
    """Return the tensors on a device, from another one by one copy for each type of numbers."""
    copies = {key: value.detach() for key, value in tensors.items()}
    away = {key: value for key, value in copies.items() if value.device.type != device.type}
    for dtype in {value.dtype for value in away.values()}:
        own = {key: value for key, value in away.items() if value.dtype == dtype}
        whole = torch.cat([value.flatten() for value in own.values()]).to(device)
        parts = split(whole, [value.numel() for value in own.values()])
        # In storage of its own: one that is kept would keep all.
        copies |= {k: p.view(own[k].shape).clone() for k, p in zip(own, parts, strict=True)}
    return copies


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All rounds of a run: noise, sampling and clip norm of each.

    A constant run is the schedule ``rounds * Round(...)``. Rule 1: the plan is fixed before the run
    and public. Rule 2: noise and sampling of a round are those of the ledger's next place in the
    plan. A round that a crash has lost keeps its place, so each round runs as it was planned at its
    place. Rule 3: clip norms and learning rates cost nothing, and follow the number of the training
    round.

    Attributes:
        schedule: the rounds. noise: adjacency and public size of each of them.
        clip_norms: of each round, or None if the bound stays or follows the releases.
    """

    schedule: Schedule
    noise: RoundNoise
    clip_norms: RoundValues | None = None
    # Built once: each round asks for them, and a schedule may have 10^5 phases.
    _places: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", Plan(self.schedule))

    @property
    def rounds(self) -> int:
        """The number of training rounds."""
        return sum(count * rounds_of(item) for item, count in self.schedule)

    @property
    def constant(self) -> bool:
        """True if all rounds have the same noise and sampling."""
        return len(self.schedule.phases) == 1

    def at(self, position: int) -> RoundNoise:
        """Return the noise and sampling at a place from 0, past the end those of the last round."""
        round_ = self._places.round_at(position) or self.schedule.phases[-1].round
        return self._noise_of(round_)

    def _noise_of(self, round_: Release) -> RoundNoise:
        # The rounds of a schedule have noise, also those of a run without.
        sampling, multiplier = sampling_of(round_), noise_of(round_)
        multiplier = multiplier if self.noise.noise_multiplier else 0.0
        return replace(self.noise, sampling=sampling, noise_multiplier=multiplier)

    def bound(self, bound: Bound, round_number: int) -> Bound:
        """Return the bound of a round, from the bound of an earlier round."""
        return bound if self.clip_norms is None else Clip(self.clip_norms(round_number))

    def charged(self, charge: Callable[[RoundNoise], Release]) -> Schedule:
        """Return the schedule as the ledger charges it. ``charge`` converts one round."""
        known = {round_: charge(self._noise_of(round_)) for round_ in self.schedule.distinct()}
        return Schedule(Phase(known[round_], count) for round_, count in self.schedule)

    def words(self) -> str:
        """Return the plan for comparing settings."""
        if self.constant:
            plan = self.at(0)
            cohorts = "" if plan.correlation is None else f", {plan.correlation.cohorts!r}"
            return (
                f"Plan(sampling={plan.sampling!r}, adjacency={plan.adjacency!r}, "
                f"noise_multiplier={plan.noise_multiplier!r}, cohort_size={plan.cohort_size!r}"
                f"{cohorts})"
            )
        rounds, adjacency = self.schedule.rounds, self.noise.adjacency
        phases = repr(list(self.schedule)).encode()
        digest = hashlib.sha256(phases).hexdigest()[:16]
        return f"Plan({rounds} rounds, {digest}, adjacency={adjacency!r})"


@dataclass(slots=True, eq=False, repr=False)
class TrainingState:
    """The values that change from round to round.

    Attributes:
        round: number of finished rounds.
        params: released parameters, on the device.
        server_state: public. client_states: private, by client.
        bound: of the next round.
        released: vector of the last release, None before the first.
        noise: the rows of correlated noise, secret, or None for independent noise.
    """

    round: int
    params: Params
    server_state: State
    client_states: dict[int, State]
    bound: Bound
    released: Tensor | None
    noise: NoiseStream | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draw:
    """The random choices of a round. Membership stays secret.

    Attributes:
        members: clients with summed contributions, ascending.
        workers: clients that train: the members, or all clients if the method asks for that.
        seed: of the global generators around training. order: of the batches of the clients.
        token: identifies this draw and its shares.
    """

    members: Sequence[int]
    workers: Sequence[int]
    seed: int
    order: int
    token: bytes = field(default_factory=lambda: token_bytes(16))

    def seed_of(self, client: int) -> int:
        """Return the seed of a client's batches, which does not depend on the other clients."""
        return client_seed(self.order, client)

    def share(self, part: int, parts: int) -> Draw:
        """Return every ``parts``-th worker from number ``part`` on, for one of many processes."""
        workers, members = list(self.workers)[part::parts], set(self.members)
        return replace(self, workers=workers, members=[w for w in workers if w in members])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Contributions:
    """Masked and bounded updates, one client a row. Private.

    Attributes:
        rows: behind mask and bound [c, k].
        norms: of the raw updates, float64 [c], or zero for an update that was not finite.
        below: whether an update was within the clip norm before it was bounded [c].
        bad: whether an update was not finite [c]. Its row is zero.
        token: of the draw for which the updates were bounded.
    """

    rows: Tensor
    norms: Tensor
    below: Tensor
    bad: Tensor
    token: bytes = b""

    def __len__(self) -> int:
        return len(self.norms)

    def of(self, clients: Sequence[int], members: frozenset[int]) -> Contributions:
        """Return the contributions of members alone, of ``clients`` one each."""
        places = [place for place, client in enumerate(clients) if client in members]
        if len(places) == len(self):
            return self
        chosen = listed(places, self.norms.device)
        parts = self.rows, self.norms, self.below, self.bad
        return Contributions(*(part[chosen] for part in parts), token=self.token)


@dataclass(slots=True, eq=False, repr=False)
class Collected:
    """Sums over a cohort, before any noise. Private.

    Attributes:
        total: sum of encoded rows, as `Noise.zeros` [k].
        indicators: encoded sum of the indicators [1], None without an adaptive clip.
        bound: of the round. kept: the mask's coordinates, None for all. layout: of these.
        members: the clients whose contributions count.
        arrived: number of contributions in the sum.
        rows: of a method as printed, that needs them one by one.
        norms: of the raw updates. dropped: number of updates that were not finite.
        memories: new client states, applied once the round is committed.
        clients: the workers that have answered, members or not.
        token: of the draw that the sums belong to.
    """

    total: Tensor
    indicators: Tensor | None
    bound: Bound
    kept: Tensor | None
    layout: Layout
    members: frozenset[int]
    token: bytes
    arrived: int = 0
    rows: list[Tensor] = field(default_factory=list[Tensor])
    norms: list[Tensor] = field(default_factory=list[Tensor])
    dropped: list[Tensor] = field(default_factory=list[Tensor])
    memories: dict[int, State] = field(default_factory=dict[int, State])
    clients: list[int] = field(default_factory=list[int])

    @property
    def limits(self) -> Limits:
        """The norm limits of one row."""
        return self.bound.limits(self.layout)

    def merge(self, other: Collected) -> None:
        """Add the sums of other clients of the same round, from another process.

        Sums are exact, so no bit of them depends on the order of merging.
        """
        self.total.add_(other.total)
        if self.indicators is not None and other.indicators is not None:
            self.indicators.add_(other.indicators)
        self.arrived += other.arrived
        self.rows += other.rows
        self.norms += other.norms
        self.dropped += other.dropped
        self.memories |= other.memories
        self.clients += other.clients


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The values that leave the aggregator: the noised mean, and the noisy sum of indicators."""

    mean: Noised
    indicator_sum: float | None


def diagnose(collected: Collected, std: float) -> Diagnostics:
    """Return statistics of the raw updates of one round, which are not private.

    ``std`` is that of the noise on the sum.
    """
    total, bound = collected.total, collected.bound
    norms = torch.cat([total.new_zeros(0, dtype=torch.float64), *collected.norms])
    dropped = torch.stack([total.new_zeros((), dtype=torch.int64), *collected.dropped])
    values = [norm(total.double()), dropped.sum().double()]
    if len(norms):
        over = norms > bound.clip_norm * (1 + _ROUNDING)
        values += [over.double().mean(), norms.mean(), norms.median(), norms.max()]
    # One tensor, so that a device is waited for once.
    length, count, *raw = numbers(torch.stack(values))
    if not raw:
        nan = math.nan
        return Diagnostics(collected.arrived, nan, nan, nan, nan, int(count), 0.0)
    scale = 1.0 if total.is_floating_point() else 2.0 ** grid_exponent(collected.limits)
    noise = std * math.sqrt(max(len(total), 1))
    clipped, mean, median, largest = raw
    return Diagnostics(
        cohort_size=collected.arrived,
        clipped_fraction=0.0 if isinstance(bound, SmoothedNormalization) else clipped,
        norm_mean=mean,
        norm_median=median,
        norm_max=largest,
        dropped_updates=int(count),
        # A round that releases nothing has no noise to compare with.
        signal_to_noise=length * scale / noise if noise else math.nan,
    )
