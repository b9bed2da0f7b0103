"""What a name that is not known may mean: a synonym of other tools, or nearly the same spelling.

One table answers for keys of files, settings of other tools and options of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Names in other tools, in the form of `bare`, by the name here: of a key, or of an option without
# one. The first name that is known counts.
ELSEWHERE = {
    "noise_multiplier": "noise sigma noisescale std dpsigma dpnoisemultiplier z",
    "sampling_rate": "samplerate rate samplingprobability subsamplingrate q fraction fractionfit "
    "clientfraction",
    "epsilon": "eps targetepsilon budget",
    "delta": "targetdelta",
    "epochs": "numepochs numtrainepochs nepochs",
    "rounds": "numrounds numserverrounds nrounds communicationrounds steps numsteps maxsteps "
    "iterations numiterations compositions t epochs",
    "batch": "batchsize lotsize trainbatchsize perdevicetrainbatchsize",
    "cohort_size": "cohort clientsperround numclientsperround batchsize lotsize batch",
    "examples": "numexamples datasetsize samplesize numsamples trainsize numtrain",
    "num_clients": "clients population users numusers datasetsize numexamples examples",
}
# A name is nearly the same at this ratio of `difflib`, whose time grows with the length.
NEAR, _LONGEST_NAME = 0.75, 40


def bare(name: str) -> str:
    """Return a name in small letters, without what joins its words."""
    return re.sub(r"[-_\s]", "", name).lower()


def meant_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is a synonym (`ELSEWHERE`) or nearly the same, or ""."""
    from difflib import get_close_matches  # noqa: PLC0415 - for errors alone

    names, word = list(known), bare(name)[:_LONGEST_NAME]
    same = [one for one in names if bare(one) == word]
    same += [one for one, words in ELSEWHERE.items() if word in words.split() and one in names]
    return next(iter(same or get_close_matches(name.lower()[:_LONGEST_NAME], names, 1, NEAR)), "")
