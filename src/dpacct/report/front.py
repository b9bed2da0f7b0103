"""The first page in plain words: the guarantee, the protected units, and the risk of attacks.

Rule 1: every figure follows from the proven bounds.
Rule 2: a weak guarantee is called weak.
Rule 3: a figure says whether it follows from the noise and sampling of the rounds or from epsilon
and delta alone. The second kind is far larger at the same epsilon, and readers compare reports.
Rule 4: the best attacker's success is told in people out of a thousand: a proven bound, rounded up.

Sentences that every report shares stand here, too: neighbors, sampling, assumptions, glossary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.display import chosen, down, line, trimmed, up
from dpacct.errors import NotConverged, Unsupported
from dpacct.outputs import AtRate, GaussianDPKeys, Posterior, RiskKeys, Risks, as_data
from dpacct.report.document import filled, signatures, table
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import AnyMechanism, guess, precision
from dpacct.rounds import Adjacency, Full, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant

FPRS = (0.001, 0.01, 0.1)
# The shares of suspects who are members.
PRIORS = (0.5, 0.01)
EVEN = 0.5
# More kinds of rounds take seconds. The bound by epsilon and delta alone is used then.
MOST_KINDS = 300


def _at(fpr: float, tpr: float) -> AtRate:
    bound = Interval(0.0, tpr)
    rights = (Posterior(prior, precision(bound, fpr, prior).upper) for prior in PRIORS)
    return AtRate(fpr, tpr, tuple(rights))


def risks_of_promise(epsilon: float, delta: float) -> Risks:
    """Return bounds that hold for every mechanism with this epsilon and delta.

    Args:
        epsilon: proven and finite. delta: in (0, 1).
    """
    mechanism = AnyMechanism(epsilon, delta)
    rates = tuple(_at(fpr, mechanism.tpr(fpr)) for fpr in FPRS)
    return Risks(EVEN, mechanism.guess(EVEN), rates)


@lru_cache(maxsize=64)
def risks_of_rounds(schedule: Schedule, accountant: str) -> Risks | None:
    """Return bounds for rounds that were fixed in advance, or None if there are none.

    Args:
        schedule: at least one round.
        accountant: that proves the bounds.
    """
    if not 0 < len(schedule.distinct()) <= MOST_KINDS:
        return None
    try:
        attacks = Attacks(schedule, ACCOUNTANTS[accountant])
        rates = tuple(_at(fpr, attacks.upper_tpr(fpr)) for fpr in FPRS)
        return Risks(EVEN, guess(attacks, EVEN).upper, rates)
    except (NotConverged, Unsupported):
        return None


def of_thousand(share: float) -> str:
    """Return a computed share as people out of a thousand, rounded up. Below ten with a tenth."""
    return _people(1000 * Fraction(share))


def chosen_of_thousand(share: float) -> str:
    """Return a chosen share, such as a rate, as the decimal that it is."""
    return _people(1000 * Fraction(repr(share)))


def _people(people: Fraction) -> str:
    if people < 10:
        whole, tenth = divmod(math.ceil(10 * people), 10)
        return f"{whole}.{tenth}" if tenth else str(whole)
    return f"{min(1000, math.ceil(people)):,}"


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
