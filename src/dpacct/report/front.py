"""The first page in plain words: the guarantee, the protected units, and the risk of attacks.

Rule 1: every figure follows from the proven bounds.
Rule 2: a weak guarantee is called weak.
Rule 3: a figure says whether it follows from the noise and sampling of the rounds or from epsilon
and delta alone. The second kind is far larger at the same epsilon, and readers compare reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpacct.display import chosen, line, trimmed, up
from dpacct.outputs import RiskKeys, Risks, as_data
from dpacct.report.document import filled, table
from dpacct.report.risks import (
    EVEN,
    PRIORS,
    chosen_of_thousand,
    of_thousand,
    risks_of_promise,
)
from dpacct.report.words import question
from dpacct.risk.measures import AnyMechanism
from dpacct.rounds import Adjacency

# A guarantee is weak if a guess is right more often than this, or, if only epsilon is known, if
# epsilon is larger than this.
WEAK, WEAK_EPSILON = 0.95, 10.0


@dataclass(frozen=True, slots=True)
class Promise:
    """A guarantee and its value.

    Attributes:
        unit: the privacy unit, such as a client or a patient.
        adjacency: when two data sets are neighbors.
        epsilon: proven for all releases, even if results influenced later rounds. Finite.
        delta: the delta of epsilon.
        risks: bounds for the procedure itself, None if only epsilon and delta are known.
        num_units: their number, if known.
        planned: True if the rounds may still have to run.
        spent: the epsilon spent so far, if ``epsilon`` is a budget for adaptive rounds.
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
        """Bounds for every procedure with this epsilon and delta."""
        return risks_of_promise(self.epsilon, self.delta)

    @property
    def best(self) -> Risks:
        """The sharpest bounds that are proven."""
        return self.of_promise if self.risks is None else self.risks

    @property
    def weak(self) -> bool:
        """True if the report warns that the guarantee is weak."""
        if self.risks is None:
            return self.epsilon > WEAK_EPSILON
        return self.risks.best_guess > WEAK


def risk_to_json(promise: Promise | None) -> RiskKeys | None:
    """Return the risks as a JSON object, null without a guarantee."""
    if promise is None:
        return None
    return as_data(RiskKeys(promise.epsilon, promise.of_promise, promise.risks))


def front_page(promise: Promise) -> list[str]:
    """Return the blocks below the title. Sentences whose value is empty do not apply."""
    asked, unit = question(promise.adjacency, promise.unit), line(promise.unit)
    return filled(
        "front.md",
        {"attacks": _attacks(promise, asked)},
        **asked,
        headline=headline(promise),
        only="" if promise.risks else trimmed(up(promise.epsilon, 3)),
        alone=trimmed(up(promise.epsilon, 3)) if promise.risks else "",
        worst=of_thousand(promise.of_promise.best_guess),
        weak=promise.weak,
        unit=unit,
        units=unit if promise.num_units is None else f"{unit} of the {promise.num_units:,}",
        verb="will look" if promise.planned else "look",
        epsilon=trimmed(up(promise.epsilon)),
        delta=chosen(promise.delta),
        one_in=one_in(promise.delta),
        budget=promise.spent is not None,
        planned=promise.risks is not None,
    )


def headline(promise: Promise) -> str:
    """Return the claim of the first page in two sentences, and the spent part of a budget."""
    asked = question(promise.adjacency, promise.unit)["asked"]
    guess = promise.best.best_guess
    most = "at most" if guess < 1 else "possibly"
    words = (
        f"An attacker who sees every release correctly guesses {asked}, {most} "
        f"{of_thousand(guess)} times in 1,000. Chance is {chosen_of_thousand(EVEN)}."
    )
    if promise.spent is None:
        return words
    # The spent epsilon of an odometer is a random variable: it bounds attacks on the runs in which
    # it is no larger, up to a share delta of all runs (docs/derivations/adaptive.md).
    right = of_thousand(AnyMechanism(promise.spent, promise.delta).guess(EVEN))
    return (
        f"{words} So far epsilon {trimmed(up(promise.spent))} of the budget is spent. Among runs "
        f"that spent no more, at most {right} of 1,000 guesses are correct, except for "
        f"{one_in(promise.delta)} of all runs."
    )


def one_in(delta: float) -> str:
    """Return a delta as "one in N", rounded up."""
    many = int(1 / Fraction(repr(delta)))
    # Three digits suggest no more precision than there is.
    step = 10 ** max(0, len(str(many)) - 3)
    return f"1 in {many // step * step:,}" if many > 1 else "more than 1 in 2"


def _attacks(promise: Promise, asked: dict[str, str]) -> str:
    """Return the table of attacks."""
    member, (half, few) = asked["member"], map(chosen_of_thousand, PRIORS)
    header = [
        f"wrongly accused, of 1,000 who {asked['other']}",
        f"found at most, of 1,000 who {member}",
        f"correct accusations, of 1,000, if {half} of 1,000 suspects {member}",
        f"the same if {few} of 1,000 did",
    ]
    rows = [
        [chosen_of_thousand(rate), *map(of_thousand, (tpr, *(right for _, right in posteriors)))]
        for rate, tpr, posteriors in promise.best.rates
    ]
    if promise.risks is not None:
        header.append("found at most, by epsilon and delta alone")
        for cells, row in zip(rows, promise.of_promise.rates, strict=True):
            cells.append(of_thousand(row.tpr))
    return table(header, rows)


def nothing_promised(reason: str) -> list[str]:
    """Return the first page without a guarantee. ``reason`` is whole sentences."""
    return filled("nothing.md", {}, reason=reason)
