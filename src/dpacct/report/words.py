"""Sentences that every report shares: neighbors, sampling, assumptions, glossary."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.display import chosen, down, line, up
from dpacct.report.document import heading, paragraph, signatures, table
from dpacct.rounds import Adjacency, Full, Poisson, Sampling, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant

NEIGHBORS = {
    "add-remove": "one data set has one {unit} more than the other",
    "replace-one": "one {unit} of one data set is replaced by another in the other",
    "zero-out": "the contribution of one {unit} is zero in one data set; their number is public",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The attacker's question under one adjacency, in plain words.

    Attributes:
        whatever: the data that make no difference to the protected unit.
        hidden: the protected facts.
        asked: the attacker's guess about one unit.
        member, other: units for which the guess is true, and false. Both follow "who".
        visible: the facts that are not hidden. May be empty.
    """

    whatever: str
    hidden: str
    asked: str
    member: str
    other: str
    visible: str = ""


_QUESTIONS = {
    Adjacency.ADD_REMOVE: (
        "whether or not your data are used",
        "whether its data were used at all, and what they contain",
        "whether the data of a given {unit} were used",
        "took part",
        "did not take part",
    ),
    Adjacency.REPLACE_ONE: (
        "whatever your data contain",
        "what its data contain: they could be those of any other {unit}",
        "which of two records was used for a given {unit}",
        "had the suspected data",
        "had other data",
        "how many took part, and that a given {unit} took part if that is known",
    ),
    Adjacency.ZERO_OUT: (
        "whether or not you contribute",
        "whether it contributed anything, and what",
        "whether a given {unit} contributed",
        "contributed",
        "did not contribute",
        "how many there are, and that a given {unit} is enrolled if that is known",
    ),
}


def question(adjacency: Adjacency | str, unit: str) -> Question:
    """Return the attacker's question about one unit, such as a client or a patient."""
    texts = _QUESTIONS[Adjacency(adjacency)]
    return Question(*(text.replace("{unit}", line(unit)) for text in texts))


def neighbors(adjacency: str | None, unit: str) -> str:
    """Return when two data sets are neighbors."""
    if adjacency is None:
        return "not fixed yet"
    return f"{adjacency}: {NEIGHBORS[adjacency].replace('{unit}', line(unit))}"


def sampling_words(sampling: Sampling) -> str:
    """Return the participants of a round in words."""
    match sampling:
        case Poisson(sampling_rate, records, max_cohort):
            words = f"Poisson, rate {chosen(sampling_rate)}"
            words += f", {records} records a user" if records > 1 else ""
            return words + (f", at most {max_cohort} in a round" if max_cohort else "")
        case Uniform(cohort_size, num_clients):
            return f"{cohort_size} of {num_clients} without replacement"
        case Full():
            return "everyone"


def bracket(lower: float | None, upper: float | None) -> str:
    """Return [lower bound, upper bound], rounded outwards, or "none" without an upper bound."""
    if upper is None or math.isinf(upper):
        return "none"
    return f"[{down(lower or 0.0)}, {up(upper)}]"


def rounds_words(count: int) -> str:
    """Return a number of rounds."""
    return "1 round" if count == 1 else f"{count:,} rounds"


SENSITIVITY = (
    "The contribution of one unit to each sum, all tensors together, was at most the stated "
    "sensitivity. The noise was Gaussian with the stated multiplier of it."
)
COHORTS = "Cohorts were drawn afresh in each round as stated, and stayed secret."
RANDOMNESS = "Noise and cohorts came from a secret, cryptographically strong source."
NOISE = "Noise came from a secret, cryptographically strong source."
OTHER_RELEASES = (
    "Each other release was the stated mechanism. A promise made elsewhere was true, about the "
    "same unit and the same neighbors."
)
FIXED = (
    "All rounds were fixed in advance, with the noise and sampling of each. Released values had no "
    "influence on them, except by stopping early."
)
NOTHING_ELSE = (
    "Nothing else was computed from the same data: no tuning and no discarded run. Anything else "
    "adds to these figures."
)
NO_MEMORY = "No participant remembers anything from earlier rounds except what was released."
ONE_NAME = "All data of one unit were held by one contribution. Nobody took part under two names."

LEDGER_ASSUMPTIONS: tuple[str, ...] = (
    "Every access to the data went through this ledger, including tuning and discarded runs.",
    SENSITIVITY,
    COHORTS,
    RANDOMNESS,
    "Decisions about further rounds used released values and public knowledge only.",
    ONE_NAME,
    "The file is the original: nobody replaced it by an older or another one.",
)


def schedule_assumptions(schedule: Schedule, accountant: str) -> tuple[str, ...]:
    """Return the assumptions behind the figures of a schedule by one accountant."""
    schemes = [round_.sampling for round_ in schedule.only_rounds()]
    if len(schemes) < len(schedule.distinct()):
        return (*_beside_rounds(schemes), FIXED, ONE_NAME, NOTHING_ELSE)
    sampled = not all(isinstance(scheme, Full) for scheme in schemes)
    source = [COHORTS, RANDOMNESS] if sampled else [NOISE]
    found = [SENSITIVITY, *source, FIXED, ONE_NAME, NOTHING_ELSE]
    tight = TightAccountant()
    if accountant == tight.name and tight.plays(schedule):
        # The game of fixed-size sampling needs contributions that depend on releases alone.
        found += [NO_MEMORY] if any(isinstance(scheme, Uniform) for scheme in schemes) else []
    return tuple(found)


def _beside_rounds(schemes: list[Sampling]) -> list[str]:
    """Return assumptions about a schedule with releases beside its rounds."""
    found = [OTHER_RELEASES]
    if schemes:
        found.append(SENSITIVITY)
    sampled = any(not isinstance(scheme, Full) for scheme in schemes)
    return [*found, *([COHORTS, RANDOMNESS] if sampled else [NOISE])]


def to_sign(assumptions: tuple[str, ...]) -> list[str]:
    """Return the section in which a person signs for each assumption."""
    return [
        heading(2, "Assumptions to sign", new_page=True),
        paragraph(
            "No computation can check these statements. If one of them is false, the figures of "
            "this report do not hold. A person who knows signs for each."
        ),
        signatures(assumptions),
    ]


_GLOSSARY = {
    "epsilon": (
        "The data of one unit change the probability of any outcome by a factor of at most "
        "e^epsilon. Near 0 that is hardly anything. Above about 10, epsilon alone says little."
    ),
    "delta": "The probability with which the limit of epsilon may fail.",
    "[lower, upper]": (
        "Bounds on the true epsilon. The upper bound is proven and is the one to promise. A "
        "known pair of data sets reaches the lower bound."
    ),
    "noise multiplier": (
        "The standard deviation of the noise on each sum, divided by the largest change that "
        "one contribution can cause."
    ),
    "neighbors": "Two data sets that differ by the protected unit.",
    "sampling": "Who takes part in a round. Secret random sampling protects further.",
}


def glossary() -> list[str]:
    """Return the section at the end."""
    return [
        heading(2, "Glossary"),
        table(("", ""), tuple(_GLOSSARY.items())),
    ]
