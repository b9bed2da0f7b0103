"""`audit_run`: train with canaries, and see from the releases alone which of them took part.

What runs is the run that the user builds: model, method, bound, noise, sampling, trainer. What is
seen is what leaves the aggregator: the noisy mean of each round.

In several processes each has the coins of rank 0, trains its share of the canaries, and gets rank
0's result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries, Directions
from dpacct.fl.auditing.populations import with_canaries
from dpacct.fl.auditing.releases import aim_at, refuse_ledger, refuse_unaudited, see_round
from dpacct.fl.auditing.verdict import RunAudit, Wanted, check_functions, conclude
from dpacct.fl.auditing.watching import Watch
from dpacct.fl.clients import Population
from dpacct.fl.engine.player import Player
from dpacct.fl.federation import Federation


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
            ``lambda people: Federation(model, loss, people, rounds=20, ...)``. With a model of its
            own, for it is trained, and without ledger and checkpoint; cohorts of a fixed size are
            said for ``len(people)``. With ``distributed=True`` every process calls `audit_run`.
        clients: who else takes part.
        canaries: how many; each takes part or not (under replace-one: sends one of two opposite
            updates) by a coin. About 200 find noise that is 20 % too small.
        others: "silent": they train, and send nothing. Privacy is promised against attackers who
            know what others send, and can subtract it; so this shows most. "heard": they send what
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
    wanted = Wanted.checked(canaries, others, error, confidence, generator)
    check_functions(build=build)
    planted = wanted.plant()
    people = with_canaries(clients, planted, silent=wanted.silent)
    made: object = build(people)
    if not isinstance(made, Federation):
        raise InvalidParameter("build", type(made).__name__, "it makes a Federation")
    with made as run:
        player = watched(run, people)
        watch = aim_at(player.engine, player.state, planted)
        planted.adopt(player.agree(lambda: _free(player, planted)))
        before = player.state
        for _ in run:
            see_round(watch, planted, player.engine, before, player.state)
            before = player.state

        def concluded() -> RunAudit:
            refuse_nothing_seen(watch, run.stopped_because)
            return conclude(watch, run.epsilon, player.account.accountant, wanted, len(clients))

        return player.agree(concluded)


def _free(player: Player, planted: Canaries) -> tuple[torch.Tensor, Directions]:
    """Coins and directions of rank 0, which alone knows whether there is a ledger."""
    refuse_ledger(player.account)
    return planted.drawn


def watched(run: Federation, people: Population) -> Player:
    """The player of a run on these people, whose promise can be tested.

    Raises:
        InvalidParameter: it trains others. Unsupported: see `refuse_unaudited`.
    """
    player = run.player
    if player.engine.clients is not people:
        rule = "the run trains the clients that it is given"
        raise InvalidParameter("build", type(player.engine.clients).__name__, rule)
    refuse_unaudited(player.state, run.not_private_because)
    return player


def refuse_nothing_seen(watch: Watch, stopped_because: str | None) -> None:
    """A run without a release.

    Raises:
        InvalidParameter: no round ran. Unsupported: none released anything.
    """
    if watch.events:
        return
    if stopped_because:
        raise InvalidParameter("rounds", 0, f"no round ran: {stopped_because}")
    raise Unsupported("too few noise shares arrived, and nothing was released")
