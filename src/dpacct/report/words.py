"""Sentences that every report shares: neighbors, sampling, assumptions, glossary."""

from __future__ import annotations

import math

from dpacct.display import chosen, down, line, up
from dpacct.outputs import GaussianDPKeys
from dpacct.report.document import filled, signatures
from dpacct.rounds import Full, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant

# What one adjacency hides, and what an attacker asks about it, in plain words:
#   neighbors   when two data sets are neighbors.
#   whatever    the data that make no difference to the protected unit.
#   hidden      the protected facts. visible: the facts that are not hidden, may be empty.
#   asked       the attacker's guess about one unit.
#   member, other   units for which the guess is true, and false. Both follow "who".
_QUESTIONS: dict[str, dict[str, str]] = {
    "add-remove": {
        "neighbors": "one data set has one {unit} more than the other",
        "whatever": "whether or not your data are used",
        "hidden": "whether the data of this {unit} were used at all, and what they contain",
        "visible": "",
        "asked": "whether the data of a given {unit} were used",
        "member": "took part",
        "other": "did not take part",
    },
    "replace-one": {
        "neighbors": "one {unit} of one data set is replaced by another in the other",
        "whatever": "whatever your data contain",
        "hidden": "what the data of this {unit} contain: they could be those of any other {unit}",
        "visible": "how many took part, and that a given {unit} took part if that is known",
        "asked": "which of two records was used for a given {unit}",
        "member": "had the suspected data",
        "other": "had other data",
    },
    "zero-out": {
        "neighbors": (
            "the contribution of one {unit} is zero in one data set; their number is public"
        ),
        "whatever": "whether or not you contribute",
        "hidden": "whether this {unit} contributed anything, and what",
        "visible": "how many there are, and that a given {unit} is enrolled if that is known",
        "asked": "whether a given {unit} contributed",
        "member": "contributed",
        "other": "did not contribute",
    },
}


def question(adjacency: str, unit: str) -> dict[str, str]:
    """Return the words for an adjacency, about a unit such as a client or a patient."""
    texts = _QUESTIONS[adjacency].items()
    return {key: text.replace("{unit}", line(unit)) for key, text in texts}


def neighbors(adjacency: str | None, unit: str) -> str:
    """Return when two data sets are neighbors."""
    if adjacency is None:
        return "not fixed yet"
    return f"{adjacency}: {question(adjacency, unit)['neighbors']}"


def bracket(lower: float | None, upper: float | None) -> str:
    """Return [lower bound, upper bound], rounded outwards, or "none" without an upper bound."""
    if upper is None or math.isinf(upper):
        return "none"
    return f"[{down(lower or 0.0)}, {up(upper)}]"


def gdp_in_words(gaussian: GaussianDPKeys) -> str:
    """Return mu of Gaussian DP with its slack, never alone."""
    upper, slack = up(gaussian["mu"]["upper"] or 0.0, 7), chosen(gaussian["slack"], 3)
    return f"mu at most {upper}, with slack {slack} added to delta at every epsilon"


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
    "All releases were fixed in advance, with the noise and sampling of each. Released values had "
    "no influence on them, except by stopping early."
)
NOTHING_ELSE = (
    "Nothing else was computed from the same data: no tuning and no discarded run. Anything else "
    "adds to these figures."
)
NO_MEMORY = "No participant remembers anything from earlier rounds except what was released."
ONE_NAME = "The data of each unit went into a single contribution, under a single name."

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
    beside = len(schemes) < len(schedule.distinct())
    sampled = not all(isinstance(scheme, Full) for scheme in schemes)
    assumptions = [
        *([OTHER_RELEASES] if beside else []),
        *([SENSITIVITY] if schemes else []),
        *([COHORTS, RANDOMNESS] if sampled else [NOISE]),
        FIXED,
        ONE_NAME,
        NOTHING_ELSE,
    ]
    tight = TightAccountant()
    uniform = any(isinstance(scheme, Uniform) for scheme in schemes)
    if uniform and accountant == tight.name and tight.plays(schedule):
        # The game of fixed-size sampling needs contributions that depend on releases alone.
        assumptions.append(NO_MEMORY)
    return tuple(assumptions)


def to_sign(assumptions: tuple[str, ...], subject: str) -> list[str]:
    """Return the section in which a person signs for each assumption about a subject."""
    return filled("sign.md", {"statements": signatures(assumptions)}, subject=subject)


def glossary() -> list[str]:
    """Return the section at the end."""
    return filled("glossary.md", {})
