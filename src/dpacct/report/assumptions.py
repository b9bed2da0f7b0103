"""What must hold for a figure to mean anything, a sentence each, for somebody to sign."""

from __future__ import annotations

from dpacct.report.document import Block, Heading, Paragraph, Signatures
from dpacct.rounds import Full, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant

SENSITIVITY = (
    "The contribution of one unit to each sum, all tensors together, was at most the stated "
    "sensitivity; the noise was Gaussian with the stated multiplier of it."
)
COHORTS = "Cohorts were drawn afresh in each round as stated, and stayed secret."
SOURCE = "Noise and cohorts came from a secret source that is random enough."
NOISE = "Noise came from a secret source that is random enough."
ADVANCE = (
    "All rounds were fixed in advance, noise and sampling of each of them; nothing that was "
    "released had a say in them, other than by stopping early."
)
ALL = (
    "Nothing else was computed from the same data: no tuning, no run that was discarded. What was "
    "is not part of these figures, and adds to them."
)
MEMORY = "Nobody who takes part remembers anything from earlier rounds but what was released."
UNIT = "All data of one unit were held by one contribution: nobody took part under two names."

# Of all that a ledger has a record of.
OF_LEDGER: tuple[str, ...] = (
    "Every access to the data went through this ledger, tuning and discarded runs included.",
    SENSITIVITY,
    COHORTS,
    SOURCE,
    "What ran next was decided from released values and public knowledge alone.",
    UNIT,
    "The file is the one that was written: nobody replaced it by an older or another one.",
)


def of_schedule(schedule: Schedule, accountant: str) -> tuple[str, ...]:
    """What must hold for the figures of rounds, by the accountant that proves them."""
    schemes = [round_.sampling for round_ in schedule.distinct()]
    sampled = not all(isinstance(scheme, Full) for scheme in schemes)
    found = [SENSITIVITY, *([COHORTS, SOURCE] if sampled else [NOISE]), ADVANCE, UNIT, ALL]
    plays = accountant == TightAccountant().name and TightAccountant().plays(schedule)
    if plays and any(isinstance(scheme, Uniform) for scheme in schemes):
        found.append(MEMORY)
    return tuple(found)


def to_sign(assumptions: tuple[str, ...]) -> list[Block]:
    """The section in which somebody stands for each of them."""
    return [
        Heading(2, "What is assumed, to be signed", new_page=True),
        Paragraph(
            "No computation can check what follows. If one of these sentences is not true, the "
            "figures of this report do not hold. Whoever knows signs for each."
        ),
        Signatures(assumptions),
    ]
