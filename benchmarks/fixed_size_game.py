"""The gap between achieved and proven epsilon for cohorts of fixed size, and its cost.

Usage: python -m benchmarks.fixed_size_game [FOLDER]

Prints a table with the fixed pair of C_q and the Renyi bound of Wang et al. 2019 (one client
replaced). With a FOLDER it also draws (extra `plot`) the width over the number of cells and over
time: cells are chosen for the setting, beginning with one. Times are processor times, so that other
programs do not count. Distributions are recomputed for each answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from dpacct.renyi.curve import RenyiCurve, best_epsilon
from dpacct.rounds import Adjacency, Round, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.game.bounds import lower_epsilon, upper_epsilon
from dpacct.tight.game.choose import guided_cover
from dpacct.tight.game.plan import plan_at_delta

WANG = "Wang et al. 2019"
_MOST_CELLS = 70


@dataclass(frozen=True, slots=True)
class Setting:
    """A cohort out of ``clients``, with noise multiplier, rounds and delta."""

    cohort: int
    clients: int
    noise: float
    rounds: int
    delta: float

    @property
    def schedule(self) -> Schedule:
        """Return the schedule with one client replaced."""
        return self.rounds * Round(self.noise, Uniform(self.cohort, self.clients))

    def __str__(self) -> str:
        rate = self.cohort / self.clients
        return f"{rate:g}, {self.noise:g}, {self.rounds}, {self.delta:.3g}"


PROTOTYPE = (
    Setting(100, 2000, 2.4, 200, 2000**-1.1),
    Setting(100, 2000, 1.8, 200, 2000**-1.1),
    Setting(195, 975, 1.4, 100, 975**-1.1),
    Setting(50, 500, 0.95, 300, 1 / 500),
    Setting(100, 1000, 3.0, 300, 1e-5),
)
MORE = (
    Setting(5, 1000, 0.7, 10, 1e-6),
    Setting(5, 1000, 1.0, 1000, 1e-5),
    Setting(500, 1000, 10.0, 50, 1e-10),
    Setting(500, 1000, 5.0, 20, 1e-2),
    Setting(20, 1000, 1.5, 100, 1e-8),
    Setting(10, 1000, 2.0, 500, 1e-10),
    Setting(300, 1000, 8.0, 1000, 1e-6),
    Setting(50, 1000, 4.0, 3000, 1e-5),
    Setting(200, 1000, 10.0, 5000, 1e-3),
    Setting(100, 1000, 6.0, 5000, 1e-8),
)
DRAWN = (PROTOTYPE[0], PROTOTYPE[2])


def clear_caches() -> None:
    """Forget laws and answers."""
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith("dpacct.tight") else ():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def rows(settings: Sequence[Setting]) -> Iterator[str]:
    """Yield lines of a table in Markdown."""
    yield (
        "| q, z, rounds, delta | achieved | proven | apart | seconds | C_q, composed "
        "| Renyi, Wang et al. 2019 | zero-out: achieved | proven |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for setting in settings:
        clear_caches()
        start = time.process_time()
        found = TightAccountant().epsilon(setting.schedule, setting.delta)
        seconds = time.process_time() - start
        fixed = TightAccountant(engine="pairs").epsilon(setting.schedule, setting.delta)
        zeroed = setting.rounds * Round(
            setting.noise, Uniform(setting.cohort, setting.clients), Adjacency.ZERO_OUT
        )
        other = TightAccountant().epsilon(zeroed, setting.delta)
        yield (
            f"| {setting} | {found.lower:.4f} | {found.upper:.4f} | "
            f"{100 * (found.upper / found.lower - 1):.2f} % | {seconds:.1f} | {fixed.upper:.4f} | "
            f"{wang(setting):.4f} | {other.lower:.4f} | {other.upper:.4f} |"
        )


def wang(setting: Setting) -> float:
    """Return epsilon by their bound of the Renyi divergence."""
    curve = RenyiCurve(setting.schedule)
    return best_epsilon(lambda order: dict(curve.routes(order))[WANG], setting.delta, 4.0).value


@dataclass(frozen=True, slots=True)
class Played:
    """A pass: the number of cells, the excess of its bound over the achieved one, and seconds."""

    cells: int
    apart: float
    seconds: float


def splits(setting: Setting) -> list[Played]:
    """Run passes with more and more cells. Seconds are without the search for cells."""
    schedule, delta = setting.schedule, setting.delta
    plan = plan_at_delta(schedule, delta)
    lower = lower_epsilon(schedule, plan, delta)
    found: list[Played] = []
    for most in (1, 3, 5, 9, 15, 25, 40, _MOST_CELLS):
        cover = guided_cover(schedule, plan, 0.0, most)[0]
        clear_caches()
        start = time.process_time()
        upper = upper_epsilon(schedule, plan, cover, delta)
        seconds = time.process_time() - start
        found.append(Played(len(cover), upper / lower - 1, seconds))
    return found


def draw(path: Path, settings: Sequence[Setting]) -> None:
    """Draw the distance of the bounds over cells and over seconds."""
    cells: list[Curve] = []
    times: list[Curve] = []
    for one in settings:
        passes = splits(one)
        percents = [100 * played.apart for played in passes]
        name = f"{one.cohort} of {one.clients}, noise {one.noise:g}, {one.rounds} rounds"
        cells.append(Curve(name, [float(played.cells) for played in passes], percents))
        times.append(Curve("", [played.seconds for played in passes], percents))
    apart, goal = "upper bound above lower bound of epsilon [%]", [Level(1.0, "1 %")]
    panels = [
        Panel(x, apart, curves, levels=goal, log_x=True, log_y=True)
        for x, curves in (("cells of the cover", cells), ("processor time of the pass [s]", times))
    ]
    title = "About 30 cells bring the two bounds within 1 percent"
    note = "Cohorts of fixed size, replace-one."
    Drawing(Picture(title, panels, note)).save(path, replace=True)


def main(folder: Path | None = None) -> None:
    """Print the table. With a folder, draw."""
    for line in rows((*PROTOTYPE, *MORE)):
        print(line, flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        draw(folder / "fixed-size-game.png", DRAWN)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
