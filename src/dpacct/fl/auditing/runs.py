"""Audits by canaries: `audit_run`, `audit_server`, `audit_loop` and `audit_round`.

The first three put canaries behind the clients of a training (`dpacct.fl.auditing.canaries`), let
it run as it is, and read only its noisy means. They differ in the transport of the messages:

- `audit_run`: a `Federation` in one or several processes. Each process has the coins of rank 0,
  trains its share of the canaries, and gets the result of rank 0.
- `audit_server`: a `Server` with its messages carried by the user's code.
- `audit_loop`: a loop written by hand around `privatize`.

`audit_round` runs one round many times with and without one client, and separates them. It
assumes only that the repetitions are independent. Its bound of epsilon is that of Clopper and
Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.empirical.audits import Promise, separate
from dpacct.empirical.confidence import Estimate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Aimed, Canaries, with_canaries
from dpacct.fl.auditing.canary_audit import (
    MOST,
    CanaryAudit,
    RunAudit,
    check_functions,
    checked_terms,
    epsilon_as_seen,
    passing_ledger,
)
from dpacct.fl.clients import Population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.examples import Examples
from dpacct.fl.federation import Federation, PrivateRun
from dpacct.fl.layout import Layout, check_tensors
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.privatize import AggregationPlan, Tensors
from dpacct.fl.server import Server
from dpacct.ledger import Event, Run
from dpacct.ledger.record.events import noise_of
from dpacct.rounds import Adjacency, Uniform

Update = Callable[[int], Any]
Loop = Callable[[AggregationPlan, Run, Update], Iterable[Tensor | Tensors]]


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
    audit = CanaryAudit(canaries, others, error, confidence, generator)
    check_functions(build=build)
    people = with_canaries(clients, audit.canaries, silent=audit.silent)
    made: object = build(people)
    if not isinstance(made, Federation):
        raise InvalidParameter("build", type(made).__name__, "it makes a Federation")
    with made as run:
        player = _audited_loop(run, people)
        _aim(audit, player.engine, player.state)

        def drawn() -> tuple[Tensor, Tensor, Tensor]:
            # Only rank 0 can have a ledger.
            _refuse_ledger(player.account)
            return audit.canaries.drawn

        audit.canaries.adopt(player.agree(drawn))
        before = player.state
        for _ in run:
            _see_round(audit, player.engine, before, player.state)
            before = player.state

        def concluded() -> RunAudit:
            _check_seen(audit, run.stopped_because)
            return audit.conclude(run.epsilon, player.account.accountant, len(clients))

        return player.agree(concluded)


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
            `dpacct.fl.flower.client_app` does so, and `planted_mod` for a loop of your own.
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
    audit = CanaryAudit(canaries, others, error, confidence, generator)
    check_functions(build=build, play=play)
    people = with_canaries(clients, audit.canaries, silent=audit.silent)
    made: object = build(len(people))
    if not isinstance(made, Server):
        raise InvalidParameter("build", type(made).__name__, "it makes a Server")
    with made as server:
        if server.engine.num_clients != len(people):
            rule = f"it makes the server of {len(people)} clients, canaries among them"
            raise InvalidParameter("build", server.engine.num_clients, rule)
        _check_promise(server)
        _refuse_ledger(server.account)
        _aim(audit, server.engine, server.state)
        before = server.state

        def look() -> None:
            nonlocal before
            _see_round(audit, server.engine, before, server.state)
            before = server.state

        server.on_settled(look)
        play(server, people)
        _check_seen(audit, server.stopped_because)
        if not audit.canaries.asked:
            raise Unsupported(
                "no canary was asked for its update: client k is people[k], and if that is an "
                "fl.Canary it sends its update"
            )
        return audit.conclude(server.epsilon, server.account.accountant, len(clients))


def audit_loop(
    loop: Loop,
    update: Update,
    plan: AggregationPlan,
    *,
    like: Tensor | Tensors,
    rounds: int,
    canaries: int = 200,
    others: str = "silent",
    delta: float = 1e-5,
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RunAudit:
    """Run a loop with canaries in its population, and test its releases.

    Args:
        loop: ``loop(plan, run, update)`` trains, and yields each mean that it releases. It draws
            cohorts by the given plan. Its population has the canaries behind the clients.
            It asks ``update(number)`` once for each client that takes part. It charges the run, as
            `privatize` does.
        update: returns the update of a client: a tensor [d], or tensors by name.
        plan: of the loop, for its own clients.
        like: tensors of the layout of an update (the model's parameters), or one tensor [d].
        rounds: that the run of the ledger is planned for.
        delta: at which epsilon is shown.
        canaries, others, error, confidence, generator: as for `audit_run`.
    Returns:
        The findings, as for `audit_run`.
    Raises:
        AuditFailed: the loop released more than it charged.
        InvalidParameter: as for `audit_run`, or for an argument of another kind. Also if fewer
            means were yielded than were charged, or a mean has another layout.
        Unsupported: rounds were charged that are not those of the plan, or a parameter is not a
            floating-point number. Also if the loop asked for no canary, and shows nothing.
    """
    audit = CanaryAudit(canaries, others, error, confidence, generator)
    length, at = validate.rounds(rounds), validate.delta(delta)
    check_functions(loop=loop, update=update)
    given: object = plan
    if not isinstance(given, AggregationPlan):
        raise InvalidParameter("plan", type(given).__name__, "it is an AggregationPlan")
    if not _is_update(like):
        rule = "it is a tensor, or tensors by name: dict(model.named_parameters())"
        raise InvalidParameter("like", type(like).__name__, rule)
    clients = plan.num_clients or plan.public.size
    grown = _grown(plan, clients + canaries)
    template = {"update": like} if isinstance(like, Tensor) else like
    layout, bound = Layout.of(template), cast("Bound", grown.bound)
    check_tensors(template, layout, "like")
    rate, relation = grown.sampling.sampling_rate, Adjacency(cast("str", grown.adjacency))
    audit.aim(layout.sizes, bound.clip_norm, rate, relation)
    flat = layout.flatten(template).detach()
    row = flat if flat.dtype == torch.float64 else flat.float()
    most = grown.charge.contributions
    aimed = Aimed.of(
        audit.canaries, lambda rows: contribute(rows, bound, layout, most)[0], row, bound.clip_norm
    )
    event = grown.charge.event(bound, grown.noise, {"clip_norm": bound.clip_norm})

    sent = _sent(audit, update, clients, layout, like)
    with passing_ledger(at) as ledger:
        run = ledger.start_run("audit", plan=length * grown.round)
        releases: object = loop(grown, run, sent)
        if not isinstance(releases, Iterable):
            rule = "it yields each mean that it releases"
            raise InvalidParameter("loop", type(releases).__name__, rule)
        for released in cast("Iterable[object]", releases):
            audit.see(_mean(released, layout) * grown.charge.cohort_size, aimed, event)
            count = len(audit.events)
            if count > run.committed:
                raise AuditFailed(f"release {count} was not charged: {run!r} has {run.committed}")
        count = len(audit.events)
        if not count:
            raise InvalidParameter("loop", "no release", "it yields each mean that it releases")
        if count < run.committed:
            rule = f"it yields each mean that it releases, and charged {run.committed}"
            raise InvalidParameter("loop", f"{count} releases", rule)
        if not run.on_plan:
            raise Unsupported(f"the loop charged other rounds than the plan's, {grown.round!r}")
        charged = run.epsilon()
    audit.check_asked(
        "the loop asked for no canary: it draws cohorts by the plan that it is given, and asks "
        "the update that it is given"
    )
    return audit.conclude(charged, "tight", clients)


# A run of the engine, for `audit_run`, `audit_server` and `audit_round`.


def _audited_loop(run: Federation, people: Population) -> RoundLoop:
    """Return the loop of a run on these clients, if its promise can be tested."""
    if run.engine.clients is not people:
        rule = "the run trains the clients that it is given"
        raise InvalidParameter("build", type(run.engine.clients).__name__, rule)
    _check_promise(run)
    return run.player


def _check_promise(run: PrivateRun) -> None:
    """Reject a run with a promise that is not made round by round from its beginning."""
    if run.round:
        raise Unsupported("a run is audited from its beginning, and this one goes on from another")
    if run.state.noise is not None:
        raise Unsupported(
            "correlated noise, which is charged for all rounds together: this audit tests rounds "
            "one by one. The preflight tests the rows of noise and their charge"
        )
    if run.not_private_because is not None:
        raise Unsupported(f"nothing is promised that could be tested: {run.not_private_because}")
    if run.engine.allocator is not None:
        raise Unsupported(
            "an audit of random allocation: its epochs are charged as a whole, and the audit "
            "compares round by round. Audit the same run with Poisson(1 / steps)"
        )


def _refuse_ledger(account: Account) -> None:
    """Reject a run that would keep its charge."""
    if account.path is not None:
        rule = "an audit releases nothing, so that it charges no ledger and keeps no checkpoint"
        raise Unsupported(f"{rule}: build the run without ledger= and checkpoint=")


def _contributions(engine: Engine, state: TrainingState, canaries: Canaries) -> tuple[Aimed, Event]:
    """Return the canaries' bounded contributions to the next round, and its charge."""
    kept = engine.open(state).kept

    def bounded(rows: Tensor) -> Tensor:
        inside = engine.bound(state, kept, rows).bounded.rows
        return scatter(inside, kept, engine.layout.size)

    like = next(iter(state.params.values()))
    aimed = Aimed.of(canaries, bounded, like, state.bound.clip_norm)
    return aimed, engine.plan.event(state.bound, engine.noise, {})


def _aim(audit: CanaryAudit, engine: Engine, state: TrainingState) -> None:
    plan, norm = engine.plan, state.bound.clip_norm
    audit.aim(engine.layout.sizes, norm, plan.sampling.sampling_rate, plan.adjacency)


def _see_round(
    audit: CanaryAudit, engine: Engine, before: TrainingState, after: TrainingState
) -> None:
    """Note the release of a round. There is none if too few noise shares arrived."""
    if after is not before and after.released is not None:
        aimed, event = _contributions(engine, before, audit.canaries)
        audit.see(after.released * engine.plan.cohort_size, aimed, event)


def _check_seen(audit: CanaryAudit, stopped_because: str | None) -> None:
    if audit.events:
        return
    if stopped_because:
        raise InvalidParameter("rounds", 0, f"no round ran: {stopped_because}")
    raise Unsupported("too few noise shares arrived, and nothing was released")


# A loop by hand.


def _is_update(given: object) -> TypeGuard[Tensor | Tensors]:
    if isinstance(given, Mapping):
        return all(isinstance(part, Tensor) for part in cast("Tensors", given).values())
    return isinstance(given, Tensor)


def _mean(released: object, layout: Layout) -> Tensor:
    """Return a released mean as one vector [d]."""
    if not _is_update(released):
        rule = "each mean that it yields is a tensor, or tensors by name"
        raise InvalidParameter("loop", type(released).__name__, rule)
    mean = {"update": released} if isinstance(released, Tensor) else released
    check_tensors(mean, layout, "a released mean")
    return layout.flatten(mean).detach()


def _sent(
    audit: CanaryAudit, update: Update, clients: int, layout: Layout, like: Tensor | Tensors
) -> Update:
    """Return the function that gives the update of each client and canary, formed ``like`` one."""
    everybody = clients + len(audit.canaries)

    def sent(number: int) -> Any:
        if not (isinstance(number, SupportsIndex) and 0 <= number.__index__() < everybody):
            rule = f"the numbers that the plan draws are those from 0 to {everybody - 1}"
            raise InvalidParameter("number", number, rule)
        place = number.__index__()
        if place >= clients:
            planted = audit.canaries.sent(place - clients)
        else:
            own = update(place)
            if not audit.silent:
                return own
            planted = audit.canaries.silence()
        if isinstance(like, Tensor):
            return planted.to(like)
        return {name: part.to(like[name]) for name, part in layout.unflatten(planted).items()}

    return sent


def _grown(plan: AggregationPlan, number: int) -> AggregationPlan:
    """Return the plan for a number of clients and canaries, with cohorts of the same share."""
    sampling = plan.sampling
    if isinstance(sampling, Uniform):
        cohort_size = max(1, min(number - 1, round(sampling.sampling_rate * number)))
        sampling = Uniform(cohort_size, number)
    # The clip norm is that of the bound.
    return replace(plan, clip_norm=None, num_clients=number, sampling=sampling)


# One round, run many times.

_FAULT = "one client is recognized more often than the charged budget of a round allows"


@dataclass(frozen=True, slots=True)
class RoundAudit:
    """The result of many repetitions of a round.

    Attributes:
        charged: the epsilon that one round is charged, at its delta.
        epsilon: a round exceeds it, for every kind of noise.
        gaussian_epsilon: a round exceeds it, if its noise is Gaussian and its sampling as charged.
        tpr, fpr: how often the client is recognized if it takes part, and if it does not.
        runs: repetitions with the client, and equally many without it or with its opposite.
        error: probability that a round fails although its privacy is as charged.
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
        build: makes the run for a population, as for `audit_run`.
        clients: the other clients. Few are enough, and quicker.
        runs: repetitions with the client, which sends the largest possible contribution. Equally
            many run without it (under replace-one: with its opposite). Half choose the test.
        others, error, confidence, generator: as for `audit_run`.
    Returns:
        The findings. With n runs, the shown epsilon is at most about log(n / 8).
    Raises:
        InvalidParameter: too few runs for the error. Unsupported: rounds cannot be repeated here,
            or the run has no finite epsilon.
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
        player = _audited_loop(run, people)
        if not isinstance(player, RoundLoop):
            raise Unsupported("one process repeats a round, and this run has several")
        _refuse_ledger(player.account)
        delta, accountant = player.account.delta, player.account.accountant
        engine, state = player.engine, player.state
        plan = engine.plan
        rate, replaced = plan.sampling.sampling_rate, plan.adjacency is Adjacency.REPLACE_ONE
        canary.aim(engine.layout.size, state.bound.clip_norm, replaced=replaced)
        player.prepare()
        aimed, event = _contributions(engine, state, canary)

        def shown(*, inside: bool) -> float:
            """Repeat the round, and return the client's part in its release, in clip norms."""
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
        noise_of(event.charged),
    )


def least_runs(error: float) -> int:
    """Return how many runs can refute a claim, if chance alone does it with this probability."""
    # All runs of the second half separated: both limits are a power of it.
    return 2 * max(2, math.ceil(-math.log2(error / 4)) + 1)
