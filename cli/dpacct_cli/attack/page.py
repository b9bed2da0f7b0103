"""What `dpacct attack` answers: keys for machines, rows and a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpacct.display import down, up
from dpacct.empirical.confidence import Estimate
from dpacct.empirical.roc import AtRate, Roc, needed_nonmembers
from dpacct_cli.render import Grid, Page, Row, plain

if TYPE_CHECKING:
    from dpacct_cli.attack.limit import Limit, Proven
    from dpacct_cli.attack.people import People
    from dpacct_cli.attack.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One attack on one kind of unit.

    Attributes:
        attack, unit: ``loss threshold`` or ``likelihood ratio``, ``client`` or ``example``.
        roc: what it found. limit: what is proven of it.
    """

    attack: str
    unit: str
    roc: Roc
    limit: Limit

    @property
    def name(self) -> str:
        """For curves and rows."""
        return f"{self.attack}, by {self.unit}"

    @property
    def above_limit(self) -> bool:
        """Whether an interval lies above what is proven; impossible on average over trainings."""
        auc, advantage = self.limit.auc(), self.limit.advantage()
        if auc is None or advantage is None:
            return False
        if self.roc.auc.lower > auc or self.roc.advantage.lower > advantage:
            return True
        return any(self._rate_above(rate) for rate in self.roc.rates)

    def _rate_above(self, rate: AtRate) -> bool:
        most = self.limit.tpr(min(rate.fpr_upper, 1.0))
        return most is not None and rate.tpr.lower > most


def keys(target: Target, people: People, proven: Proven, found: list[Found]) -> dict[str, object]:
    """The keys of --json."""
    job, settings = target.job, target.settings
    return {
        "method": settings.method,
        "data": job.dataset.name,
        "model": settings.values["model"],
        "rounds": target.rounds,
        "private": proven.private,
        "not_private_because": proven.because or None,
        "confidence": found[0].roc.confidence,
        "held_out": people.told,
        "held_out_at_random": people.random,
        "held_out_are_strangers": people.strangers,
        "left_out": people.left_out,
        "adjacency": job.adjacency,
        "attacks": [_attack(one) for one in found],
    }


def _attack(found: Found) -> dict[str, object]:
    roc, limit = found.roc, found.limit
    return {
        "attack": found.attack,
        "unit": found.unit,
        "members": roc.members,
        "nonmembers": roc.nonmembers,
        "auc": {**_estimate(roc.auc), "limit": limit.auc()},
        "advantage": {**_estimate(roc.advantage), "limit": limit.advantage()},
        "rates": [
            {
                "fpr": rate.asked,
                "observed_fpr": rate.fpr,
                "fpr_upper": rate.fpr_upper,
                "tpr": {**_estimate(rate.tpr), "limit": limit.tpr(rate.asked)},
            }
            for rate in roc.rates
        ],
        "limit_adjacency": limit.told or None,
        "above_limit": found.above_limit,
    }


def _estimate(value: Estimate) -> dict[str, float]:
    return {"value": value.value, "lower": value.lower, "upper": value.upper}


def page(target: Target, people: People, proven: Proven, found: list[Found]) -> Page:
    """The rows for people."""
    sure = plain(found[0].roc.confidence)
    rows = [
        Row(
            "AUC" if number == 0 else "",
            up(one.roc.auc.value, 4),
            f"  {_between(one.roc.auc)}, {one.name}: {one.roc.members:,} members, "
            f"{one.roc.nonmembers:,} others",
        )
        for number, one in enumerate(found)
    ]
    rows += [
        Row("", "0.5", "  is what guessing reaches, and a model without training"),
        *_limits(found, proven),
        Row("model", f"{target.settings.values['model']} on {target.job.dataset.name}, "
            f"{target.settings.method}, {target.rounds} rounds of {target.files.stem}"),
        Row("held out", f"{sum(map(len, people.nonmembers)):,} examples, {people.told}"),
    ]  # fmt: skip
    return Page(rows, grid=_grid(found), remarks=_remarks(people, proven, found, sure))


def _limits(found: list[Found], proven: Proven) -> list[Row]:
    if not proven.private:
        return [Row("limit", "none", f"  {proven.because}")]
    units: dict[tuple[float | None, str], list[str]] = {}
    for one in found:
        named = units.setdefault((one.limit.auc(), one.limit.because), [])
        if one.unit not in named:
            named.append(one.unit)
    rows: list[Row] = []
    for (most, because), names in units.items():
        by = " or ".join(f"by {name}" for name in names)
        if most is None:
            rows.append(Row("limit", "none", f"  {by}: {because}"))
        else:
            words = f"  AUC of any attack {by}, proven, on average over trainings"
            rows.append(Row("limit", up(most, 4), words))
    return rows


def _grid(found: list[Found]) -> Grid:
    header = ["attack", "", "observed", "interval", "proven limit"]
    lines: list[list[str]] = []
    for one in found:
        advantage = one.roc.advantage
        lines.append([one.name, "advantage", *_cells(advantage, one.limit.advantage())])
        lines += [
            ["", f"TPR at FPR {plain(rate.asked)}", *_cells(rate.tpr, one.limit.tpr(rate.asked))]
            for rate in one.roc.rates
        ]
    return Grid(header, lines)


def _cells(value: Estimate, limit: float | None) -> list[str]:
    return [up(value.value, 4), _between(value), "none" if limit is None else up(limit, 4)]


def _between(value: Estimate) -> str:
    return f"{down(value.lower, 3)} to {up(value.upper, 3)}"


def _remarks(people: People, proven: Proven, found: list[Found], sure: str) -> list[str]:
    alone = f"Each interval holds by itself with confidence {sure}, for this one model."
    dependent = "Those by example take examples for independent; those of one person rarely are."
    remarks = [f"{alone} {dependent}"]
    if proven.private:
        remarks.append(
            "The limit holds on average over trainings, for telling clients who took part from "
            "clients who did not, and for their examples; one model may lie above it by chance. "
            "An attack that finds little shows little: stronger ones may find more."
        )
    if not people.strangers:
        remarks.append(
            "The held-out examples are of clients who took part, so that clients cannot be "
            "compared, and examples only under the limit for replacing a client."
        )
    if not people.random:
        remarks.append(
            "The test set may differ from the training examples by more than chance, and then it "
            "is told apart without any memory, whatever the limit: dpacct train --hold-out 0.2 "
            "keeps clients out at random."
        )
    for one in found:
        coarse = [
            rate for rate in one.roc.rates
            if needed_nonmembers(rate.asked, one.roc.confidence) > one.roc.nonmembers
        ]  # fmt: skip
        if coarse:
            worst = min(coarse, key=lambda rate: rate.asked)
            need = needed_nonmembers(worst.asked, one.roc.confidence)
            remarks.append(
                f"{one.roc.nonmembers:,} held-out {one.unit}s cannot tell an FPR of "
                f"{plain(worst.asked)} from one of {up(worst.fpr_upper, 2)}; {need:,} could."
            )
    if any(one.above_limit for one in found):
        remarks.append(
            "An interval lies above what is proven. If that is so in other trainings too, with "
            "clients who were kept out at random, the run is not what was charged."
        )
    if people.left_out:
        remarks.append(
            f"{people.left_out:,} held-out examples are a member's, too, and were left out."
        )
    return list(dict.fromkeys(remarks))
