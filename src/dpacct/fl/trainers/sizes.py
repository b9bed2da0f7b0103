"""How many examples are computed at a time: as few lanes as hold them, in pieces of like size.

Examples fill lanes, and a group is a whole number of these; see `dpacct.fl.trainers.groups`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that a group may have: ``least``, and on in steps to ``most``.

    An example has the same bits in a group of each of them, and at each place in it.

    Attributes:
        least, most: multiples of ``step``.
        step: the lanes, or any one number where only one size is in use.
    """

    least: int
    most: int
    step: int

    @classmethod
    def one(cls, size: int) -> Sizes:
        """One size alone."""
        return cls(size, size, size)

    def holding(self, count: int) -> int:
        """The smallest size that holds so many examples, which have to fit into the largest."""
        return max(self.least, self.step * -(-count // self.step))

    def groups(self, count: int) -> list[int]:
        """So many examples one group after the other: as few as can be, and of like sizes.

        Like sizes are few different ones, each of which is recorded once.
        """
        return self._shared(count, -(-count // self.most))

    def parts(self, count: int, threads: int) -> list[int]:
        """A group of so many examples in parts for threads, none below the least size."""
        most = self.holding(count) // self.least
        return self._shared(count, max(1, min(threads, most)))

    def _shared(self, count: int, parts: int) -> list[int]:
        """All but the last one whole lanes."""
        if not count:
            return []
        whole, more = divmod(-(-count // self.step), parts)
        shares = [self.step * (whole + (part < more)) for part in range(parts)]
        shares[-1] -= sum(shares) - count
        return shares
