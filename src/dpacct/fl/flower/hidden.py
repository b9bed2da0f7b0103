"""A client's half of a round whose sum is hidden: noise of its own, then masks.

Rule 1: such a client sends its update in no other way. Rule 2: noise and roster are no smaller than
it was told when it was set up, whatever the server says. Rule 3: an update is masked once: a second
roster with another set of clients would show the difference of two sums. Rule 4: what waits for the
roster stays in the node's own state, and its noise is drawn with the answer: Flower lets a node
work on two messages at once, or loses its state behind an answer, and then rule 3 fails. Two
answers hold independent shares, so that two sums cost two releases, and their difference shows
nobody's update with less noise than a sum has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire
from dpacct.fl.flower.hidden_wire import (
    About,
    Key,
    MaskedRow,
    pack_key,
    pack_masked,
    unpack_roster,
)
from dpacct.fl.flower.masks import mask, new_key
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
        minimum: clients in a sum, at least; that of the server's `fl.NoiseShares`. So many are
            to be honest, which is why more should take part where some might not be.
        noise_multiplier: of the noise on a sum, at least: what all shares make up.

    Raises:
        InvalidParameter: a value out of range.
    """

    minimum: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "minimum", NoiseShares(self.minimum).minimum)
        rule = "the least noise multiplier of a sum"
        least = validate.above_zero("noise_multiplier", self.noise_multiplier, rule)
        object.__setattr__(self, "noise_multiplier", least)

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
        least = self.noise_multiplier * given.bound.clip_norm
        if not std >= least:
            rule = f"this client asks for noise of at least {least:g} on the sum"
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
        # Rule 4.
        kept = {"secret": secret, "sigma": str(sigma)}
        context.state[_WAITING] = ConfigRecord({**asdict(about), **kept})
        context.state[_ROW] = wire.arrays_of({"row": whole})
        return pack_key(Key(about, given.bound.clip_norm, public))

    def mask(self, content: RecordDict, own: int, context: Context) -> RecordDict:
        """The answer to a roster: the noisy update of the round behind masks.

        Raises:
            InvalidParameter: nothing waits for it, or the roster is too small, or none.
        """
        asked = unpack_roster(content)
        about, roster = asked.about, asked.keys
        # Rule 3.
        waiting = context.state.config_records.get(_WAITING, ConfigRecord())
        if about.client != own or any(waiting.get(k) != v for k, v in asdict(about).items()):
            rule = f"client {own} has nothing that waits for it, or has sent it before"
            raise InvalidParameter("roster", f"of round {about.number}", rule)
        # Rule 2.
        if len(roster) < self.minimum:
            rule = f"this client is summed with no fewer than {self.minimum}, itself included"
            raise InvalidParameter("roster", len(roster), rule)
        row = wire.tensors_of(context.state.array_records[_ROW])["row"]
        secret = cast("bytes", waiting["secret"])
        found = mask(secret, roster, f"{about.run} {about.number}".encode(), len(row))
        del context.state[_WAITING], context.state[_ROW]
        share = rounded_gaussian(len(row), Fraction(str(waiting["sigma"])), OperatingSystem())
        found += (row.numpy() + share).view(np.uint64)
        return pack_masked(MaskedRow(about, from_array(found.view(np.int64))))
