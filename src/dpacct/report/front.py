"""The first page, in plain words.

It tells what was promised to whom, who is protected against whom, and what an attacker can at most
find out.

Rule 1: it says nothing that the figures behind it do not prove.
Rule 2: where the promise is weak, it says that.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpacct.display import chosen, line, trimmed, up
from dpacct.report.document import Block, Heading, Paragraph, Table
from dpacct.report.people import (
    EVEN,
    PRIORS,
    Risks,
    chosen_of_thousand,
    of_thousand,
    risks_of_promise,
)
from dpacct.report.people_chart import picture
from dpacct.report.words import Question, question
from dpacct.risk.guarantee import AnyMechanism
from dpacct.rounds import Adjacency

# A guess that is right so often makes a promise that hardly anybody would call one.
WEAK = 0.95
_WEAK_WORDS = (
    "This protection is weak: an attacker who comes near that is hardly ever wrong. Nobody should "
    "call it private without saying so."
)
AGAINST = (
    "everybody who sees what is released: the models and results of every round. Even those who "
    "know the data of everybody else, work together, and have any computer they like"
)
NOT_AGAINST = (
    "those who run the computation and see contributions before the noise is added, and whoever "
    "gets at the data in another way"
)
NOT_PROMISED = (
    "that nothing about the world is learned: what would come out without this {unit} as well may "
    "be said of this {unit}, too"
)
_BUDGET = (
    "That is the budget, for all that is released now and later, whatever is decided by looking at "
    "results; the figures below are what it allows."
)
_ALONE = (
    " The last column is for any procedure with the same epsilon and delta; what is known of this "
    "one, its noise and its sampling, allows the smaller figures beside it."
)
GROUPS = "several of them who belong together, such as a household, are protected less than one"


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised, and what it is worth.

    Attributes:
        unit: whose data, in words: a client, a patient.
        adjacency: when two data sets are neighbors.
        epsilon: proven for all that was released, whatever results had a say in; finite.
        delta: at which it is.
        risks: of the procedure itself; None where the promise alone is known.
        num_units: how many there are, where that is known.
        planned: it may still be to run, so that nobody was promised anything yet.
        spent: what was read of epsilon, where that is a budget and results had a say in what ran.
    """

    unit: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    risks: Risks | None = None
    num_units: int | None = None
    planned: bool = False
    spent: float | None = None

    @property
    def of_promise(self) -> Risks:
        """What anything with this epsilon and delta allows."""
        return risks_of_promise(self.epsilon, self.delta)

    @property
    def best(self) -> Risks:
        """The sharpest that is proven."""
        return self.of_promise if self.risks is None else self.risks


def risk_to_json(promise: Promise | None) -> dict[str, Any] | None:
    """What a promise allows an attacker; null where nothing is promised."""
    if promise is None:
        return None
    return {
        "epsilon": promise.epsilon,
        "of_promise": promise.of_promise.to_json(),
        "of_procedure": None if promise.risks is None else promise.risks.to_json(),
    }


def front_page(promise: Promise) -> list[Block]:
    """The blocks below the title."""
    asked = question(promise.adjacency, promise.unit)
    return [
        Paragraph(_headline(promise, asked), strong=True),
        *([Paragraph(_WEAK_WORDS)] if promise.best.guess > WEAK else []),
        *_promised(promise, asked),
        *_protected(promise, asked),
        *_found_out(promise, asked),
    ]


def _headline(promise: Promise, asked: Question) -> str:
    right, released = of_thousand(promise.best.guess), "is" if promise.planned else "was"
    who = f"whoever sees all that {released} released and guesses {asked.asked}"
    words = f"{who[0].upper()}{who[1:]} is right at most {right} times in 1,000."
    if right == of_thousand(1.0):
        words = f"It is not excluded that {who} is right {right} times in 1,000."
    words += f" Guessing blindly is right {chosen_of_thousand(EVEN)} times."
    return words if promise.spent is None else f"{words} {spent_words(promise)}"


def one_in(delta: float) -> str:
    """A delta as one in so many, never less than it is."""
    many = int(1 / Fraction(repr(delta)))
    # Three digits, so that nobody reads more into them.
    step = 10 ** max(0, len(str(many)) - 3)
    return f"1 in {many // step * step:,}" if many > 1 else "more than 1 in 2"


def _promised(promise: Promise, asked: Question) -> list[Block]:
    unit = line(promise.unit)
    many = "" if promise.num_units is None else f" (there are {promise.num_units:,})"
    can, epsilon = "can be" if promise.planned else "was", trimmed(up(promise.epsilon))
    words = (
        f"Each {unit}{many} {can} promised: what is released looks "
        f"nearly the same {asked.whatever}. How nearly is measured by two numbers. Epsilon is "
        f"{epsilon} here, and delta {chosen(promise.delta)}, which is {one_in(promise.delta)}. "
        f"Smaller is more private, and with 0 and 0 nothing at all could be found out. The promise "
        f"holds for all data of one {unit}, in all rounds together."
    )
    if promise.spent is not None:
        words += f" {_BUDGET}"
    return [Heading(2, "What is promised, and to whom"), Paragraph(words)]


def spent_words(promise: Promise) -> str:
    """What an odometer's reading is worth: a statement about the cases in which it reads so.

    Of those, a guess that is right has at most e^epsilon times the probability of one that is
    wrong, plus delta.
    """
    if promise.spent is None:
        return ""
    right = of_thousand(AnyMechanism(promise.spent, promise.delta).guess(EVEN))
    return (
        f"So far epsilon {trimmed(up(promise.spent))} was spent: where it is no more than that, at "
        f"most {right} times, but for a share delta, {one_in(promise.delta)}, of all cases."
    )


def _protected(promise: Promise, asked: Question) -> list[Block]:
    unit = line(promise.unit)
    rows = [
        ("protected", f"every single {unit}; what stays hidden is {asked.hidden}"),
        ("against", AGAINST),
        ("not against", NOT_AGAINST),
        ("groups", GROUPS),
        ("not promised", NOT_PROMISED.replace("{unit}", unit)),
    ]
    if asked.open:
        rows.insert(3, ("not hidden", asked.open))
    return [
        Heading(2, "Who is protected, and against whom"),
        Table(("", ""), tuple(rows), "Who is protected, against whom, and what is not covered"),
    ]


def _found_out(promise: Promise, asked: Question) -> list[Block]:
    best, plain = promise.best, promise.of_promise
    half, few = map(chosen_of_thousand, PRIORS)
    header = [
        f"wrongly accused, of 1,000 who {asked.absent}",
        f"found out at most, of 1,000 who {asked.there}",
        f"accusations that are right, of 1,000: if {half} of 1,000 suspects {asked.there}",
        f"the same if {few} of 1,000 did",
    ]
    lines = [
        [chosen_of_thousand(row.fpr), *map(of_thousand, (row.tpr, *row.right))]
        for row in best.rates
    ]
    if promise.risks is not None:
        header.append("found out at most, by epsilon and delta alone")
        for cells, row in zip(lines, plain.rates, strict=True):
            cells.append(of_thousand(row.tpr))
    blocks: list[Block] = [
        Heading(2, "What an attacker can at most find out"),
        Paragraph(
            f"An attacker accuses some people. Whoever accuses many finds out more of those who "
            f"{asked.there}, and wrongs more of those who {asked.absent}. No attack does better "
            f"than this, whatever it knows and computes:"
        ),
        Table(tuple(header), tuple(map(tuple, lines)), "The best possible attacks, in people"),
        picture(best, asked),
        Paragraph(
            "These are averages over the chance that is part of the procedure: over many "
            "repetitions, not counts in this one." + ("" if promise.risks is None else _ALONE)
        ),
    ]
    return blocks


def nothing_promised(reason: str) -> list[Block]:
    """The first page where there is no promise.

    Args:
        reason: why, in whole sentences.
    """
    return [
        Paragraph(f"Nothing can be promised to anybody: {reason}", strong=True),
        Paragraph(
            "An attacker who sees what was released may be able to tell of every single person "
            "what their data say: 1,000 of 1,000."
        ),
    ]
