"""Audits by canaries: `audit_run` and `audit_server`.

They put canaries behind the clients of a training (`dpacct.fl.auditing.canaries`), let
it run as it is, and read only its noisy means. They differ in the transport of the messages:

- `audit_run`: a `Federation` in one or several processes. Each process has the coins of rank 0,
  trains its share of the canaries, and gets the result of rank 0.
- `audit_server`: a `Server` with its messages carried by the user's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.empirical.audits import Promise, Seen, Shown, best_number, judge
from dpacct.empirical.confidence import NoiseEvidence
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Aimed, Canaries, with_canaries
from dpacct.fl.clients import Examples, Population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.run import PrivateRun
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.federation import Federation
from dpacct.fl.layout import scatter
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.server import Server
from dpacct.ledger import Event, noise_of, with_noise
from dpacct.rounds import AccountantName, Adjacency, Phase, Schedule

Run = TypeVar("Run", bound=PrivateRun)
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
        canaries: with their coins. people: the clients, and the canaries behind them.

    Raises:
        InvalidParameter: a value out of range, or too few canaries for the error.
    """

    def __init__(
        self,
        clients: Population,
        canaries: int,
        others: str,
        error: float,
        confidence: float,
        generator: torch.Generator | None,
    ) -> None:
        number = validate.count("canaries", canaries, "canaries of an audit", MOST)
        noun = "the confidence of an audit"
        sure = validate.positive_probability("confidence", confidence, noun, below_one=True)
        wrong = validate.positive_probability("error", error, "the error of an audit")
        if others not in OTHERS:
            raise InvalidParameter("others", others, f"the other clients are {' or '.join(OTHERS)}")
        least = least_canaries(error)
        if number < least:
            words = f"with an error of {error:g} an audit needs at least {least}"
            raise InvalidParameter(
                "canaries", number, f"{words}: random guesses can do as well with fewer"
            )
        self.canaries, self._error, self._confidence = Canaries(number, generator), wrong, sure
        self.people = with_canaries(clients, self.canaries, silent=others == OTHERS[0])
        self._clients = len(clients)
        self._events: list[Event] = []
        self._shown: list[Tensor] = []
        self._lengths: list[Tensor] = []

    def watch(self, run: PrivateRun) -> Callable[[], None]:
        """Aim the canaries, and return a function that notes the latest release, if there is one.

        Raises:
            Unsupported: the promise is not made round by round from the beginning of the run.
        """
        if run.round:
            raise Unsupported(
                "an audit begins with the first round, and this run continues another one"
            )
        if run.state.noise is not None:
            raise Unsupported(
                "correlated noise, which is charged for all rounds together: this audit tests "
                "rounds one by one"
            )
        if run.not_private_because is not None:
            raise Unsupported(f"the run has no guarantee to test: {run.not_private_because}")
        if run.engine.allocator is not None:
            raise Unsupported(
                "an audit of random allocation: its epochs are charged as a whole, and the audit "
                "compares round by round. Audit the same run with Poisson(1 / steps)"
            )
        before, layout = run.state, run.engine.layout
        self._plan, self._noise = run.engine.plan, NoiseEvidence(layout.sizes)
        replaced = self._plan.adjacency is Adjacency.REPLACE_ONE
        self.canaries.aim(layout.size, before.bound.clip_norm, replaced=replaced)

        def look() -> None:
            nonlocal before
            # None is released if too few noise shares arrived.
            if run.state is not before and run.state.released is not None:
                self._see(run.state.released * run.engine.plan.cohort_size, run.engine, before)
            before = run.state

        return look

    def _see(self, released: Tensor, engine: Engine, state: TrainingState) -> None:
        """Note a release, the noisy sum [d] of the round behind a state."""
        collected, size, clip_norm = engine.open(state), engine.layout.size, state.bound.clip_norm
        kept = collected.kept

        def bounded(rows: Tensor) -> Tensor:
            return scatter(engine.bound(collected, rows).rows, kept, size)

        carried = torch.ones(size if kept is None else len(kept), dtype=torch.bool)
        carried = scatter(carried, None if kept is None else kept.cpu(), size)
        like = next(iter(state.params.values()))
        aimed = Aimed.of(self.canaries, bounded, like, carried, clip_norm)
        event = engine.plan.event(state.bound, engine.noise, {})
        sums = released.cpu()
        self._shown.append(aimed.shown(sums, len(self._events) + 1))
        self._lengths.append(aimed.lengths / clip_norm)
        std = clip_norm * updates_noise(event)
        noise = sums.double()
        # The grid of secure noise, and the type of the release, which is rounded twice.
        rounding = 2.0**-22 * clip_norm + 4 * torch.finfo(sums.dtype).eps * noise.abs()
        if self._plan.sampling.sampling_rate == 1:
            noise = noise - aimed.sent(replaced=self._plan.adjacency is Adjacency.REPLACE_ONE)
        self._noise.see((noise / std).numpy(), (rounding / std).numpy(), aimed.carried.numpy())
        self._events.append(event)

    def conclude(self, run: PrivateRun) -> RunAudit:
        """Return the result.

        Raises:
            InvalidParameter: no round ran. Unsupported: nothing was released.
        """
        events, count = self._events, len(self.canaries)
        if not events and run.stopped_because:
            raise InvalidParameter("rounds", 0, f"no round ran: {run.stopped_because}")
        if not events:
            raise Unsupported("too few noise shares arrived, and nothing was released")
        charged, accountant = run.epsilon, run.account.accountant
        shown, lengths = torch.stack(self._shown).numpy(), torch.stack(self._lengths).numpy()
        noises = [updates_noise(event) for event in events]
        seen = Seen(
            shown[:, :count],
            lengths[:, :count],
            self.canaries.coins.numpy(),
            # A mask may leave a direction without a coordinate, and so without noise.
            np.where(lengths > 0, shown, np.nan)[:, count:],
            np.array(noises),
            self._plan.sampling.sampling_rate,
            self._plan.adjacency,
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
        return RunAudit(charged, verdict, gaussian, len(events), self._clients, first)


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


def least_canaries(error: float) -> int:
    """Return how many coins must be guessed so that chance does it with this probability."""
    return math.ceil(-math.log2(error / 3)) + 1


def _made(build: Any, given: object, kind: type[Run]) -> Run:
    """Return the run that the caller's function makes."""
    if not callable(build):
        raise InvalidParameter("build", type(build).__name__, "it is a function")
    run = build(given)
    if not isinstance(run, kind):
        raise InvalidParameter("build", type(run).__name__, f"it makes a {kind.__name__}")
    return run


def _refuse_ledger(run: PrivateRun) -> None:
    """Reject a run that would keep its charge."""
    if run.ledger_path is not None:
        rule = "an audit releases nothing, so that it charges no ledger and keeps no checkpoint"
        raise Unsupported(f"{rule}: build the run without ledger= and checkpoint=")


def audit_run(
    build: Callable[[Population], Federation],
    clients: Population,
    *,
    canaries: int = 200,
    others: str = "silent",
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RunAudit:
    """Train a run with canaries among its clients, and test its releases.

    Args:
        build: makes the run for a population, e.g.
            ``lambda people: Federation(model, loss, people, rounds=20, ...)``. The model is a new
            one, because it is trained. The run has no ledger and no checkpoint, and cohorts of a
            fixed size are drawn from ``len(people)``. With ``distributed=True`` every process calls
            `audit_run`.
        clients: the other clients.
        canaries: how many. Each takes part or not (under replace-one: sends one of two opposite
            updates) by a coin. About 200 find noise that is 20 % too small.
        others: "silent": they train, and send nothing. Privacy holds against an attacker with the
            updates of all other clients, who can subtract them, so this shows most. "heard": they
            send their updates, which hide canaries. This shows the model of a real run.
        error: probability that a run fails although its privacy is as charged.
        confidence: of each epsilon that is shown.
        generator: of coins and directions, on the CPU. Default: the operating system. Torch's
            global generator is not used. The draws of the run must not follow from it.
    Returns:
        The findings. Fewer canaries and rounds show less. Passing is evidence, not a proof.
    Raises:
        InvalidParameter: too few canaries for the error, or more than the model has room for.
        Unsupported: a run with a release that this audit cannot read.
    """
    audit = CanaryAudit(clients, canaries, others, error, confidence, generator)
    with _made(build, audit.people, Federation) as run:
        if run.engine.clients is not audit.people:
            rule = "the run trains the clients that it is given"
            raise InvalidParameter("build", type(run.engine.clients).__name__, rule)
        look = audit.watch(run)

        def drawn() -> tuple[Tensor, Tensor, Tensor]:
            # Only rank 0 can have a ledger.
            _refuse_ledger(run)
            return audit.canaries.drawn

        audit.canaries.adopt(run.agree(drawn))
        for _ in run:
            look()
        return run.agree(lambda: audit.conclude(run))


def audit_server(
    build: Callable[[int], Server],
    play: Callable[[Server, Population], object],
    clients: Population,
    *,
    canaries: int = 200,
    others: str = "silent",
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RunAudit:
    """Run a server with canaries among its clients, and test its releases.

    Args:
        build: makes the server for a number of clients, without ledger and checkpoint.
        play: ``play(server, people)`` runs the rounds, e.g. by Flower's strategy. Client k has
            ``people[k]``. An `fl.Canary` sends ``people[k].update``, bounded like any other:
            `dpacct.fl.flower.client_app` does so.
        clients: the other clients.
        canaries, others, error, confidence, generator: as for `audit_run`.
    Returns:
        The findings, as for `audit_run`. A round that releases nothing shows nothing.
    Raises:
        InvalidParameter: as for `audit_run`, or ``build`` made a server for other clients.
        Unsupported: as for `audit_run`, or nothing was released, or no canary was asked.
    """
    if isinstance(clients, Examples):
        rule = "clients of a server hold data of their own, a ClientData each"
        raise InvalidParameter("clients", "Examples", rule)
    if not callable(play):
        raise InvalidParameter("play", type(play).__name__, "it is a function")
    audit = CanaryAudit(clients, canaries, others, error, confidence, generator)
    people = audit.people
    with _made(build, len(people), Server) as server:
        if server.engine.num_clients != len(people):
            rule = f"it makes the server of {len(people)} clients, canaries among them"
            raise InvalidParameter("build", server.engine.num_clients, rule)
        _refuse_ledger(server)
        server.on_settled(audit.watch(server))
        play(server, people)
        result = audit.conclude(server)
        if not audit.canaries.asked:
            raise Unsupported(
                "no canary was asked for its update: client k is people[k], and if that is an "
                "fl.Canary it sends its update"
            )
        return result
