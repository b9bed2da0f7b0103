"""`audit_round`: run one round many times with and without one client, and tell them apart.

It assumes only that repetitions of the round are independent. The bound of epsilon is that of
Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.empirical.audits import Promise, separate
from dpacct.empirical.confidence import Estimate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries, with_canaries
from dpacct.fl.auditing.canary_audit import MOST, checked_terms, epsilon_as_seen
from dpacct.fl.auditing.runs import audited_loop, contributions, refuse_ledger
from dpacct.fl.clients import Population
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.federation import Federation
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.rounds import Adjacency

_FAULT = "one client is recognized more often than the charged budget of a round allows"


@dataclass(frozen=True, slots=True)
class RoundAudit:
    """The result of many repetitions of a round.

    Attributes:
        charged: the epsilon that one round is charged, at its delta.
        epsilon: a round exceeds it, whatever its noise is.
        gaussian_epsilon: a round exceeds it, if its noise is Gaussian and its sampling as charged.
        tpr, fpr: how often the client is recognized if it takes part, and if it does not.
        runs: repetitions with the client; as many without it, or with its opposite.
        error: probability that a round fails although it does what it is charged for.
        confidence: of each epsilon and of each rate.
        noise_multiplier: as charged.
    """

    charged: Spent
    epsilon: float
    gaussian_epsilon: float
    tpr: Estimate
    fpr: Estimate
    runs: int
    passed: bool
    error: float
    confidence: float
    noise_multiplier: float

    @property
    def faults(self) -> tuple[str, ...]:
        """The fault that was found, in a sentence."""
        return () if self.passed else (_FAULT,)

    def require(self) -> None:
        """Raise if a fault was found.

        Raises:
            AuditFailed: with the fault.
        """
        if not self.passed:
            raise AuditFailed(_FAULT)


def audit_round(
    build: Callable[[Population], Federation],
    clients: Population,
    *,
    runs: int = 1000,
    others: str = "silent",
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RoundAudit:
    """Run the first round of a run many times, with and without one more client.

    Args:
        build: makes the run for a population; as for `audit_run`.
        clients: the others; few are enough, and quicker.
        runs: repetitions with the client, which sends the largest possible contribution; and as
            many without it (under replace-one: with its opposite). Half of them choose the test.
        others, error, confidence, generator: as for `audit_run`.
    Returns:
        The findings. With n runs, the shown epsilon is at most about log(n / 8).
    Raises:
        InvalidParameter: too few runs for the error. Unsupported: a run whose rounds cannot be
            repeated here, or for which nothing is promised.
    """
    silent, error, confidence = checked_terms(others, error, confidence)
    number = validate.count("runs", runs, "runs of an audit", MOST)
    least = least_runs(error)
    if number < least:
        rule = f"with an error of {error:g} an audit needs at least {least} runs of a round"
        raise InvalidParameter("runs", number, rule)
    canary = Canaries(1, generator)
    people = with_canaries(clients, canary, silent=silent)
    with build(people) as run:
        player = audited_loop(run, people)
        if not isinstance(player, RoundLoop):
            raise Unsupported("one process repeats a round, and this run has several")
        refuse_ledger(player.account)
        delta, accountant = player.account.delta, player.account.accountant
        engine, state = player.engine, player.state
        plan = engine.plan
        rate, replaced = plan.sampling.sampling_rate, plan.adjacency is Adjacency.REPLACE_ONE
        canary.aim(engine.layout.size, state.bound.clip_norm, replaced=replaced)
        player.prepare()
        aimed, event = contributions(engine, state, canary)

        def shown(*, inside: bool) -> float:
            """Repeat the round, and return what it shows of the client, in clip norms."""
            canary.coins.fill_(inside)
            release = engine.release(state, player.collect(engine.draw()))
            if release is None:
                raise Unsupported("too few noise shares arrived, and nothing was released")
            return float(aimed.shown((release.mean.vector * plan.cohort_size).cpu(), 1)[0])

        # One after the other: nothing that changes with time can tell them apart.
        pairs = [(shown(inside=True), shown(inside=False)) for _ in range(number)]
    inside, outside = np.array(pairs).T
    free = 1 - confidence
    test = separate(inside, outside, lambda tried: tried.epsilon(delta, free))
    wide = separate(inside, outside, lambda tried: tried.distance(rate, free))
    promise = Promise.of(1 * event.charged, accountant)
    # Beside the sum an adaptive bound releases a count, which only adds to it.
    noise = wide.noise(rate, free, replaced=replaced)
    return RoundAudit(
        Spent.at(delta, find_accountant(accountant).epsilon(1 * event.charged, delta)),
        test.epsilon(delta, free),
        epsilon_as_seen([event], [noise], delta, accountant),
        wide.tpr(free / 2),
        wide.fpr(free / 2),
        number,
        not any(each.refutes(promise, error / 2) for each in (test, wide)),
        error,
        confidence,
        event.charged.noise_multiplier,
    )


def least_runs(error: float) -> int:
    """Return how many runs can refute a claim, if chance alone does it with this probability."""
    # All runs of the second half separated: both limits are a power of it.
    return 2 * max(2, math.ceil(-math.log2(error / 4)) + 1)
