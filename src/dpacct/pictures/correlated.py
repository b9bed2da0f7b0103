"""The picture of strategies: the error of running sums against bands and separation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpacct import validate
from dpacct.calibration.calibrate import calibrate
from dpacct.correlated import Strategy, independent, square_root
from dpacct.correlated.matrix import MAX_ROUNDS
from dpacct.correlated.sensitivity import check_participation
from dpacct.display import chosen, up
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Curve, Level, Mark, Panel, Picture

# Numbers of bands of a curve.
POINTS = 24


def correlated_picture(
    rounds: int,
    separations: Sequence[int],
    *,
    epsilon: float,
    delta: float,
    participations: int | None = None,
) -> Picture:
    """Draw the error of running sums against the bands of the square root, at one budget.

    Each curve belongs to one separation and marks its best number of bands. The noise is the least
    that meets the budget without sampling. The level is independent noise at the first separation.

    Args:
        rounds: the number of rounds.
        separations: the least numbers of rounds between two participations of one client.
        epsilon, delta: the budget.
        participations: the most participations of one client. Default: as many as fit.
    Raises:
        InvalidParameter: a value out of range, or no separation.
    """
    if not separations:
        rule = "a picture has a curve for each separation"
        raise InvalidParameter("min_separation", separations, rule)
    rounds = validate.count("rounds", rounds, "the number of rounds", MAX_ROUNDS)
    apart = [check_participation(rounds, value, participations)[0] for value in separations]
    # Noise per unit of sensitivity: the run is one Gaussian.
    unit = calibrate(epsilon=epsilon, delta=delta, rounds=1).noise_multiplier

    def error(strategy: Strategy, separation: int) -> float:
        sensitivity = strategy.sensitivity(separation, participations)
        return strategy.prefix_error(unit * sensitivity.upper)

    widths = np.unique(np.geomspace(1, rounds, POINTS).round().astype(int)).tolist()
    curves: list[Curve] = []
    marks: list[Mark] = []
    best: list[tuple[float, int, int]] = []
    for separation in apart:
        bands = sorted({*widths, separation})
        errors = [error(square_root(rounds, width), separation) for width in bands]
        least = min(zip(errors, bands, strict=True))
        best.append((*least, separation))
        curves.append(Curve(f"separation {separation}", [*map(float, bands)], errors))
        marks.append(Mark(float(least[1]), least[0], f"{least[1]} bands: {up(least[0], 4)}"))
    plain = error(independent(rounds), apart[0])
    value, width, separation = min(best)
    title = f"{width} bands at separation {separation}: error {up(value, 4)}"
    panel = Panel(
        "bands of the square root",
        "error of running sums / clip norm, root mean square",
        curves,
        levels=[Level(plain, f"independent noise, separation {apart[0]}")],
        marks=marks,
        log_x=True,
        log_y=True,
    )
    budget = f"epsilon {chosen(epsilon)} at delta {chosen(delta, 3)}"
    note = f"{rounds} rounds without sampling, {budget}, add-remove"
    return Picture(title, [panel], note)
