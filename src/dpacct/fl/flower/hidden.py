"""A client's half of a round whose sum is hidden: noise of its own, then masks.

Rule 1: such a client sends its update in no other way. Rule 2: noise and roster are no smaller than
it was told when it was set up, whatever the server says. Rule 3: an update is masked once: a second
roster with another set of clients would show the difference of two sums. Rule 4: what waits for the
roster stays in the node's own state, and its noise is drawn with the answer: Flower lets a node
work on two messages at once, or loses its state behind an answer, and then rule 3 fails. Two
answers hold independent shares, so that two sums cost two releases, and their difference shows
nobody's update with less noise than a sum has. Rule 5: masks are made for one set of terms (bound,
noise, grid, size): those who were told different ones share no masks, and nothing can be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire
from dpacct.fl.flower.bounds import bound_to_json
from dpacct.fl.flower.hidden_wire import (
    About,
    Key,
    MaskedRow,
    pack_key,
    pack_masked,
    unpack_roster,
)
from dpacct.fl.flower.masks import mask, new_key
from dpacct.fl.flower.members import Membership
from dpacct.fl.flower.wire import Assignment
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.exact_gaussian import rounded_gaussian
from dpacct.fl.privacy.grid_shares import share_sigma
from dpacct.fl.privacy.noise import NoiseShares
from dpacct.fl.privacy.randomness import OperatingSystem
from dpacct.fl.privacy.secure_noise import SecureGaussianNoise
from dpacct.fl.tensors import from_array

_WAITING, _ROW = "dpacct.waiting", "dpacct.waiting.row"


@dataclass(frozen=True, slots=True)
class HiddenSum:
    """What a client insists on before it lets itself be summed with others.

    Args:
        minimum: shares of noise that make up the whole; that of the server's `fl.NoiseShares`. So
            many clients of a sum are to be honest.
        noise_multiplier: of the noise on a sum, at least: what ``minimum`` shares make up.
        roster: clients in a sum, at least; by default ``minimum``. Where some may help an attacker,
            more by their number.
        membership: of the client that a node is; its keys are signed, and it is summed with members
            alone. Without it the server is trusted to hand out the keys of the clients.

    Raises:
        InvalidParameter: a value out of range.
    """

    minimum: int
    noise_multiplier: float
    roster: int | None = None
    membership: Callable[[Context], Membership] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "minimum", NoiseShares(self.minimum).minimum)
        least_of_all = self.minimum if self.roster is None else self.roster
        roster = validate.count("roster", least_of_all, "the least number of clients in a sum")
        if roster < self.minimum:
            rule = f"a sum holds at least {self.minimum} shares"
            raise InvalidParameter("roster", roster, rule)
        object.__setattr__(self, "roster", roster)
        rule = "the least noise multiplier of a sum"
        least = validate.above_zero("noise_multiplier", self.noise_multiplier, rule)
        object.__setattr__(self, "noise_multiplier", least)

    def told(self) -> dict[str, int | float | bool]:
        """What the server has to know of it before the first round."""
        return {
            "minimum": self.minimum,
            "noise_multiplier": self.noise_multiplier,
            "roster": self.roster or self.minimum,
            "signs": self.membership is not None,
        }

    def check(self, given: Assignment) -> None:
        """An assignment that keeps to it. Rules 1 and 2.

        Raises:
            InvalidParameter: it does not.
        """
        if given.shares is None:
            rule = "this client sends its update behind masks alone"
            hint = "On the server use fl.Server(noise=fl.NoiseShares(...))."
            raise InvalidParameter("noise", "added by the server", rule, hint)
        minimum, std = given.shares
        if minimum != self.minimum:
            rule = f"this client adds one of {self.minimum} shares"
            raise InvalidParameter("minimum", minimum, rule)
        # Of the shares that will be drawn, and exactly: products and roots round either way.
        least = Fraction(self.noise_multiplier) * Fraction(given.bound.clip_norm)
        share = NoiseShares(minimum).share_std(std)
        if not (0 < share < math.inf and minimum * Fraction(share) ** 2 >= least**2):
            asked = self.noise_multiplier * given.bound.clip_norm
            rule = f"this client asks for noise of at least {asked:g} on the sum"
            raise InvalidParameter("noise", std, rule)

    def hide(self, given: Assignment, row: Tensor, inner: Layout, context: Context) -> RecordDict:
        """Keep a bounded update [k] for the roster, and answer with a public key.

        Args:
            given: that was checked. inner: layout of the k coordinates. context: of the node.
        """
        minimum, std = given.shares or (self.minimum, 0.0)
        limits = given.bound.limits(inner)
        sigma = share_sigma(limits, std, minimum)
        [whole] = SecureGaussianNoise().encode(row.unsqueeze(0), limits, std)
        secret, public = new_key()
        about = About(given.run, given.number, given.client)
        signature = b""
        if self.membership is not None:
            signature = self.membership(context).sign(about, public)
        # Rule 4.
        kept = {"secret": secret, "public": public, "sigma": str(sigma)}
        terms = _terms(given, sigma, len(row))
        context.state[_WAITING] = ConfigRecord({**asdict(about), **kept, "terms": terms})
        context.state[_ROW] = wire.arrays_of({"row": whole})
        return pack_key(Key(about, given.bound.clip_norm, public, signature))

    def mask(self, content: RecordDict, own: int, context: Context) -> RecordDict:
        """The answer to a roster: the noisy update of the round behind masks.

        Raises:
            InvalidParameter: nothing waits for it, or the roster is too small, or none.
        """
        asked = unpack_roster(content)
        about, roster, least = asked.about, asked.keys, self.roster or self.minimum
        # Rule 3.
        waiting = context.state.config_records.get(_WAITING, ConfigRecord())
        if about.client != own or any(waiting.get(k) != v for k, v in asdict(about).items()):
            rule = f"client {own} has nothing that waits for it, or has sent it before"
            raise InvalidParameter("roster", f"of round {about.number}", rule)
        # Rule 2.
        if len(roster) < least:
            rule = f"this client is summed with no fewer than {least}, itself included"
            raise InvalidParameter("roster", len(roster), rule)
        if self.membership is not None:
            self.membership(context).check(asked, cast("bytes", waiting["public"]))
        row = wire.tensors_of(context.state.array_records[_ROW])["row"]
        secret = cast("bytes", waiting["secret"])
        # Rule 5.
        found = mask(secret, roster, purpose(about, str(waiting["terms"])), len(row))
        del context.state[_WAITING], context.state[_ROW]
        share = rounded_gaussian(len(row), Fraction(str(waiting["sigma"])), OperatingSystem())
        found += (row.numpy() + share).view(np.uint64)
        return pack_masked(MaskedRow(about, from_array(found.view(np.int64))))


def purpose(about: About, terms: str) -> bytes:
    """What the masks of a round are for."""
    return json.dumps([about.run, about.number, terms]).encode()


def _terms(given: Assignment, sigma: Fraction, size: int) -> str:
    """All on which a sum's grid, bound and noise rest."""
    said = [bound_to_json(given.bound), given.shares, given.contributions, str(sigma), size]
    return json.dumps(said)
