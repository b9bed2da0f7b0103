"""The server's half of a round whose sum is hidden: keys, a roster, masked rows, their sum.

Rule 1: the round is committed before a roster leaves: with the last masked row the server can read
the noisy sum, and from then on it was released. Rule 2: all of the roster, or nothing: without one
of them no mask cancels, and no second roster is sent, since it would show a difference of sums.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from dpacct.fl.engine.open_round import OpenRound
from dpacct.fl.flower.exchange import exchange
from dpacct.fl.flower.hidden_wire import About, Key, Roster, pack_roster
from dpacct.fl.flower.judging import Judge, judged

_LOG = logging.getLogger("flwr")


@dataclass(frozen=True, slots=True)
class Terms:
    """On which clients let themselves be summed.

    Attributes:
        minimum: shares of noise, at least. least: clients that each of them asks for.
        signed: whether they ask for signatures of the others.
    """

    minimum: int
    least: Mapping[int, int]
    signed: bool


def sum_hidden(
    grid: Grid,
    opened: OpenRound,
    replies: Iterable[Message],
    judge: Judge,
    terms: Terms,
    timeout: float,
    poll: float,
) -> None:
    """Fill a round with the sum of those who answered; with nothing if one is lost on the way.

    Args:
        grid: of the ServerApp. opened: the round. replies: with public keys, as they come.
        judge: of answers. terms: on which clients let themselves be summed.
        timeout: seconds to wait for all masked rows. poll: seconds between looks.
    Raises:
        LedgerError: the ledger cannot be written; no roster leaves.
    """
    keys: dict[int, Key] = {}
    for key in judged(replies, judge.key):
        if bool(key.signature) is terms.signed:
            keys.setdefault(key.about.client, key)
    came_first = len(keys)
    keys = _content(keys, terms.least)
    if len(keys) < terms.minimum:
        said = "round %s: %s of %s clients are content with so many, of %s shares: no sum"
        _LOG.warning(said, judge.number, len(keys), came_first, terms.minimum)
        return
    # Rule 1.
    opened.commit()
    public = [key.public for key in keys.values()]
    names = [(client, key.signature) for client, key in keys.items()] if terms.signed else []
    messages = [
        Message(
            pack_roster(Roster(About(judge.tag, judge.number, client), public, names)),
            dst_node_id=judge.nodes[client],
            message_type="train",
            group_id=str(judge.number),
        )
        for client in keys
    ]
    total = torch.zeros_like(opened.found.total)
    came: set[int] = set()
    for found in judged(exchange(grid, messages, timeout, poll), judge.masked):
        client = found.about.client
        if client in keys and client not in came:
            came.add(client)
            # Modulo 2^64.
            total += found.row.to(total.device)
    # Rule 2.
    if came != keys.keys():
        lost = sorted(keys.keys() - came)
        _LOG.warning("round %s is lost: clients %s left after the keys", judge.number, lost)
        return
    opened.add_sum(sorted(keys), total)


def _content(keys: dict[int, Key], least: Mapping[int, int]) -> dict[int, Key]:
    """The most clients of which each is content with their number.

    Who asks for more than there are would refuse the roster, and the round would be lost.
    """
    while len(found := {c: key for c, key in keys.items() if least[c] <= len(keys)}) < len(keys):
        keys = found
    return keys
