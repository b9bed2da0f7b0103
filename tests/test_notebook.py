"""What a notebook shows: tables and pictures."""

from __future__ import annotations

import dpacct
from dpacct import Interval, Poisson, Round
from dpacct.display import html_table


def test_an_interval_is_a_table_of_both_sides() -> None:
    shown = Interval(1.0 / 3, 2.0 / 3)._repr_html_()
    assert "<th style='text-align:left'>proven</th><td>0.66667</td>" in shown
    assert "<th style='text-align:left'>achieved</th><td>0.33333</td>" in shown


def test_a_calibration_is_a_table() -> None:
    found = dpacct.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    shown = found._repr_html_()
    assert "1.286010" in shown
    assert "proven, at delta 1e-05" in shown
    assert "300 rounds, Poisson(sampling_rate=0.1)" in shown
    plan = 10 * Round(1.0, Poisson(0.1)) + 10 * Round(2.0, Poisson(0.1))
    scaled = dpacct.calibrate(schedule=plan, epsilon=8, delta=1e-5)
    assert "noise scale" in scaled._repr_html_()
    risky = dpacct.calibrate(advantage=0.1, rounds=3, sampling_rate=0.1)
    assert "of any attack, proven" in risky._repr_html_()


def test_words_of_others_stay_words() -> None:
    shown = html_table([("<b>", 'a "&" b', "\x1b")])
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert "&quot;&amp;&quot;" in shown
    assert "\x1b" not in shown
