"""What holds several numbers is a sequence or an array, at every function that takes them.

Read from any iterable, a dictionary is charged for its keys, and a set loses what is equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import dpacct
from dpacct import DiscreteGaussian, DiscreteLaplace, InvalidParameter, Round, Schedule
from dpacct.correlated import Strategy, Workload, banded, buffered_toeplitz, toeplitz
from dpacct.empirical.roc import auc, roc
from dpacct.rounds import Phase
from dpacct.schedules import steps

SCORES = [0.5, 0.25]
# Each takes several numbers, of which these are valid.
CALLS: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
    "discrete Gaussian": (lambda v: DiscreteGaussian(1.0, v), [2, 1]),
    "discrete Laplace": (lambda v: DiscreteLaplace(1.0, v), [2, 1]),
    "rdp": (lambda v: dpacct.rdp(1 * Round(1.0), orders=v), [2, 3]),
    "tradeoff": (lambda v: dpacct.tradeoff(1 * Round(1.0), fpr=v), [0.5]),
    "rates": (lambda v: roc(SCORES, SCORES, fpr=v), [0.5, 0.25]),
    "members": (lambda v: roc(v, SCORES), SCORES),
    "nonmembers": (lambda v: auc(SCORES, v), SCORES),
    "learning rates": (Workload, [1.0, 0.5]),
    "Toeplitz": (lambda v: toeplitz(v, 5), [1.0, 0.5]),
    "diagonals": (lambda v: Strategy(5, v), [1.0, 0.5]),
    "matrix": (banded, [[1.0, 0.0], [0.5, 1.0]]),
    "buffers": (lambda v: buffered_toeplitz(5, v), [(0.5, 0.9), (0.25, 0.5)]),
    "steps": (steps, [(3, 1.0), (4, 2.0)]),
    "phases": (Schedule, [Phase(Round(1.0), 3), Phase(Round(2.0), 4)]),
}
OTHERS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": lambda values: dict.fromkeys(map(_hashable, values), 1),
    "keys": lambda values: dict.fromkeys(map(_hashable, values), 1).keys(),
    "set": lambda values: set(map(_hashable, values)),
    "text": lambda values: "12"[: len(values)],
    "bytes": lambda values: bytes(len(values)),
    "generator": lambda values: (value for value in values),
    "iterator": iter,
}


def _hashable(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_sequence_is_refused_by_its_type(call: str, other: str) -> None:
    take, values = CALLS[call]
    given = OTHERS[other](values)
    if call == "phases" and other in ("generator", "iterator"):
        # Schedules are built from generators: each phase once, in order.
        assert take(given) == take(values)
        return
    with pytest.raises(InvalidParameter, match="as a list, a tuple or an array, not "):
        take(given)


@pytest.mark.parametrize("call", CALLS)
def test_lists_tuples_and_arrays_are_the_same(call: str) -> None:
    take, values = CALLS[call]
    kinds: list[Any] = [tuple(values)]
    if call not in ("steps", "phases"):
        kinds.append(np.array(values))
    for given in kinds:
        assert repr(take(given)) == repr(take(values))


@pytest.mark.parametrize("bad", [np.nan, np.inf, None, "1"])
@pytest.mark.parametrize("call", [name for name in CALLS if "members" not in name])
def test_each_is_a_finite_number(call: str, bad: object) -> None:
    take, values = CALLS[call]
    with pytest.raises(InvalidParameter):
        take([bad, *values[1:]])


def test_owners_by_name_are_refused() -> None:
    pytest.importorskip("torch")
    from dpacct.fl.clients import kept_records

    assert kept_records(3, ["a", "a", "b"], 1) == (1, [0, 2])
    # The keys of a dictionary would each be an owner.
    for owners in ({0: "a", 1: "a", 2: "b"}, {"a", "b", "c"}, "aab"):
        with pytest.raises(InvalidParameter, match="owners"):
            kept_records(3, owners, 1)  # pyright: ignore[reportArgumentType]
