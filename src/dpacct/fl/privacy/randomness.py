"""The source of randomness: the operating system, or a seed that makes a run public.

Rule 1: cohorts and noise of a private run come from the operating system's generator. Rule 2: a
seed reproduces both, and anyone with the seed can subtract the noise: a seeded run is not private.
"""

from __future__ import annotations

import json
import math
import os
import random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.public import PublicSize
from dpacct.fl.tensors import from_array
from dpacct.rounds import Full, Poisson, Sampling, Uniform

# Reasons for an infinite epsilon.
NOISE_FREE = "no noise is added"
SEEDED = "a seed was given, from which anyone can compute cohorts and noise"
_BLOCK = 1 << 20
# The place of the 624 words of the Mersenne twister in `get_state`'s result, 8 bytes each.
TWISTER = slice(24, 24 + 8 * 624)


class Randomness:
    """The generator of the operating system (``os.urandom``), of which no state is kept."""

    # Whether no attacker can predict the bytes.
    private = True

    def take(self, count: int) -> bytes:
        """Return the next ``count`` random bytes."""
        return os.urandom(count)

    def save(self) -> str | None:
        """Return the state from which `restore` continues.

        None here: after a resume, noise and cohorts are drawn afresh, and never twice.
        """
        return None

    def restore(self, state: str | None) -> None:
        """Continue from a saved state, or reject one that belongs to a seeded run."""
        if state is not None:
            rule = "the checkpoint belongs to a run with a seed"
            raise InvalidParameter("seed", None, rule, "Give the same seed to resume it.")


class Seeded(Randomness):
    """Bytes that follow from a seed in 0 .. 2^63 - 1: for tests and exact repetitions."""

    private = False

    def __init__(self, seed: int) -> None:
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if not whole or not 0 <= seed < 2**63:
            rule = "a seed is a whole number from 0 to 2^63 - 1"
            raise InvalidParameter("seed", seed, rule)
        self._generator = np.random.Generator(np.random.PCG64(int(seed)))

    def take(self, count: int) -> bytes:
        """Return the next bytes of the sequence."""
        return self._generator.bytes(count)

    def save(self) -> str:
        """Return the generator's state as JSON."""
        return json.dumps(self._generator.bit_generator.state)

    def restore(self, state: str | None) -> None:
        """Continue from a saved state, or reject a checkpoint without one."""
        if state is None:
            rule = "the checkpoint belongs to a run without a seed"
            raise InvalidParameter("seed", "given", rule, "Drop it to resume the run.")
        self._generator.bit_generator.state = cast("dict[str, Any]", json.loads(state))


class _Sampler(random.Random):
    """The standard library's sampling algorithms, fed with our bytes."""

    def __init__(self, source: Randomness) -> None:
        self._source = source
        super().__init__(0)

    def getrandbits(self, k: int, /) -> int:
        count = (k + 7) // 8
        return int.from_bytes(self._source.take(count), "little") >> (8 * count - k)


def draw_cohort(sampling: Sampling, num_clients: int, source: Randomness) -> list[int]:
    """Return the clients of one round, ascending. Possibly none.

    Poisson: each client joins with probability floor(q 2^64) / 2^64, which is at most q. Of more
    than ``max_cohort`` clients a random part of that size stays.
    """
    match sampling:
        case Full():
            return list(range(num_clients))
        case Uniform(cohort_size=cohort):
            # Raises if the population is not that of the scheme.
            PublicSize.choose(None, sampling, num_clients)
            return sorted(_Sampler(source).sample(range(num_clients), cohort))
        case Poisson(sampling_rate=rate, max_cohort=most):
            drawn = draw_below(num_clients, rate, source)
            if most is None or len(drawn) <= most:
                return drawn
            return sorted(_Sampler(source).sample(drawn, most))


def draw_below(num_clients: int, rate: float, source: Randomness) -> list[int]:
    """Return each of 0 .. num_clients - 1 independently, with probability floor(rate 2^64) / 2^64.

    A client joins if its coin of 64 bits is below the threshold.
    """
    threshold = math.floor(rate * 2**64)
    if threshold >= 2**64:
        return list(range(num_clients))
    drawn: list[int] = []
    for start in range(0, num_clients, _BLOCK):
        coins = np.frombuffer(source.take(8 * min(_BLOCK, num_clients - start)), dtype="<u8")
        drawn.extend((start + np.flatnonzero(coins < np.uint64(threshold))).tolist())
    return drawn


def torch_seed(source: Randomness) -> int:
    """Return eight bytes as a seed that need not be secret (order of examples, dropout)."""
    return int.from_bytes(source.take(8), "little") >> 1


def normals(source: Randomness, size: int, device: torch.device) -> Tensor:
    """Return standard normal variates, float64 [size], on the device, from a fresh generator.

    They come from NumPy's Philox with a key of 128 and a counter of 256 random bits, on the CPU:
    the generators of torch have seeds of 64 bits at most.
    """
    key = np.frombuffer(source.take(16), dtype="<u8")
    counter = np.frombuffer(source.take(32), dtype="<u8")
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    values = from_array(generator.standard_normal(size))
    # An mps device has no float64.
    return values.float().to(device) if device.type == "mps" else values.to(device)


def secret_generator(device: torch.device) -> torch.Generator:
    """Return a generator of torch that no seed of a program can repeat.

    The CPU's keeps 32 bits of a seed, few enough to try them all: its whole state is replaced.
    That of other devices has a seed of 63 random bits.
    """
    generator = torch.Generator(device)
    if device.type != "cpu":
        return generator.manual_seed(torch_seed(Randomness()))
    state = generator.get_state()
    words = state[TWISTER].view(torch.int64)
    secret = torch.frombuffer(bytearray(os.urandom(4 * len(words))), dtype=torch.int32)
    words.copy_(secret.to(torch.int64) & 0xFFFFFFFF)
    generator.set_state(state)
    return generator
