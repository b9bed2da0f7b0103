"""Write the tables of this folder's page: every shipped claim, judged by each of its readings.

The same verdicts are stored beside the claims, where `dpacct claims list` reads them.

Usage: python -m evidence.published.table
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpacct.claims import Claim, Claims, Judged, Judgment, Verdict, judge, shipped_claims
from dpacct.claims.stored import store
from dpacct.display import chosen, up
from dpacct.items import parts_in_words
from dpacct.rounds import Schedule
from evidence.pages import EVIDENCE, bracket, markdown, put_tables

PAGE = "published/README.md"
HEAD = (
    "claim", "place", "data", "stated", "delta", "reading", "what runs", "bounds", "verdict",
    "noise that would do",
)  # fmt: skip
STATEMENTS = ["place", "what it says", "holds", "why"]


def runs(schedule: Schedule) -> str:
    """Return what runs, in a table cell."""
    return f"{'; '.join(parts_in_words(schedule))}, {schedule.adjacency}"


def spent(judged: Judged) -> str:
    """Return the bracket rounded outwards, or the reason for its absence."""
    if judged.epsilon is None:
        return judged.reason
    return bracket(judged.epsilon.lower, judged.epsilon.upper)


def rows(judgment: Judgment) -> list[list[str]]:
    """Return a claim, a row for each reading."""
    claim = judgment.claim
    stated = "-" if claim.epsilon is None else f"{claim.epsilon:g}"
    first = [f"`{claim.id}`", claim.place, claim.data, stated, f"{chosen(claim.delta, 3)}"]
    found: list[list[str]] = []
    for judged in judgment.readings:
        reading = judged.reading
        found.append(
            [
                *(first if not found else [""] * len(first)),
                f"as {reading.role}: {reading.words}",
                runs(reading.schedule),
                spent(judged),
                str(judged.verdict),
                "" if judged.noise is None else up(judged.noise, 6),
            ]
        )
    return found


def count(judgments: Iterable[Judgment]) -> str:
    """Return how often each verdict occurs, of claims and of readings, by text."""
    texts: dict[str, Counter[Verdict]] = {}
    for judgment in judgments:
        texts.setdefault(judgment.claim.source.name, Counter())[judgment.verdict] += 1
    lines = [[name, *(str(found[verdict]) for verdict in Verdict)] for name, found in texts.items()]
    return markdown(["claims of", *map(str, Verdict)], lines)


def sources(claims: Sequence[Claim]) -> list[str]:
    """Return the names of the texts, in their order."""
    return list(dict.fromkeys(claim.source.name for claim in claims))


def tables(found: Claims, judgments: Sequence[Judgment]) -> dict[str, str]:
    """Return all tables of the page, by name."""
    result = {"verdicts": count(judgments)}
    for name in sources(found.claims):
        own = [one for one in judgments if one.claim.source.name == name]
        result[name] = markdown(HEAD, [row for one in own for row in rows(one)])
        said = [one for one in found.statements if one.source.name == name]
        if said:
            lines = [[one.place, one.text, one.holds, one.why] for one in said]
            result[f"{name}, statements"] = markdown(STATEMENTS, lines)
    return result


def main(page: Path = EVIDENCE / PAGE) -> None:
    """Rewrite the page and the stored verdicts in place."""
    claims = shipped_claims()
    judgments = [judge(claim) for claim in claims.claims]
    put_tables(page, tables(claims, judgments))
    store(judgments)


if __name__ == "__main__":
    main()
