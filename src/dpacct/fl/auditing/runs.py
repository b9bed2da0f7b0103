"""Audits by canaries: `audit_run`, `audit_server` and `audit_loop`.

All three put canaries behind the clients of a training (`dpacct.fl.auditing.canaries`), let it run
as it is, and look at the noisy means alone. They differ in what carries the messages:

- `audit_run`: a `Federation` in one or several processes. Each process has the coins of rank 0,
  trains its share of the canaries, and gets the result of rank 0;
- `audit_server`: a `Server`, whose messages the user's code carries;
- `audit_loop`: a loop written by hand around `privatize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, SupportsIndex, TypeGuard, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Aimed, Canaries, Directions, Watch, with_canaries
from dpacct.fl.auditing.verdict import (
    SURELY,
    RunAudit,
    Wanted,
    check_functions,
    conclude,
    passing_ledger,
)
from dpacct.fl.clients import Population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.examples import Examples
from dpacct.fl.federation import Federation
from dpacct.fl.layout import Layout, check_tensors
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.privatize import AggregationPlan, Tensors
from dpacct.fl.server import Server
from dpacct.ledger import Event, Run
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
    """Train a run with canaries among its clients, and test what it releases.

    Args:
        build: makes the run for a population, e.g.
            ``lambda people: Federation(model, loss, people, rounds=20, ...)``. The model is a new
            one, because it is trained. The run has no ledger and no checkpoint, and cohorts of a
            fixed size are said for ``len(people)``. With ``distributed=True`` every process calls
            `audit_run`.
        clients: the other clients.
        canaries: how many; each takes part or not (under replace-one: sends one of two opposite
            updates) by a coin. About 200 find noise that is 20 % too small.
        others: "silent": they train, and send nothing. Privacy is promised against attackers who
            know what others send, and can subtract it, so this shows most. "heard": they send what
            they train, which hides canaries, and shows what the model of a real run does.
        error: probability that a run which does as it is charged for fails.
        confidence: of the epsilons that are shown, each.
        generator: of coins and directions, on the CPU; default the operating system. Torch's
            global generator is not drawn from. What the run draws must not follow from it.
    Returns:
        What was shown. Fewer canaries and rounds show less; passing is evidence, not a proof.
    Raises:
        InvalidParameter: too few canaries for the error, or more than the model has room for.
        Unsupported: a run whose release this audit cannot read.
    """
    wanted = Wanted(canaries, others, error, confidence, generator)
    check_functions(build=build)
    planted = wanted.plant()
    people = with_canaries(clients, planted, silent=wanted.silent)
    made: object = build(people)
    if not isinstance(made, Federation):
        raise InvalidParameter("build", type(made).__name__, "it makes a Federation")
    with made as run:
        player = watched(run, people)
        watch = _watch_engine(player.engine, player.state, planted)

        def drawn() -> tuple[Tensor, Directions]:
            # Rank 0 alone knows whether there is a ledger.
            refuse_ledger(player.account)
            return planted.drawn

        planted.adopt(player.agree(drawn))
        before = player.state
        for _ in run:
            _see_round(watch, planted, player.engine, before, player.state)
            before = player.state

        def concluded() -> RunAudit:
            _refuse_nothing_seen(watch, run.stopped_because)
            return conclude(watch, run.epsilon, player.account.accountant, wanted, len(clients))

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
    """Run a server with canaries among its clients, and test what it releases.

    Args:
        build: makes the server for so many clients, without ledger and checkpoint.
        play: ``play(server, people)`` runs the rounds, e.g. by Flower's strategy. Client k has
            ``people[k]``; if that is an `fl.Canary` it sends ``people[k].update``, bounded like
            any other: `dpacct.fl.flower.client_app` does so by itself, and `planted_mod` for a
            loop of your own.
        clients: the other clients.
        canaries, others, error, confidence, generator: as for `audit_run`.
    Returns:
        What was shown; as for `audit_run`. A round that releases nothing shows nothing.
    Raises:
        InvalidParameter: as for `audit_run`, or ``build`` made a server for other clients.
        Unsupported: as for `audit_run`; nothing was released, or no client was asked for.
    """
    if isinstance(clients, Examples):
        rule = "clients of a server hold data of their own, a ClientData each"
        raise InvalidParameter("clients", "Examples", rule)
    wanted = Wanted(canaries, others, error, confidence, generator)
    check_functions(build=build, play=play)
    planted = wanted.plant()
    people = with_canaries(clients, planted, silent=wanted.silent)
    made: object = build(len(people))
    if not isinstance(made, Server):
        raise InvalidParameter("build", type(made).__name__, "it makes a Server")
    with made as server:
        if server.engine.num_clients != len(people):
            rule = f"it makes the server of {len(people)} clients, canaries among them"
            raise InvalidParameter("build", server.engine.num_clients, rule)
        _refuse_unaudited(server.state, server.not_private_because)
        refuse_ledger(server.account)
        watch = _watch_engine(server.engine, server.state, planted)
        states = [server.state]

        def look() -> None:
            states.append(server.state)
            _see_round(watch, planted, server.engine, *states[-2:])
            del states[0]

        server.on_settled(look)
        play(server, people)
        _refuse_nothing_seen(watch, server.stopped_because)
        if not planted.asked:
            raise Unsupported(
                "no canary was asked what it sends: client k is people[k], and if that is an "
                "fl.Canary it sends its update"
            )
        charged, accountant = server.epsilon, server.account.accountant
        return conclude(watch, charged, accountant, wanted, len(clients))


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
    """Run a loop with canaries in its population, and test what it releases.

    Args:
        loop: ``loop(plan, run, update)`` trains, and yields each mean that it releases. It draws
            cohorts by the plan it is given, whose population has the canaries behind the clients;
            what a client sends it asks of ``update(number)``, once for each that takes part; it
            charges the run, as `privatize` does.
        update: what a client of this number sends: a tensor [d], or tensors by name.
        plan: of the loop, for its own clients.
        like: tensors of the layout of an update (the model's parameters), or one tensor [d].
        rounds: that the run of the ledger is planned for.
        delta: at which epsilon is shown.
        canaries, others, error, confidence, generator: as for `audit_run`.
    Returns:
        What was shown; as for `audit_run`.
    Raises:
        AuditFailed: the loop released more than it charged.
        InvalidParameter: as for `audit_run`; an argument of another kind; or fewer means were
            yielded than were charged, or one of another layout.
        Unsupported: rounds were charged that are not those of the plan; a parameter is no
            floating-point number; or the loop asked for no canary, and shows nothing.
    """
    wanted = Wanted(canaries, others, error, confidence, generator)
    length, at = validate.rounds(rounds), validate.delta(delta)
    check_functions(loop=loop, update=update)
    given: object = plan
    if not isinstance(given, AggregationPlan):
        raise InvalidParameter("plan", type(given).__name__, "it is an AggregationPlan")
    if not _is_update(like):
        rule = "it is a tensor, or tensors by name: dict(model.named_parameters())"
        raise InvalidParameter("like", type(like).__name__, rule)
    clients, planted = plan.num_clients or plan.public.size, wanted.plant()
    grown = _grown(plan, clients + len(planted))
    template = _by_name(like)
    layout, bound = Layout.of(template), cast("Bound", grown.bound)
    check_tensors(template, layout, "like")
    relation = Adjacency(cast("str", grown.adjacency))
    watch = _aim(planted, layout, bound, grown.sampling.sampling_rate, relation)
    most = grown.charge.contributions
    flat = layout.flatten(template).detach()
    row = flat if flat.dtype == torch.float64 else flat.float()
    aimed = Aimed.of(
        planted, lambda rows: contribute(rows, bound, layout, most)[0], row, bound.clip_norm
    )
    event = grown.charge.event(bound, grown.noise, {"clip_norm": bound.clip_norm})
    sent = _sent(planted, clients, update, layout, like, silent=wanted.silent)
    with passing_ledger(at) as ledger:
        run = ledger.start_run("audit", plan=length * grown.round)
        count = 0
        releases: object = loop(grown, run, sent)
        if not isinstance(releases, Iterable):
            rule = "it yields each mean that it releases"
            raise InvalidParameter("loop", type(releases).__name__, rule)
        for released in cast("Iterable[object]", releases):
            count += 1
            watch.see(_mean(released, layout) * grown.charge.cohort_size, aimed, event)
            if count > run.committed:
                raise AuditFailed(f"release {count} was not charged: {run!r} has {run.committed}")
        if not count:
            raise InvalidParameter("loop", "no release", "it yields each mean that it releases")
        if count < run.committed:
            rule = f"it yields each mean that it releases, and charged {run.committed}"
            raise InvalidParameter("loop", f"{count} releases", rule)
        if not run.on_plan:
            raise Unsupported(f"the loop charged other rounds than the plan's, {grown.round!r}")
        charged = run.epsilon()
    expected = grown.sampling.sampling_rate * len(planted) * count
    if not planted.asked and expected > SURELY:
        raise Unsupported(
            "the loop asked for no canary: it draws cohorts by the plan that it is given, and asks "
            "the update that it is given"
        )
    return conclude(watch, charged, "tight", wanted, clients)


# What a run of the engine releases, for `audit_run`, `audit_server` and `audit_round`.


def watched(run: Federation, people: Population) -> RoundLoop:
    """Return the player of a run on these people, whose promise can be tested.

    Raises:
        InvalidParameter: it trains others. Unsupported: nothing is promised, or the run goes on
            from a checkpoint.
    """
    player = run.player
    if player.engine.clients is not people:
        rule = "the run trains the clients that it is given"
        raise InvalidParameter("build", type(player.engine.clients).__name__, rule)
    _refuse_unaudited(player.state, run.not_private_because)
    return player


def _refuse_unaudited(state: TrainingState, not_private_because: str | None) -> None:
    if state.round:
        raise Unsupported("a run is audited from its beginning, and this one goes on from another")
    if not_private_because is not None:
        raise Unsupported(f"nothing is promised that could be tested: {not_private_because}")


def refuse_ledger(account: Account) -> None:
    """Refuse a run whose charge would be kept.

    Raises:
        Unsupported: it has a ledger or a checkpoint.
    """
    if account.path is not None:
        rule = "an audit releases nothing, so that it charges no ledger and keeps no checkpoint"
        raise Unsupported(f"{rule}: build the run without ledger= and checkpoint=")


def contributions(engine: Engine, state: TrainingState, canaries: Canaries) -> tuple[Aimed, Event]:
    """Return what canaries contribute to the next round, bounded by the engine, and its charge."""
    kept = engine.open(state).kept

    def bounded(rows: Tensor) -> Tensor:
        inside = engine.bound(state, kept, rows).bounded.rows
        return scatter(inside, kept, engine.layout.size)

    like = next(iter(state.params.values()))
    aimed = Aimed.of(canaries, bounded, like, state.bound.clip_norm)
    return aimed, engine.plan.event(state.bound, engine.noise, {})


def _aim(
    canaries: Canaries, layout: Layout, bound: Bound, rate: float, adjacency: Adjacency
) -> Watch:
    """Give canaries their directions, and watch them."""
    replaced = adjacency is Adjacency.REPLACE_ONE
    canaries.aim(layout.size, bound.clip_norm, replaced=replaced)
    return Watch(canaries, rate, adjacency, layout.sizes)


def _watch_engine(engine: Engine, state: TrainingState, canaries: Canaries) -> Watch:
    plan = engine.plan
    return _aim(canaries, engine.layout, state.bound, plan.sampling.sampling_rate, plan.adjacency)


def _see_round(
    watch: Watch, canaries: Canaries, engine: Engine, before: TrainingState, after: TrainingState
) -> None:
    """Note what a round has released, if it has; too few noise shares may have arrived."""
    if after is before or after.released is None:
        return
    aimed, event = contributions(engine, before, canaries)
    watch.see(after.released * engine.plan.cohort_size, aimed, event)


def _refuse_nothing_seen(watch: Watch, stopped_because: str | None) -> None:
    if watch.events:
        return
    if stopped_because:
        raise InvalidParameter("rounds", 0, f"no round ran: {stopped_because}")
    raise Unsupported("too few noise shares arrived, and nothing was released")


# What a loop by hand sends and releases.


def _is_update(given: object) -> TypeGuard[Tensor | Tensors]:
    if isinstance(given, Mapping):
        return all(isinstance(part, Tensor) for part in cast("Tensors", given).values())
    return isinstance(given, Tensor)


def _by_name(update: Tensor | Tensors) -> Tensors:
    return {"update": update} if isinstance(update, Tensor) else update


def _grown(plan: AggregationPlan, number: int) -> AggregationPlan:
    """Return the plan for so many clients and canaries; cohorts have the same share of them."""
    sampling = plan.sampling
    if isinstance(sampling, Uniform):
        cohort_size = max(1, min(number - 1, round(sampling.sampling_rate * number)))
        sampling = Uniform(cohort_size, number)
    # The clip norm is that of the bound.
    return replace(plan, clip_norm=None, num_clients=number, sampling=sampling)


def _mean(released: object, layout: Layout) -> Tensor:
    """Return a released mean as one vector [d]."""
    if not _is_update(released):
        rule = "each mean that it yields is a tensor, or tensors by name"
        raise InvalidParameter("loop", type(released).__name__, rule)
    check_tensors(_by_name(released), layout, "a released mean")
    return layout.flatten(_by_name(released)).detach()


def _sent(
    canaries: Canaries,
    clients: int,
    update: Update,
    layout: Layout,
    like: Tensor | Tensors,
    *,
    silent: bool,
) -> Update:
    """Return the function that gives what each number of the population sends."""

    def shaped(row: Tensor) -> Any:
        # In the form in which the loop knows updates.
        if isinstance(like, Tensor):
            return row.to(like)
        return {name: part.to(like[name]) for name, part in layout.unflatten(row).items()}

    def sent(number: int) -> Any:
        people = clients + len(canaries)
        if not (isinstance(number, SupportsIndex) and 0 <= number.__index__() < people):
            rule = f"the numbers that the plan draws are those from 0 to {people - 1}"
            raise InvalidParameter("number", number, rule)
        place = number.__index__()
        if place >= clients:
            return shaped(canaries.sent(place - clients))
        own = update(place)
        return shaped(canaries.nothing()) if silent else own

    return sent
