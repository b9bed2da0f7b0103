"""Settings files of other tools: which schedule is meant.

Such a file has noise, rate and rounds side by side, in words of its own. It leaves open how batches
are drawn and which data sets are neighbors. So it is not read: the error proposes a phase.
"""

from __future__ import annotations

import math
import re

# Keys without "_" and "-", in small letters, by the key of a phase or the option that they mean.
_MEANINGS = {
    "noise_multiplier": "noisemultiplier sigma noise noisescale dpsigma dpnoisemultiplier z",
    "sampling_rate": "samplingrate samplerate samplingprobability subsamplingrate q fractionfit "
    "fraction clientfraction",
    "rounds": "rounds numrounds numserverrounds nrounds communicationrounds steps numsteps "
    "maxsteps iterations numiterations compositions t",
    "epochs": "epochs numepochs numtrainepochs nepochs",
    "batch": "batchsize lotsize trainbatchsize perdevicetrainbatchsize cohortsize "
    "clientsperround numclientsperround",
    "accumulated": "gradientaccumulationsteps accumulationsteps accumulatedbatches",
    "examples": "numexamples datasetsize samplesize numsamples numclients trainsize population "
    "numtrain",
    "delta": "delta targetdelta",
}
_MEANS = {word: key for key, words in _MEANINGS.items() for word in words.split()}
_SETTING = re.compile(r"[\"']?([A-Za-z][\w-]*)[\"']?\s*[:=]\s*[\"']?([+-]?[\d.][\w.+-]*)")
_OPTIONS = {"noise_multiplier": "--noise", "sampling_rate": "--q", "rounds": "--rounds"}


def meant_phase(text: str) -> str:
    """Return a question that shows the phase that flat settings mean, and the same as options.

    The text may be TOML, JSON or YAML. Empty if it holds no noise and no rate.
    """
    found: dict[str, float] = {}
    for word, value in _SETTING.findall(text):
        key = _MEANS.get(re.sub("[_-]", "", word).lower())
        try:
            found.setdefault(key or "", float(value))
        except ValueError:
            continue
    batch = found.get("batch", 0.0) * found.get("accumulated", 1.0)
    if "sampling_rate" not in found and 0.0 < batch <= found.get("examples", 0.0):
        found["sampling_rate"] = batch / found["examples"]
    rate = found.get("sampling_rate", 0.0)
    if "rounds" not in found and found.get("epochs", 0.0) > 0.0 and rate > 0.0:
        found["rounds"] = math.ceil(found["epochs"] / rate)
    if not found.keys() & {"noise_multiplier", "sampling_rate"}:
        return ""
    shown = {key: f"{found[key]:.12g}" if key in found else "..." for key in _OPTIONS}
    phase = ", ".join(f"{key} = {value}" for key, value in shown.items())
    options = " ".join(f"{_OPTIONS[key]} {value}" for key, value in shown.items())
    delta = f" --delta {found['delta']:.12g}" if "delta" in found else ""
    of_steps = ", with the batch of one optimizer step" if "batch" in found else ""
    return f"Did you mean [[phase]] with {phase}{of_steps}? As options: {options}{delta}."
