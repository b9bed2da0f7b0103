"""`audit_run`: train with canaries, and see from the releases alone which of them took part.

What runs is the run that the user builds: model, method, bound, noise, sampling, trainer. What is
seen is what leaves the aggregator: the noisy mean of each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.empirical.one_run import Seen, Shown, best_number, judge
from dpacct.empirical.promises import Promise
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.auditing.populations import with_canaries
from dpacct.fl.auditing.watching import Aimed, Watch
from dpacct.fl.clients import Population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.federation import Federation
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.privacy.markers import scatter
from dpacct.ledger import Event
from dpacct.rounds import Adjacency, Phase, Round, Schedule

# Of canaries, and of repetitions of a round.
MOST = 1_000_000
OTHERS = ("silent", "heard")
_NAMES = {
    "guesses": "more canaries were recognized than the charged budget allows",
    "noise": "the released sums carry less noise than was charged for",
    "contribution": "a client moves the sum by more than the clip norm",
}


@dataclass(frozen=True, slots=True)
class RunAudit:
    """What canaries showed of one run.

    Attributes:
        charged: the epsilon that the rounds which ran are charged, at their delta.
        shown: what canaries prove, beside what was promised.
        gaussian_epsilon: the run exceeds it, if its noise is Gaussian and its sampling as charged;
            that of the updates alone, where a count of clipped clients is released beside them.
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
        """Whether nothing contradicts what was charged."""
        return not self.shown.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """What contradicts it, each in a sentence."""
        return tuple(_NAMES[name] for name in self.shown.faults)

    def require(self) -> None:
        """Raise if something was found.

        Raises:
            AuditFailed: with all that was found.
        """
        if self.faults:
            raise AuditFailed("; ".join(self.faults))


def audit_run(
    build: Callable[[Population], Federation],
    clients: Population,
    *,
    canaries: int = 200,
    others: str = "silent",
    error: float = 1e-6,
    confidence: float = 0.95,
) -> RunAudit:
    """Train a run with canaries among its clients, and test what it releases.

    Args:
        build: makes the run for a population, e.g.
            ``lambda people: Federation(model, loss, people, rounds=20, ...)``. With a model of its
            own, for it is trained, and without ledger and checkpoint; cohorts of a fixed size are
            said for ``len(people)``.
        clients: who else takes part.
        canaries: how many; each takes part or not (under replace-one: sends one of two opposite
            updates) by a coin. About 200 find noise that is 20 % too small.
        others: "silent": they train, and send nothing. Privacy is promised against attackers who
            know what others send, and can subtract it; so this shows most. "heard": they send what
            they train, which hides canaries, and shows what the model of a real run does.
        error: probability that a run which does as it is charged for fails.
        confidence: of the epsilons that are shown, each.
    Returns:
        What was shown. Fewer canaries and rounds show less; passing is evidence, not a proof.
    Raises:
        InvalidParameter: too few canaries for the error, or more than the model has room for.
        Unsupported: a run whose release this audit cannot read, or of several processes.
    """
    wanted = Wanted.checked(canaries, others, error, confidence)
    planted = Canaries(wanted.canaries)
    people = with_canaries(clients, planted, silent=wanted.silent)
    with build(people) as run:
        player = watched(run, people)
        seen, events = _watch(run, player, planted)
        charged = run.epsilon
    return conclude(seen, events, charged, player.account.accountant, wanted, len(clients))


def watched(run: Federation, people: Population) -> RoundLoop:
    """The player of a run on these people, whose promise can be tested.

    Raises:
        InvalidParameter: it trains others.
        Unsupported: nothing is promised, it has a ledger or a checkpoint, or several processes.
    """
    player = run.player
    if not isinstance(player, RoundLoop):
        # Each process would toss coins of its own.
        raise Unsupported("an audit watches a run of one process, and this one has several")
    if player.engine.clients is not people:
        rule = "the run trains the clients that it is given"
        raise InvalidParameter("build", type(player.engine.clients).__name__, rule)
    if player.state.round:
        raise Unsupported("a run is audited from its beginning, and this one goes on from another")
    if player.account.path is not None:
        rule = "an audit releases nothing, so that it charges no ledger and keeps no checkpoint"
        raise Unsupported(f"{rule}: build the run without ledger= and checkpoint=")
    reason = run.not_private_because
    if reason is not None:
        raise Unsupported(f"nothing is promised that could be tested: {reason}")
    return player


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an audit is asked for, checked; see `audit_run`."""

    canaries: int
    silent: bool
    error: float
    confidence: float

    @classmethod
    def checked(cls, canaries: int, others: str, error: float, confidence: float) -> Wanted:
        """As asked.

        Raises:
            InvalidParameter: a value out of range, or too few canaries for the error.
        """
        number = validate.count("canaries", canaries, "canaries of an audit", MOST)
        silent, wrong, sure = checked_terms(others, error, confidence)
        least = least_canaries(wrong)
        if number < least:
            words = f"with an error of {wrong:g} an audit needs at least {least}"
            raise InvalidParameter("canaries", number, f"{words}: luck guesses fewer coins")
        return cls(number, silent, wrong, sure)


def checked_terms(others: str, error: float, confidence: float) -> tuple[bool, float, float]:
    """Whether the others are silent, the error, and the confidence of an audit; see `audit_run`.

    Raises:
        InvalidParameter: a value out of range.
    """
    sure = validate.positive_probability(
        "confidence", confidence, "the confidence of an audit", below_one=True
    )
    wrong = validate.positive_probability("error", error, "the error of an audit")
    if others not in OTHERS:
        raise InvalidParameter("others", others, f"the other clients are {' or '.join(OTHERS)}")
    return others == "silent", wrong, sure


def conclude(
    seen: Seen,
    events: Sequence[Event],
    charged: Spent,
    accountant: str,
    wanted: Wanted,
    clients: int,
) -> RunAudit:
    """What a run showed, beside what it was charged.

    Args:
        seen: of the run. events: the rounds as which it was charged.
        charged: their epsilon. accountant: that proves it. clients: besides the canaries.
    """
    promise = Promise.of(_composed(event.charged for event in events), accountant)
    made = best_number(seen, charged.delta, 1 - wanted.confidence)
    shown = judge(seen, promise, made, charged.delta, wanted.error, wanted.confidence)
    # The spread is that of the updates' noise; at that of a count of clipped clients, released
    # beside them, nobody looked.
    noises = [shown.noise_factor * event.releases[0].noise_multiplier for event in events]
    gaussian = epsilon_as_seen(events, noises, charged.delta, accountant)
    noise = events[0].charged.noise_multiplier
    return RunAudit(charged, shown, gaussian, len(events), clients, noise)


def least_canaries(error: float) -> int:
    """How many coins somebody who knows them all must have guessed, for a claim to be refuted.

    Args:
        error: probability that chance alone does as well.
    """
    return math.ceil(-math.log2(error / 3)) + 1


def _composed(rounds: Iterable[Round]) -> Schedule:
    return Schedule(Phase(each, 1) for each in rounds)


def epsilon_as_seen(
    events: Sequence[Event], noises: Sequence[float], delta: float, accountant: str
) -> float:
    """What rounds of at most these noise multipliers exceed, 0 if there may be any noise.

    Args:
        events: as which they were charged; all but their noise is taken from them.
    """
    low, high = validate.NOISE_MULTIPLIER_RANGE
    if max(noises) > high:
        return 0.0
    # More noise than was seen proves less.
    seen = _composed(
        replace(event.charged, noise_multiplier=max(noise, low))
        for event, noise in zip(events, noises, strict=True)
    )
    return find_accountant(accountant).epsilon(seen, delta).lower


def _watch(
    run: Federation, player: RoundLoop, canaries: Canaries
) -> tuple[Seen, tuple[Event, ...]]:
    """Train, and note what each release shows, and what was charged for it."""
    engine, state = player.engine, player.state
    plan = engine.plan
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    canaries.aim(engine.layout.size, state.bound.clip_norm, replaced=replaced)
    watch = Watch(canaries)
    aimed = expected(engine, state, canaries)
    events: list[Event] = []
    for _ in run:
        state = player.state
        if state.released is None:
            raise Unsupported("too few noise shares arrived, and nothing was released")
        watch.see(state.released * plan.cohort_size, *aimed)
        events.append(aimed[1])
        if run.round < run.rounds:
            aimed = expected(engine, state, canaries)
    if not events:
        raise InvalidParameter("rounds", 0, f"no round ran: {run.stopped_because}")
    return watch.seen(plan.sampling.sampling_rate, plan.adjacency), tuple(events)


def expected(engine: Engine, state: TrainingState, canaries: Canaries) -> tuple[Aimed, Event]:
    """What canaries contribute to the next round, bounded as the engine does."""
    kept = engine.open(state).kept

    def bounded(rows: Tensor) -> Tensor:
        inside = engine.bound(state, kept, rows).bounded.rows
        return scatter(inside, kept, engine.layout.size)

    like = next(iter(state.params.values()))
    aimed = Aimed.of(canaries, bounded, like, state.bound.clip_norm)
    return aimed, engine.plan.event(state.bound, engine.noise, {})
