"""Mechanisms by their names in files, ledgers and claims."""

from __future__ import annotations

from dpacct.mechanisms.laplace import Laplace
from dpacct.mechanisms.pure import PureDP, RandomizedResponse
from dpacct.pairs.dominating import Mechanism

# Their constructors take numbers, texts and tuples of numbers, and an adjacency.
BY_NAME: dict[str, type[Mechanism]] = {
    "laplace": Laplace,
    "randomized-response": RandomizedResponse,
    "pure-dp": PureDP,
}


def name_of(release: object) -> str | None:
    """Return the name of a mechanism, or None if it has none here."""
    return next((name for name, kind in BY_NAME.items() if type(release) is kind), None)
