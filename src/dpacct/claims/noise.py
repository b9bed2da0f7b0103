"""The noise multiplier of a text, whatever units it uses, and the units that it mixes up.

Here z is the standard deviation of the noise on the *sum* / clip norm C, whatever the adjacency.
A text may give the deviation, or the variance, on the sum, on the mean over the planned cohort, or
of what each client of the cohort adds for itself.

Rule 1: what is given twice must agree to the digits that are printed; where it does not, the slip
that would explain it is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.rounds import Adjacency, Sampling, Uniform

NOISE_KEYS = ("noise_multiplier", "noise_std", "noise_variance", "noise_on", "clip_norm")
CLIENT = "client"
# Half a unit of the second digit that is printed.
_PRINTED = 5e-3
_ON = ("sum", "mean", CLIENT)


def read_noise(given: Mapping[str, Any], sampling: Sampling, num_clients: int | None) -> float:
    """The noise multiplier z that a table of a claim means.

    Args:
        given: with some of `NOISE_KEYS`.
        sampling, num_clients: who takes part; what a mean is over.
    Raises:
        InvalidParameter: none is given, a value is out of range, or two contradict each other.
    """
    printed = given.get("noise_multiplier")
    multiplier = None if printed is None else validate.noise_multiplier(printed)
    deviation = _deviation(given)
    if deviation is None:
        if multiplier is None:
            rule = "a noise multiplier is missing: std of the noise on the sum / clip norm"
            hint = "Give it, or noise_std (or noise_variance) with clip_norm."
            raise InvalidParameter("noise_multiplier", None, rule, hint)
        return multiplier
    if "clip_norm" not in given:
        rule = "clip_norm is missing: the noise multiplier is the noise std / clip_norm"
        raise InvalidParameter("clip_norm", None, rule)
    clip = validate.above_zero("clip_norm", given["clip_norm"], "a clip norm")
    on = given.get("noise_on", "sum")
    if on not in _ON:
        raise InvalidParameter("noise_on", on, "noise is on the sum, on the mean or of each client")
    cohort = _planned_cohort(sampling, num_clients)
    if on != "sum" and cohort is None:
        rule = "noise on the mean, or of each client, needs the number of clients"
        raise InvalidParameter("noise_on", on, rule, "Give num_clients.")
    computed = deviation / clip * _times(on, cohort)
    if multiplier is None:
        return validate.noise_multiplier(computed)
    if not math.isclose(multiplier, computed, rel_tol=_PRINTED):
        slip = _slip(
            multiplier, deviation, clip, cohort, on, from_variance="noise_std" not in given
        )
        rule = f"{_source(given)} / clip_norm is {computed:.6g}"
        if on != "sum":
            how = "on the mean of" if on == "mean" else "times the root of"
            rule = f"{rule}, {how} {cohort:g} clients"
        raise InvalidParameter("noise_multiplier", multiplier, rule, slip)
    # Of two figures that differ in digits that are not printed, the one that protects less.
    return min(multiplier, validate.noise_multiplier(computed))


def check_sensitivity(given: Mapping[str, Any], sampling: Sampling, adjacency: Adjacency) -> None:
    """Refuse a sensitivity that does not go with the adjacency.

    Args:
        given: may hold ``sensitivity``, how far one client can move the sum, beside ``clip_norm``.
    Raises:
        InvalidParameter: it is not C, or 2 C, as it should be.
    """
    if "sensitivity" not in given:
        return
    if "clip_norm" not in given:
        rule = "a sensitivity is compared with the clip norm, which is missing"
        raise InvalidParameter("sensitivity", given["sensitivity"], rule)
    clip = validate.above_zero("clip_norm", given["clip_norm"], "a clip norm")
    found = validate.above_zero("sensitivity", given["sensitivity"], "a sensitivity")
    displaces = isinstance(sampling, Uniform) and adjacency is Adjacency.ADD_REMOVE
    times = 2.0 if adjacency is Adjacency.REPLACE_ONE or displaces else 1.0
    if math.isclose(found, times * clip, rel_tol=_PRINTED):
        return
    why = "a cohort that stays full lets a client displace another" if displaces else str(adjacency)
    rule = f"under {why} one client moves the sum by up to {times:g} x clip_norm, {times * clip:g}"
    hint = ""
    if math.isclose(found, (3.0 - times) * clip, rel_tol=_PRINTED):
        hint = f"That is {3.0 - times:g} x clip_norm, as under another adjacency."
    raise InvalidParameter("sensitivity", found, rule, hint)


def _deviation(given: Mapping[str, Any]) -> float | None:
    if "noise_std" in given and "noise_variance" in given:
        std = validate.above_zero("noise_std", given["noise_std"], "a standard deviation")
        variance = validate.above_zero("noise_variance", given["noise_variance"], "a variance")
        if not math.isclose(std * std, variance, rel_tol=2 * _PRINTED):
            rule = f"the square of noise_std is {std * std:.6g}"
            hint = "Is one of them the other?" if math.isclose(std, variance) else ""
            raise InvalidParameter("noise_variance", variance, rule, hint)
        return min(std, math.sqrt(variance))
    if "noise_std" in given:
        return validate.above_zero("noise_std", given["noise_std"], "a standard deviation")
    if "noise_variance" in given:
        variance = validate.above_zero("noise_variance", given["noise_variance"], "a variance")
        return math.sqrt(variance)
    return None


def _times(on: str, cohort: float | None) -> float:
    """The noise on the sum over that of the text: independent shares add up by their squares."""
    if on == "sum" or cohort is None:
        return 1.0
    return cohort if on == "mean" else math.sqrt(cohort)


def _source(given: Mapping[str, Any]) -> str:
    return "noise_std" if "noise_std" in given else "the root of noise_variance"


def _planned_cohort(sampling: Sampling, num_clients: int | None) -> float | None:
    if isinstance(sampling, Uniform):
        return float(sampling.cohort_size)
    return None if num_clients is None else sampling.sampling_rate * num_clients


def _slip(
    printed: float,
    std: float,
    clip: float,
    cohort: float | None,
    on: str,
    *,
    from_variance: bool,
) -> str:
    """The mix-up of units that explains why two figures of one noise differ, or nothing."""
    count = _times(on, cohort)
    plain = std / clip * count
    squared = "The variance was divided by clip_norm; its root belongs there."
    if from_variance:
        squared = squared[:-1] + ", or it is a standard deviation: name it noise_std."
    explanations = [
        (plain / 2, "It was divided by the sensitivity 2 x clip_norm; here it is by clip_norm."),
        (2 * plain, "It was divided by half the clip norm; here it is by clip_norm itself."),
        (std * std / clip * count, squared),
        (plain * plain, "It looks like a variance: its root fits."),
    ]
    if not from_variance:
        root = "noise_std looks like a variance: name it noise_variance."
        explanations.append((math.sqrt(std) / clip * count, root))
    if cohort is not None and on != CLIENT:
        shares = f'Does each client add noise of this size? noise_on = "{CLIENT}".'
        explanations.append((std / clip * math.sqrt(cohort), shares))
        other = plain * cohort if on == "sum" else plain / cohort
        where = "mean" if on == "sum" else "sum"
        explanations.append((other, f'The noise seems to be on the {where}: noise_on = "{where}".'))
        away = plain / cohort if on == "sum" else plain * cohort
        explanations.append((away, "It seems to be divided by the cohort size."))
    explanations.append((std, "It was not divided by clip_norm."))
    for value, words in explanations:
        if math.isclose(printed, value, rel_tol=_PRINTED):
            return words
    return ""
