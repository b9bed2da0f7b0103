"""`audit_server`: the audit of a run whose clients train elsewhere, with the clients' side in it.

The user's code carries the messages (Flower's, or its own) and lets clients train, bound and send;
canaries are clients behind the others. What is seen is what the server releases.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.populations import with_canaries
from dpacct.fl.auditing.releases import aim_at, refuse_ledger, refuse_unaudited, see_round
from dpacct.fl.auditing.runs import refuse_nothing_seen
from dpacct.fl.auditing.verdict import RunAudit, Wanted, check_functions, conclude
from dpacct.fl.clients import Population
from dpacct.fl.examples import Examples
from dpacct.fl.server import Server


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
    """Play a server's run with canaries among its clients, and test what it releases.

    Args:
        build: makes the server for so many clients, without ledger and checkpoint.
        play: ``play(server, people)`` plays the rounds, e.g. by Flower's strategy. Client k has
            ``people[k]``; where that is an `fl.Canary` it sends ``people[k].update``, bounded like
            any other: `dpacct.fl.flower.client_app` does so by itself, and `planted_mod` for a
            loop of one's own.
        clients: who else takes part.
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
    wanted = Wanted.checked(canaries, others, error, confidence, generator)
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
        refuse_unaudited(server.state, server.not_private_because)
        refuse_ledger(server.account)
        watch = aim_at(server.engine, server.state, planted)
        states = [server.state]

        def look() -> None:
            states.append(server.state)
            see_round(watch, planted, server.engine, *states[-2:])
            del states[0]

        server.on_settled(look)
        play(server, people)
        refuse_nothing_seen(watch, server.stopped_because)
        if not planted.asked:
            raise Unsupported(
                "no canary was asked what it sends: client k is people[k], and where that is an "
                "fl.Canary it sends its update"
            )
        charged, accountant = server.epsilon, server.account.accountant
        return conclude(watch, charged, accountant, wanted, len(clients))
