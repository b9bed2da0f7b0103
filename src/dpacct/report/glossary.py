"""The words of a report, explained to those who do not use them every day."""

from __future__ import annotations

from dpacct.report.document import Block, Heading, Table

_WORDS = (
    (
        "epsilon",
        (
            "how much the chances of any outcome may change with the data of one: by a factor of "
            "at most e^epsilon. Near 0 they hardly do; from about 10 on epsilon alone says little."
        ),
    ),
    ("delta", "the share of chance that epsilon leaves out. Nothing is promised for it."),
    (
        "[achieved, proven]",
        (
            "the two ends between which the truth lies. No data set exceeds the proven one, which "
            "is the one to promise; a pair of data sets that is known reaches the achieved one."
        ),
    ),
    (
        "noise multiplier",
        (
            "how strong the noise on each sum is: its standard deviation, divided by the most that "
            "one contribution can move the sum."
        ),
    ),
    ("neighbors", "two data sets that differ by what is protected; nobody should tell them apart."),
    ("sampling", "who takes part in a round. Being drawn by chance, in secret, protects further."),
)


def glossary() -> list[Block]:
    """The section at the end."""
    return [Heading(2, "Words"), Table(("", ""), _WORDS, "What the words of this report mean")]
