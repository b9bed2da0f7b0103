"""The course and the result of an audit by canaries, for every kind of training.

The function that runs a training makes a `CanaryAudit` and plants its canaries. It calls `aim` once
model and bound are known, `see` for each release, and `conclude` at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.empirical.audits import Promise, Seen, Shown, best_number, judge
from dpacct.empirical.noise import NoiseEvidence
from dpacct.errors import InvalidParameter
from dpacct.fl.auditing.canaries import Aimed, Canaries
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.ledger import Event, noise_of, with_noise
from dpacct.rounds import AccountantName, Adjacency, Phase, Schedule

# Of canaries, and of repetitions of a round.
MOST = 1_000_000
OTHERS = ("silent", "heard")
_FAULTS = {
    "guesses": "more canaries were recognized than the charged budget allows",
    "noise": "the released sums carry less noise than was charged for (most clearly: {quietest})",
    "contribution": "a client moves the sum by more than the clip norm",
}


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The result of an audit of one run by canaries.

    Attributes:
        charged: the epsilon that the rounds which ran are charged, at their delta.
        shown: the bounds that canaries prove, with the promised values.
        gaussian_epsilon: the run exceeds it, if its noise is Gaussian and its sampling as charged.
            It covers the updates alone, if a count of clipped clients is released as well.
        rounds: how many ran. clients: besides the canaries.
        noise_multiplier: of the first round, as charged.
    """

    charged: Spent
    shown: Shown
    gaussian_epsilon: float
    rounds: int
    clients: int
    noise_multiplier: float

    @property
    def passed(self) -> bool:
        """True if nothing contradicts the charge."""
        return not self.shown.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that were found, each in a sentence."""
        quietest = self.shown.quietest
        return tuple(_FAULTS[name].format(quietest=quietest) for name in self.shown.faults)

    def require(self) -> None:
        """Raise if a fault was found.

        Raises:
            AuditFailed: with all faults that were found.
        """
        if self.faults:
            raise AuditFailed("; ".join(self.faults))


class CanaryAudit:
    """An audit by canaries, from its coins to its result, with settings as for `audit_run`.

    Attributes:
        canaries: with their coins. silent: whether the other clients send nothing.
        events: the charges of the releases so far.

    Raises:
        InvalidParameter: a value out of range, or too few canaries for the error.
    """

    def __init__(
        self,
        canaries: int,
        others: str,
        error: float,
        confidence: float,
        generator: torch.Generator | None,
    ) -> None:
        number = validate.count("canaries", canaries, "canaries of an audit", MOST)
        self.silent, self._error, self._confidence = checked_terms(others, error, confidence)
        least = least_canaries(error)
        if number < least:
            words = f"with an error of {error:g} an audit needs at least {least}"
            raise InvalidParameter("canaries", number, f"{words}: luck guesses fewer coins")
        self.canaries = Canaries(number, generator)
        self.events: list[Event] = []
        self._shown: list[Tensor] = []
        self._lengths: list[Tensor] = []

    def aim(
        self, sizes: Sequence[int], clip_norm: float, sampling_rate: float, adjacency: Adjacency
    ) -> None:
        """Give canaries their directions in a flat vector made of tensors of these sizes."""
        replaced = adjacency is Adjacency.REPLACE_ONE
        self.canaries.aim(sum(sizes), clip_norm, replaced=replaced)
        self._sampling_rate, self._adjacency = sampling_rate, adjacency
        self._noise = NoiseEvidence(sizes)

    def see(self, released: Tensor, aimed: Aimed, event: Event) -> None:
        """Note a release, the noisy sum [d], with its charge."""
        sums = released.cpu()
        self._shown.append(aimed.shown(sums, len(self.events) + 1))
        self._lengths.append(aimed.lengths / aimed.clip_norm)
        std = aimed.clip_norm * updates_noise(event)
        noise = sums.double()
        # The grid of secure noise, and the type of the release, which is rounded twice.
        rounding = 2.0**-22 * aimed.clip_norm + 4 * torch.finfo(sums.dtype).eps * noise.abs()
        if self._sampling_rate == 1:
            noise = noise - aimed.sent(replaced=self._adjacency is Adjacency.REPLACE_ONE)
        self._noise.see((noise / std).numpy(), (rounding / std).numpy(), aimed.carried.numpy())
        self.events.append(event)

    def conclude(self, charged: Spent, accountant: AccountantName, clients: int) -> RunAudit:
        """Return the result, after at least one release, for ``clients`` and the canaries."""
        events, count = self.events, len(self.canaries)
        shown, lengths = torch.stack(self._shown).numpy(), torch.stack(self._lengths).numpy()
        noises = [updates_noise(event) for event in events]
        seen = Seen(
            shown[:, :count],
            lengths[:, :count],
            self.canaries.coins.numpy(),
            # A mask may leave a direction without a coordinate, and so without noise.
            np.where(lengths > 0, shown, np.nan)[:, count:],
            np.array(noises),
            self._sampling_rate,
            self._adjacency,
            self._noise.conclude(),
        )
        plan = Schedule(Phase(event.charged, 1) for event in events)
        made = best_number(seen, charged.delta, 1 - self._confidence)
        promise = Promise.of(plan, accountant)
        verdict = judge(seen, promise, made, charged.delta, self._error, self._confidence)
        # The spread is that of the updates' noise. The noise on a count of clipped clients, which
        # may be released as well, was not measured.
        measured = [verdict.noise_factor * noise for noise in noises]
        gaussian = epsilon_as_seen(events, measured, charged.delta, accountant)
        first = noise_of(events[0].charged)
        return RunAudit(charged, verdict, gaussian, len(events), clients, first)


def updates_noise(event: Event) -> float:
    """Return the noise multiplier of the sum of updates, also if other sums leave a round."""
    return event.releases[0].noise_multiplier if event.releases else noise_of(event.charged)


def epsilon_as_seen(
    events: Sequence[Event], noises: Sequence[float], delta: float, accountant: AccountantName
) -> float:
    """Return an epsilon that rounds of at most these noise multipliers exceed. It may be 0."""
    low, high = validate.NOISE_MULTIPLIER_RANGE
    if max(noises) > high:
        return 0.0
    # More noise than was measured proves less.
    seen = Schedule(
        Phase(with_noise(event.charged, max(noise, low)), 1)
        for event, noise in zip(events, noises, strict=True)
    )
    return find_accountant(accountant).epsilon(seen, delta).lower


def checked_terms(others: str, error: float, confidence: float) -> tuple[bool, float, float]:
    """Return whether the other clients are silent, and both probabilities, if they are valid."""
    sure = validate.positive_probability(
        "confidence", confidence, "the confidence of an audit", below_one=True
    )
    wrong = validate.positive_probability("error", error, "the error of an audit")
    if others not in OTHERS:
        raise InvalidParameter("others", others, f"the other clients are {' or '.join(OTHERS)}")
    return others == OTHERS[0], wrong, sure


def least_canaries(error: float) -> int:
    """Return how many coins must be guessed so that chance does it with this probability."""
    return math.ceil(-math.log2(error / 3)) + 1


def check_functions(**given: object) -> None:
    """Check that the named arguments are functions."""
    for name, value in given.items():
        if not callable(value):
            raise InvalidParameter(name, type(value).__name__, "it is a function")
