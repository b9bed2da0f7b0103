"""Who may be in a hidden sum: clients sign the keys of their masks, and know each other's names.

With it nobody takes a client's place in a sum, the server included: it can neither hand out keys of
its own nor make up clients. Rule 1: every key of a roster is signed by a member, and each member
signs one. Rule 2: a signature is for one key of one client in one round of one server process.
Rule 3: a client's own key stands under its own name: keys of two of its states (Flower's runs have
one each) would otherwise bring it into one sum twice, the second time under a helper's name.
Signatures are those of Ed25519; public keys reach the clients by another way than the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.flower.hidden_wire import KEY_BYTES, About, Roster

_PURPOSE = b"dpacct key of a hidden sum 1"
_MOST_CLIENTS = 2**63
# The second coordinates, as they are written, of the points of order 1, 2, 4 and 8. For such a key
# anybody makes signatures that Ed25519's verification takes; one of zeros is the likeliest.
_PRIME = 2**255 - 19
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = {0, 1, _PRIME - 1, _PRIME, _PRIME + 1, _EIGHTH, _PRIME - _EIGHTH}


def new_identity() -> tuple[bytes, bytes]:
    """A client's secret key and its public one, 32 bytes each; made once, on the client.

    The secret one stays there. The public one goes to all other clients by a way that the server
    has no hand in: it is what they know this client by.
    """
    secret = Ed25519PrivateKey.generate()
    return secret.private_bytes_raw(), secret.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class Membership:
    """What a client signs with, and whom it lets itself be summed with.

    Args:
        secret: of this client, by `new_identity`.
        members: public key of each client of the run by its number, this one's among them.

    Raises:
        InvalidParameter: a key that is none, one for two clients, or this client's own is missing.
    """

    secret: bytes = field(repr=False)
    members: Mapping[int, bytes]

    def __post_init__(self) -> None:
        known = {f"members[{client}]": key for client, key in self.members.items()}
        for name, key in [("secret", self.secret), *known.items()]:
            # Callers that check no types.
            if type(key) is not bytes or len(key) != KEY_BYTES:
                rule = f"keys are {KEY_BYTES} bytes, as new_identity() makes them"
                raise InvalidParameter(name, f"of type {type(key).__name__}", rule)
        for client, key in self.members.items():
            if int.from_bytes(key, "little") % 2**255 in _SMALL_ORDER:
                rule = "public keys of members, by new_identity(), for which nobody else can sign"
                raise InvalidParameter(f"members[{client}]", key.hex(), rule)
            if type(client) is not int or not 0 <= client < _MOST_CLIENTS:
                rule = "clients are numbered from 0"
                raise InvalidParameter("members", f"{client!r:.40}", rule)
        if len(set(self.members.values())) != len(self.members):
            raise InvalidParameter("members", "one key twice", "each client has a key of its own")
        if self._own() not in self.members.values():
            rule = "the public key that belongs to this client's secret is among them"
            raise InvalidParameter("members", f"{len(self.members)} other keys", rule)
        object.__setattr__(self, "members", dict(self.members))

    def sign(self, about: About, public: bytes) -> bytes:
        """Signature of a new key of a round.

        Raises:
            InvalidParameter: this is another client than the one that is asked, or it is no round.
        """
        self.check_own(about.client)
        validate.count("round", about.number, "the number of a round")
        secret = Ed25519PrivateKey.from_private_bytes(self.secret)
        return secret.sign(_statement(about.run, about.number, about.client, public))

    def check_own(self, client: int) -> None:
        """The secret is that of this client.

        Raises:
            InvalidParameter: it is not.
        """
        if self.members.get(client) != self._own():
            rule = f"the secret key is that of client {client}, whose public one is among them"
            raise InvalidParameter("members", "another key", rule)

    def _own(self) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()

    def check(self, roster: Roster, own: bytes) -> None:
        """Every key of a roster is of a member, and of another one each. Rules 1 and 3.

        Args:
            roster: that this client was told. own: its public key of the round.
        Raises:
            InvalidParameter: one is not.
        """
        about = roster.about
        if len(roster.signed) != len(roster.keys):
            rule = "this client is summed with members alone, who sign their keys"
            raise InvalidParameter("roster", "without signatures", rule)
        for public, (client, signature) in zip(roster.keys, roster.signed, strict=True):
            known = self.members.get(client)
            if known is None:
                rule = f"the members are {_named(sorted(self.members))}"
                raise InvalidParameter("roster", f"a key of client {client}", rule)
            statement = _statement(about.run, about.number, client, public)
            try:
                Ed25519PublicKey.from_public_bytes(known).verify(signature, statement)
            except (InvalidSignature, ValueError):
                rule = f"client {client} has signed its key, for this round"
                raise InvalidParameter("roster", "another key or signature", rule) from None
        clients = [client for client, _ in roster.signed]
        if len(set(clients)) != len(clients):
            raise InvalidParameter("roster", "one client twice", "each member is in it once")
        if (own, about.client) not in zip(roster.keys, clients, strict=True):
            rule = f"the key that client {about.client} has sent is in it, under its own number"
            raise InvalidParameter("roster", "another key", rule)


def _statement(run: str, number: int, client: int, public: bytes) -> bytes:
    """Of parts of fixed length, so that no other round, client or key reads the same."""
    where = sha256(run.encode()).digest() + number.to_bytes(16) + client.to_bytes(16)
    return _PURPOSE + where + public


def _named(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:8]))
    return shown + (", ..." if len(clients) > 8 else "")
