"""Settings files of other tools: which schedule is meant.

Such a file has noise, rate and rounds side by side, in words of its own. It leaves open how batches
are drawn and which data sets are neighbors. So it is not read: the error proposes a phase.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress

from dpacct.synonyms import ELSEWHERE, bare

# What a key of such a file means.
_MEANS = {
    "accumulated": "gradientaccumulationsteps accumulationsteps accumulatedbatches",
    **ELSEWHERE,
    "examples": f"numclients {ELSEWHERE['examples']} {ELSEWHERE['num_clients']}",
    "batch": f"cohortsize {ELSEWHERE['batch']} {ELSEWHERE['cohort_size']}",
}
_KEYS = {
    word: key for key, words in reversed(_MEANS.items()) for word in (*words.split(), bare(key))
}
# Possessive, and only at the start of a word: the time grows with the length of the text.
_SETTING = re.compile(r"(?<![\w-])([A-Za-z][\w-]*+)[\"']?\s*+[:=]\s*+[\"']?([+-]?[\d.][\w.+-]*)")
_OPTIONS = {"noise_multiplier": "--noise", "sampling_rate": "--q", "rounds": "--rounds"}


def meant_phase(text: str) -> str:
    """Return a question that shows the phase that flat settings mean, and the same as options.

    The text may be TOML, JSON or YAML. Empty if it holds no noise and no rate.
    """
    settings: dict[str, float] = {}
    for word, value in _SETTING.findall(text):
        key = _KEYS.get(bare(word))
        with suppress(ValueError):
            if math.isfinite(number := float(value)):
                settings.setdefault(key or "", number)
    batch = settings.get("batch", 0.0) * settings.get("accumulated", 1.0)
    if "sampling_rate" not in settings and 0.0 < batch <= settings.get("examples", 0.0):
        settings["sampling_rate"] = batch / settings["examples"]
    rate, epochs = settings.get("sampling_rate", 0.0), settings.get("epochs", 0.0)
    if "rounds" not in settings and rate > 0.0 and 0.0 < epochs / rate < math.inf:
        settings["rounds"] = math.ceil(epochs / rate)
    if not settings.keys() & {"noise_multiplier", "sampling_rate"}:
        return ""
    shown = {key: f"{settings[key]:.12g}" if key in settings else "..." for key in _OPTIONS}
    phase = ", ".join(f"{key} = {value}" for key, value in shown.items())
    options = " ".join(f"{_OPTIONS[key]} {value}" for key, value in shown.items())
    delta = f" --delta {settings['delta']:.12g}" if "delta" in settings else ""
    of_steps = ", with the batch of one optimizer step" if "batch" in settings else ""
    return f"Did you mean [[phase]] with {phase}{of_steps}? As options: {options}{delta}."
