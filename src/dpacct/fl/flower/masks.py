"""Masks that cancel in the sum: of each pair of clients one adds what the other subtracts.

A pair agrees on its mask by X25519, with keys that are new in each round, and stretches it by
ChaCha20. Rule 1: without the mask of a pair, what either of the two sends is uniform to whoever
knows neither secret key. Rule 2: a key is for one roster alone: `mask` is bound to all its members
and their public keys, so that those who were told different rosters share no masks, and nothing can
be read. Rule 3: a roster holds keys and no names: who else is summed is not for a client to know.
Who hands out the keys is trusted to hand out those of the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpacct.errors import InvalidParameter

Masked = NDArray[np.uint64]

_PURPOSE = b"dpacct masked sum 2"
# ChaCha20 counts blocks of 64 bytes in 32 bits.
MAX_SIZE = 2**34
_SLAB = 1 << 16


def new_key() -> tuple[bytes, bytes]:
    """A secret key and its public one, 32 bytes each, from the operating system's randomness."""
    secret = X25519PrivateKey.generate()
    return secret.private_bytes_raw(), secret.public_key().public_bytes_raw()


def mask(secret: bytes, roster: Sequence[bytes], about: bytes, size: int) -> Masked:
    """What one client adds to its vector, modulo 2^64; over the roster all of them add up to zero.

    Args:
        secret: of the client.
        roster: public key of each client of the sum, in any order, its own among them.
        about: the run and the round. size: of the vector, at most 2^34.
    Returns:
        Uint64 [size].
    Raises:
        InvalidParameter: the roster is not one: without this client's key, or one key twice, or
            with something that is no key.
    """
    key = X25519PrivateKey.from_private_bytes(secret)
    own = key.public_key().public_bytes_raw()
    if own not in roster:
        rule = "the key that this client has sent is in it"
        raise InvalidParameter("roster", f"{len(roster)} other keys", rule)
    if len(set(roster)) != len(roster):
        raise InvalidParameter("roster", "one key twice", "each client has a key of its own")
    if size > MAX_SIZE:
        raise InvalidParameter("size", size, f"masks are for at most {MAX_SIZE} numbers")
    # Of parts of fixed length, so that no other roster or round reads the same.
    everybody = sha256(b"".join([_PURPOSE, sha256(about).digest(), *sorted(roster)])).digest()
    found = np.zeros(size, dtype=np.uint64)
    for other in sorted(set(roster) - {own}):
        try:
            shared = key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            rule = f"public keys of X25519 ({error})"
            raise InvalidParameter("roster", f"the key {other.hex()}", rule) from None
        pair = everybody + min(own, other) + max(own, other)
        stretched = HKDF(SHA256(), length=32, salt=None, info=pair).derive(shared)
        _apply(found, stretched, add=own < other)
    return found


def _apply(found: Masked, key: bytes, *, add: bool) -> None:
    """Add or subtract a key's stream, in place."""
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for start in range(0, len(found), _SLAB):
        part = found[start : start + _SLAB]
        drawn = np.frombuffer(stream.update(bytes(8 * len(part))), dtype="<u8")
        if add:
            part += drawn
        else:
            part -= drawn
