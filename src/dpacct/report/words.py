"""Words that every report shares: neighbors, sampling, brackets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.display import chosen, down, line, up
from dpacct.rounds import Adjacency, Full, Poisson, Sampling, Uniform

ADJACENCY_WORDS = {
    "add-remove": "two data sets are neighbors if one has one {unit} more",
    "replace-one": "two data sets are neighbors if one {unit} is another one",
    "zero-out": "two data sets are neighbors if the contribution of one {unit} is zero in one",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What an attacker asks, under one adjacency, in plain words.

    Attributes:
        whatever: what makes no difference, told to the one who is protected.
        hidden: what is protected.
        asked: what the attacker wants to know of one person.
        there, absent: those of whom it is true, and those of whom it is not, behind "who".
        open: what is not hidden; or nothing.
    """

    whatever: str
    hidden: str
    asked: str
    there: str
    absent: str
    open: str = ""


_QUESTIONS = {
    Adjacency.ADD_REMOVE: Question(
        "whether or not your data are used",
        "whether its data were used at all, and what they say",
        "whether the data of a certain {unit} were used",
        "took part",
        "did not take part",
    ),
    Adjacency.REPLACE_ONE: Question(
        "whatever your data say",
        "what its data say: they could be those of any other {unit}",
        "which of two records was used, that of one {unit} or that of another,",
        "had the suspected data",
        "had other data",
        "how many took part; and that a certain {unit} did, if that is known",
    ),
    Adjacency.ZERO_OUT: Question(
        "whether or not you contribute",
        "whether it contributed anything, and what",
        "whether a certain {unit} contributed",
        "contributed",
        "did not contribute",
        "how many there are; and that a certain {unit} is enrolled, if that is known",
    ),
}


def question(adjacency: Adjacency | str, unit: str) -> Question:
    """The attacker's question about one unit, which is called so."""
    found, named = _QUESTIONS[Adjacency(adjacency)], line(unit)
    return Question(
        *(
            text.replace("{unit}", named)
            for text in (
                found.whatever,
                found.hidden,
                found.asked,
                found.there,
                found.absent,
                found.open,
            )
        )
    )


def neighbors(adjacency: str | None, unit: str) -> str:
    """When two data sets are neighbors."""
    if adjacency is None:
        return "none yet: not fixed yet"
    return f"{adjacency}: {ADJACENCY_WORDS[adjacency].replace('{unit}', line(unit))}"


def sampling_words(sampling: Sampling) -> str:
    """Who takes part in a round."""
    match sampling:
        case Poisson(sampling_rate):
            return f"Poisson, rate {chosen(sampling_rate)}"
        case Uniform(cohort_size, num_clients):
            return f"{cohort_size} of {num_clients} without replacement"
        case Full():
            return "everybody"


def bracket(lower: float | None, upper: float | None) -> str:
    """[achieved, proven], rounded outwards; "none" where nothing is proven."""
    if upper is None or math.isinf(upper):
        return "none"
    return f"[{down(lower or 0.0)}, {up(upper)}]"


def rounds_words(count: int) -> str:
    """So many rounds."""
    return "1 round" if count == 1 else f"{count:,} rounds"
