"""Parts of a data set, of which each client belongs to exactly one, and what they cost together.

Rule 1: partitions are declared with the budget, in the first entry: before anything is released. A
public rule says to which part a client belongs, and no release changes that.
Rule 2: a client sees the releases about its own parts only. So a partition costs at each Renyi
order the largest total of its parts, and different partitions add up.
Rule 3: this holds if neighbors differ in one client of one part. A client that is replaced may come
from one part and go to another one, so replace-one has no parts.

Proof: docs/derivations/adaptive.md, "Parts".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.renyi.odometer import Totals, add, subtract
from dpacct.rounds import Adjacency

Partitions = Mapping[str, tuple[str, ...]]
MOST_PARTS = 1000


def checked_partitions(value: object) -> dict[str, tuple[str, ...]]:
    """Return partitions by name, each with its parts, from a mapping of such texts.

    Raises:
        InvalidParameter: a name is no line or holds "=", or parts are few, too many, or repeated.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        rule = 'partitions are given by name, such as {"country": ["DE", "FR"]}'
        raise InvalidParameter("partitions", value, rule)
    found: dict[str, tuple[str, ...]] = {}
    given: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType] checked below
    for name, parts in given.items():
        label = validate.line("partitions", name, "the name of a partition")
        if "=" in label:
            raise InvalidParameter("partitions", label, 'the name of a partition has no "="')
        listed = tuple(
            validate.line("partitions", part, "a part")
            for part in validate.several("partitions", parts, f"the parts of {label}")
        )
        if len(set(listed)) != len(listed) or not 2 <= len(listed) <= MOST_PARTS:
            rule = f"a partition has 2 to {MOST_PARTS} different parts, each once"
            raise InvalidParameter("partitions", f"{label}: {len(listed)} parts", rule)
        found[label] = listed
    return found


def check_part(part: str, partitions: Partitions, adjacency: str) -> None:
    """Reject a part, such as "country=DE", that is not declared, or an adjacency without parts.

    Raises:
        InvalidParameter: it is not declared, or neighbors may differ in two parts (Rule 3).
    """
    known = [f"{name}={one}" for name, parts in partitions.items() for one in parts]
    if part not in known:
        rule = f"a part is one of {', '.join(known[:6])}" if known else "no partition is declared"
        hint = "Partitions are declared when the ledger is made, by a public rule."
        raise InvalidParameter("part", part, rule, hint)
    if adjacency == Adjacency.REPLACE_ONE:
        rule = "a replaced client may change its part, so both parts would pay"
        raise InvalidParameter("part", part, rule, "Charge the whole data set.")


class PartTotals:
    """The totals of all parts. An empty part is the whole data."""

    def __init__(self, totals: Iterable[tuple[str, Totals]], zero: Totals) -> None:
        self._zero = zero
        self._by_part: dict[str, Totals] = {}
        for part, total in totals:
            self._by_part[part] = add(self._by_part.get(part, zero), total)

    def charge(self, part: str, cost: Totals) -> Totals:
        """Add a cost to a part. Return by how much it raises the total of the data."""
        before = self._largest(part)
        self._by_part[part] = add(self._by_part.get(part, self._zero), cost)
        return subtract(self._largest(part), before)

    def total(self) -> Totals:
        """Return the total of the data (Rule 2)."""
        one_of_each = {part.partition("=")[0]: part for part in self._by_part}
        return add(self._zero, *map(self._largest, one_of_each.values()))

    def _largest(self, part: str) -> Totals:
        """Return the largest total of the parts of the same partition, at each order."""
        name, largest = part.partition("=")[0], self._zero
        for other, total in self._by_part.items():
            if other.partition("=")[0] == name:
                largest = tuple(map(max, largest, total))
        return largest
