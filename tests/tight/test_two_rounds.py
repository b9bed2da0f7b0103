"""Two rounds, the hardest for the contour, against an integral of closed forms in x.

Rare rounds are nearly atoms, where neither few large losses nor many small ones decide alone.
"""

from __future__ import annotations

import math

import pytest
from mpmath import mpf

from dpacct.errors import NotConverged
from dpacct.tight.contour import Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import chernoff_delta, composed_delta, composed_epsilon
from tests.oracles import contour, replacement
from tests.oracles.answers import known
from tests.tight.compositions import ADD, REMOVE, REPLACE, Kind, compose
from tests.truth import check

# (rate, noise) of both rounds and epsilons, in the remove direction.
NEARLY_ATOMS = [
    # A density drops where losses end.
    ((5.853583507055876e-05, 0.27988), (5.853583507055876e-05, 0.27988), 24.82),
    ((2.67e-6, 1.61), (2.67e-6, 1.61), 5.80465e-5),
    ((2e-6, 0.49), (2e-6, 0.49), 2.2),
    ((9.018e-7, 4.009), (9.018e-7, 4.009), 7.97e-6),
    # Both rounds matter, and the characteristic function of small losses nearly vanishes.
    ((1.86e-6, 3.17), (1.86e-6, 3.17), 2.058e-6),
    # epsilon lies below the losses of a client that participates.
    ((0.1, 0.16), (0.1, 0.16), 8.0),
    # Losses far below zero may compensate a large loss.
    ((0.004, 0.2), (0.004, 0.2), 0.001),
    # The client participates twice, and the tilt is large where the losses end.
    ((0.003, 0.12), (0.003, 0.12), 60.0),
    ((6e-7, 0.467), (6e-7, 0.467), 1.9e-4),
    ((1e-3, 0.28), (1e-3, 0.28), 30.0),
    ((2e-5, 0.9), (5e-6, 1.4), 1e-3),
    ((3.3e-7, 0.6), (3.3e-7, 0.6), 3.0),
]
# In both directions; the first with rates near one and little noise: few rounds, and yet no atom.
EITHER = [
    ((0.9, 0.5), (0.8, 0.6), [0.0, 0.5, 2.0]),
    ((0.1, 1.0), (0.1, 1.0), [0.1, 1.0]),
    ((1e-3, 1.0), (1e-3, 1.0), [0.01]),
    ((1e-7, 0.5), (1e-7, 0.5), [1.0]),
    ((0.01, 0.5), (0.2, 3.0), [0.1, 2.0]),
    ((0.3, 30.0), (1e-4, 1.0), [0.02]),
]
REPLACED = [((2e-5, 1.0), (2e-5, 1.0), 3e-4), ((2e-5, 1.0), (5e-5, 1.5), 4e-4)]
LINES = [
    ((0.1, 1.3), (0.1, 1.3), 1.0),
    ((0.4, 2.0), (0.05, 0.8), 0.3),
    ((0.9, 1.0), (0.3, 3.0), 4.0),
]


def truth(kind: Kind, first: tuple, second: tuple, at: float, **options: float) -> mpf:
    if kind == REPLACE:
        return known(replacement.two_rounds, at, first, second, **options)
    return known(contour.two_rounds, at, first, second, remove=kind is REMOVE, **options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("kind", "first", "second", "at", "options"),
    [
        # Next to nothing is left: delta is 2.5e-198.
        (REMOVE, (1.86e-6, 3.17), (1.86e-6, 3.17), 0.02095, {"sigmas": 40.0}),
        *((REMOVE, *case, {}) for case in NEARLY_ATOMS),
        *((kind, *two, at, {}) for kind in (REMOVE, ADD) for *two, all_ in EITHER for at in all_),
        *((REPLACE, *case, {"nodes": 60}) for case in REPLACED),
    ],
)
def test_two_rounds_hold_the_truth(kind, first, second, at, options):
    exact = truth(kind, first, second, at, **options)
    both = compose([(*first, 1), (*second, 1)], kind)
    check(composed_delta(both, at), exact, spare=1e-14)
    assert exact <= chernoff_delta(both, at) * (1 + 1e-12)
    if exact > 1e-100:
        back = composed_epsilon(both, float(exact))
        assert back.lower <= at * (1 + 1e-12)
        assert at * (1 - 1e-12) <= back.upper


def test_two_rounds_that_both_have_next_to_impossible_losses_hold_the_truth():
    """Large losses outweigh small ones by more than e^600 under the tilt, in one of both rounds."""
    # The truth by integration over x of one round against the delta of the other, 30 digits.
    rounds = [(2.502028065047188e-05, 0.08622599175274306, 1)]
    rounds += [(0.00011648133333613346, 0.2858051373105649, 1)]
    found = composed_delta(compose(rounds), 456.32862316695696)
    check(found, math.exp(-577.7107191135354), spare=1e-9)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("factor", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("width", [0.0, 1e-4])
def test_a_contour_of_two_replaced_clients_encloses_their_delta(case, factor, width):
    """However badly the line is chosen."""
    first, second, epsilon = case
    composition = compose([(*first, 1), (*second, 1)], REPLACE)
    tilt, at = tilt_at_epsilon(composition, epsilon)
    log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
    try:
        line = Contour(composition, tilt * factor, epsilon, log_delta, width)
    except NotConverged:
        assert not width
        return
    check(line.delta(epsilon), truth(REPLACE, first, second, epsilon))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
@pytest.mark.parametrize("remove", [True, False])
def test_the_oracle_does_not_depend_on_the_order_of_rounds(epsilon, *, remove):
    first, second = (0.5, 1.0), (0.3, 0.7)
    plain = contour.two_rounds(epsilon, first, second, remove=remove)
    swapped = contour.two_rounds(epsilon, second, first, remove=remove)
    assert abs(plain - swapped) <= mpf(10) ** -15 * plain
