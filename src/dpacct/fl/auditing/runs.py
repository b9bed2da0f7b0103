"""Audits by canaries: `audit_run` and `audit_server`.

They put canaries behind the clients of a training (`dpacct.fl.auditing.canaries`), let
it run as it is, and read only its noisy means. They differ in the transport of the messages:

- `audit_run`: a `Federation` in one or several processes. Each process has the coins of rank 0,
  trains its share of the canaries, and gets the result of rank 0.
- `audit_server`: a `Server` with its messages carried by the user's code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Aimed, Canaries, with_canaries
from dpacct.fl.auditing.canary_audit import CanaryAudit, RunAudit, check_functions
from dpacct.fl.clients import Examples, Population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.federation import Federation, PrivateRun
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.server import Server
from dpacct.ledger import Event


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
        _check_audited(run, people)
        look = _watch(audit, run)

        def drawn() -> tuple[Tensor, Tensor, Tensor]:
            # Only rank 0 can have a ledger.
            _refuse_ledger(run.account)
            return audit.canaries.drawn

        audit.canaries.adopt(run.agree(drawn))
        for _ in run:
            look()

        def concluded() -> RunAudit:
            _check_seen(audit, run.stopped_because)
            return audit.conclude(run.epsilon, run.account.accountant, len(clients))

        return run.agree(concluded)


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
        server.on_settled(_watch(audit, server))
        play(server, people)
        _check_seen(audit, server.stopped_because)
        if not audit.canaries.asked:
            raise Unsupported(
                "no canary was asked for its update: client k is people[k], and if that is an "
                "fl.Canary it sends its update"
            )
        return audit.conclude(server.epsilon, server.account.accountant, len(clients))


# A run of the engine, for `audit_run` and `audit_server`.


def _check_audited(run: Federation, people: Population) -> None:
    """Check that a run has these clients, and a promise that can be tested."""
    if run.engine.clients is not people:
        rule = "the run trains the clients that it is given"
        raise InvalidParameter("build", type(run.engine.clients).__name__, rule)
    _check_promise(run)


def _check_promise(run: PrivateRun) -> None:
    """Reject a run with a promise that is not made round by round from its beginning."""
    if run.round:
        raise Unsupported("a run is audited from its beginning, and this one goes on from another")
    if run.state.noise is not None:
        raise Unsupported(
            "correlated noise, which is charged for all rounds together: this audit tests rounds "
            "one by one"
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
    size = engine.layout.size
    carried = torch.ones(size if kept is None else len(kept), dtype=torch.bool)
    carried = scatter(carried, None if kept is None else kept.cpu(), size)
    aimed = Aimed.of(canaries, bounded, like, carried, state.bound.clip_norm)
    return aimed, engine.plan.event(state.bound, engine.noise, {})


def _watch(audit: CanaryAudit, run: PrivateRun) -> Callable[[], None]:
    """Aim the canaries, and return a function that notes the latest release, if there is one."""
    engine, before = run.engine, run.state
    plan, norm = engine.plan, before.bound.clip_norm
    audit.aim(engine.layout.sizes, norm, plan.sampling.sampling_rate, plan.adjacency)

    def look() -> None:
        nonlocal before
        # None is released if too few noise shares arrived.
        if run.state is not before and run.state.released is not None:
            aimed, event = _contributions(run.engine, before, audit.canaries)
            audit.see(run.state.released * run.engine.plan.cohort_size, aimed, event)
        before = run.state

    return look


def _check_seen(audit: CanaryAudit, stopped_because: str | None) -> None:
    if audit.events:
        return
    if stopped_because:
        raise InvalidParameter("rounds", 0, f"no round ran: {stopped_because}")
    raise Unsupported("too few noise shares arrived, and nothing was released")
