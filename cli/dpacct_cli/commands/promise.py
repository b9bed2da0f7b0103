"""The risk of any mechanism with a guarantee, alone or beside that of the rounds themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpacct import calibrate
from dpacct.budget import Interval
from dpacct.risk.measures import AnyMechanism, precision
from dpacct.rounds import Schedule
from dpacct_cli.options import MechanismOptions, ReadDelta
from dpacct_cli.render import Grid, Page, Row, plain, shown_delta, up


@dataclass(frozen=True, slots=True)
class Promise:
    """An epsilon at a delta, judged at some false positive rates and a prior."""

    epsilon: float
    delta: ReadDelta
    rates: Sequence[float]
    prior: float

    @property
    def _any(self) -> AnyMechanism:
        return AnyMechanism(self.epsilon, self.delta.value)

    @property
    def advantage(self) -> float:
        """The largest TPR - FPR."""
        return self._any.advantage()

    def plan_of(self, typed: MechanismOptions, accountant: str) -> Schedule:
        """What was typed, with the noise that meets the guarantee where none is said."""
        if typed.noise is not None or typed.schedule is not None:
            return typed.read_schedule()
        return calibrate(
            epsilon=self.epsilon,
            delta=self.delta.value,
            rounds=typed.read_rounds(),
            sampling=typed.read_sampling(),
            adjacency=typed.relation,
            accountant=accountant,
        ).schedule

    def rows(self) -> list[Row]:
        """What the guarantee alone says, below what the rounds do."""
        at = f"{plain(self.epsilon)} at delta {shown_delta(self.delta.value)}"
        guess = self._any.guess(self.prior)
        return [
            Row("", up(self.advantage), f"  advantage against any mechanism with epsilon {at}"),
            Row("", up(guess), "  best guess there"),
        ]

    def page(self) -> Page:
        """The guarantee alone."""
        at = f"at delta {shown_delta(self.delta.value)}"
        rows = [
            Row("advantage", f"{up(self.advantage)} at most", "  TPR - FPR of the best attack"),
            Row("best guess", f"{up(self._any.guess(self.prior))} at most", "  of being right"),
            Row("of", "any mechanism", f"with epsilon {plain(self.epsilon)} {at}"),
        ]
        lines = [[plain(a), up(self._any.tpr(a)), up(self._posterior(a))] for a in self.rates]
        remark = (
            "Some mechanism with this guarantee lets an attacker do as well as this. One that is "
            f"known lets out far less: dpacct risk --eps {plain(self.epsilon)} --rounds T --q Q "
            "shows it beside."
        )
        return Page(rows, Grid(["FPR", "TPR", "accusation right"], lines), [remark])

    def beside(self, grid: Grid) -> Grid:
        """The table of the rounds, with two columns of any mechanism."""
        lines = [
            [*line, up(self._any.tpr(rate)), up(self._posterior(rate))]
            for line, rate in zip(grid.lines, self.rates, strict=True)
        ]
        return Grid([*grid.header, "TPR of any", "right, any"], lines)

    def data(self, *, alone: bool) -> dict[str, object]:
        """As JSON."""
        whoever: dict[str, object] = {
            "epsilon": self.epsilon,
            "delta": self.delta.value,
            "advantage": self.advantage,
            "best_guess": self._any.guess(self.prior),
            "rates": [
                {"fpr": a, "tpr": self._any.tpr(a), "posterior": self._posterior(a)}
                for a in self.rates
            ],
        }
        found: dict[str, object] = {"any_mechanism": whoever}
        return {"prior": self.prior, **found} if alone else found

    def _posterior(self, fpr: float) -> float:
        tpr = self._any.tpr(fpr)
        return precision(Interval(tpr, tpr), fpr, self.prior).upper
