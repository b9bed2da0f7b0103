"""The public number of clients (or examples) of a run, and every quantity that is made from it.

The divisors, printed numbers and stored numbers of a run must be public, or bounded and charged.
Under add-remove the true number of clients is a secret, so they are made from a declared number M:

Rule 1: divisor, planned cohort size, default noise on an indicator, epochs turned into rounds and
notes on delta come from M. Only the draw of a cohort uses the true number.
Rule 2: with a declared M, a run may promise add-remove. Without M the true number is used and is
public: the run promises zero-out (at the same epsilon) or replace-one, and refuses add-remove.
Rule 3: a fixed-size scheme states its own sizes. Its divisor is the cohort's size, and the
number of clients is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.rounds import MAX_CLIENTS, Adjacency, Uniform

# The capacity of an exact sum if the true number of contributions is a secret: more than there are
# people. The grid of the sum is finer than 2^-18 of the clip norm.
SECRET_CAPACITY = 2**33


class HasRate(Protocol):
    """A way in which cohorts are drawn."""

    @property
    def sampling_rate(self) -> float:
        """The probability with which a client is in a cohort."""
        ...


@dataclass(frozen=True, slots=True)
class PublicSize:
    """M, the public number of clients.

    Attributes:
        size: M. It may be far from the true number, which costs accuracy and no privacy.
        stated: whether the user declared M. Otherwise it is the true number.
    """

    size: int
    stated: bool

    @classmethod
    def choose(
        cls, public_size: int | None, sampling: HasRate, num_clients: int | None
    ) -> PublicSize:
        """Return the declared number, or the true one. Rule 3.

        Raises:
            InvalidParameter: M is out of range, or given with a fixed-size scheme. Or the true
                number is missing, too large, or not that of a fixed-size scheme.
        """
        if isinstance(sampling, Uniform):
            if public_size is not None:
                rule = "a sum over a fixed-size cohort is divided by the size of the cohort"
                raise InvalidParameter("public_size", public_size, rule, "Leave it out.")
            if num_clients not in (None, sampling.num_clients):
                rule = f"there are {num_clients} clients, and cohorts are drawn from all of them"
                raise InvalidParameter("num_clients", sampling.num_clients, rule)
            return cls(sampling.num_clients, stated=False)
        if public_size is not None:
            if num_clients is not None:
                validate.count("num_clients", num_clients, "the population", SECRET_CAPACITY)
            noun = "the public number of clients"
            return cls(validate.count("public_size", public_size, noun, MAX_CLIENTS), stated=True)
        return cls(validate.count("num_clients", num_clients, "the population"), stated=False)

    def adjacency(self, sampling: HasRate, asked: Adjacency | str | None) -> Adjacency:
        """Return the promised adjacency: the one asked for, or the strongest. Rule 2."""
        if asked is None:
            if isinstance(sampling, Uniform):
                return Adjacency.REPLACE_ONE
            return Adjacency.ADD_REMOVE if self.stated else Adjacency.ZERO_OUT
        relation = Adjacency.parse(asked)
        if relation is not Adjacency.ADD_REMOVE or self.stated:
            return relation
        if isinstance(sampling, Uniform):
            rule = (
                "cohorts of fixed size are drawn from a stated number of clients, which is public, "
                "and add-remove would hide it"
            )
            hint = "Use replace-one or zero-out, or Poisson sampling with public_size=."
        else:
            rule = (
                "add-remove hides the number of clients, and without a public_size the released "
                "mean is divided by a multiple of that number"
            )
            hint = (
                "Declare a public number with public_size= (a round guess will do), or use "
                "zero-out, which has the same epsilon."
            )
        raise InvalidParameter("adjacency", str(relation), rule, hint)

    def expected_cohort(self, sampling: HasRate) -> float:
        """Return the planned cohort size, by which the sum is divided: q M, m or M."""
        if isinstance(sampling, Uniform):
            return float(sampling.cohort_size)
        return sampling.sampling_rate * self.size

    def capacity(self, sampling: HasRate) -> int:
        """Return the most contributions that a sum has room for. Its grid follows from this number.

        The grid decides how contributions are rounded, so it must not follow a secret number.
        """
        if isinstance(sampling, Uniform):
            return sampling.cohort_size
        return SECRET_CAPACITY if self.stated else self.size

    def __str__(self) -> str:
        return f"public_size={self.size}" if self.stated else f"{self.size} clients"
