"""Suggestions: for a name that no command knows, and for a text that is no number.

Rule: a suggestion is a synonym, or a name with nearly the same spelling. If neither is near, there
is none, and the line lists the command's arguments instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation

NEAR = 0.75
QUOTES = "'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb"

# Synonyms without dashes, by the intended option. The first one that the command has counts.
MEANINGS = {
    "--local-epochs": "epochs numepochs",
    "--local-steps": "steps numsteps iterations",
    "--batch-size": "lotsize",
    "--fpr": "falsepositiverate",
    "--eps": "epsilon targetepsilon epsilontarget budget",
    "--delta": "targetdelta deltatarget",
    "--epochs": "numepochs",
    "--rounds": "steps numsteps iterations numrounds epochs numepochs compositions",
    "--q": "samplingrate samplerate rate samplingprobability probability subsamplingrate fraction "
    "participationrate ratio",
    "--noise": "noisemultiplier sigma noisescale noisestd std",
    "--clip": "maxgradnorm clipping clippingnorm clippingthreshold clippingbound l2normclip",
    "--batch": "batchsize lotsize",
    "--cohort": "cohortsize clientsperround lotsize batchsize",
    "--examples": "numexamples datasetsize samplesize",
    "--clients": "numclients population populationsize users numusers datasetsize samplesize "
    "numexamples",
    "--schedule": "file input phases",
    "--sampling": "sampler samplingscheme scheme subsampling",
    "--adjacency": "neighboring neighbors neighborhood relation neighboringrelation",
    "--accountant": "method theory accounting backend engine",
    "--orders": "alpha alphas order",
    "--tpr": "truepositiverate",
    "--solve": "find target unknown",
    "--quiet": "silent short",
    "--output": "out outfile outputfile",
    "--local-lr": "lr learningrate clientlr locallearningrate",
    "--server-lr": "serverlearningrate globallr",
    "--data": "dataset",
    "--resume": "continue restart",
    "--model": "architecture network net",
    "--device": "gpu cuda",
    "--head": "hash",
    "--json": "format",
}
COMMANDS = {
    "epsilon": "eps spent account",
    "eps": "epsilon",
    "delta": "deltas",
    "calibrate": "calibration noise solve sigma",
    "risk": "attack attacks advantage audit",
    "rdp": "renyi curve",
    "compare": "comparison",
    "audit": "canary canaries test verify leak check",
    "train": "fit run fl federated",
    "ledger": "ledgers log history",
    "show": "list ls status cat print",
    "verify": "check fsck validate",
    "init": "new create make",
    "report": "html page reports ethics board",
    "remaining": "left rest",
    "export": "dump",
}


def _bare(name: str) -> str:
    return re.sub(r"[-_\s\u2010-\u2015\u2212]", "", name).lower()


def _meant(name: str, known: Sequence[str], synonyms: Mapping[str, str]) -> str | None:
    """Return the known word that ``name`` means, or None if none is near."""
    bare = _bare(name)
    same = [word for word in known if _bare(word) == bare and not re.match("-[^-]", word)]
    same += [word for word, others in synonyms.items() if bare in others.split()]
    return next((word for word in (*same, near(name, known)) if word in known), None)


def meant_value(text: str, rule: str) -> str:
    """Return a question on which of a few words is meant, or an empty text.

    Args:
        text: as typed.
        rule: the broken rule. It ends in ``one of``, and the words, separated by commas.
    """
    _, listed, words = rule.partition("one of ")
    choices = [word.strip() for word in words.split(",")] if listed else []
    same = [choice for choice in choices if _bare(choice) == _bare(text)]
    # fedavg is dp-fedavg before it is fedavg-smoothed.
    same += [choice for choice in choices if choice == f"dp-{text.lower()}"]
    begun = [choice for choice in choices if len(text) > 2 and choice.startswith(text.lower())]
    found = next(iter([*same, *begun]), "") or near(text, choices)
    return f"Did you mean {found}?" if found else ""


def near(name: str, names: Sequence[str]) -> str:
    """Return the name with nearly the same spelling, or an empty text."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.lower(), names, n=1, cutoff=NEAR)), "")


def unknown_option(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for an option that a command does not have."""
    message = f"{name} is not an option of {program}."
    meant = _meant(name, known, MEANINGS)
    if meant is None and _bare(name) in ("version", "v"):
        meant = "dpacct --version"
    if meant is None:
        return f"{message} {program} --help lists all options."
    return f"{message} Did you mean {meant}?"


def unknown_command(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for a command that does not exist."""
    message = f"{name!r} is not a command of {program}."
    if _bare(name) in ("version", "help"):
        return f"{message} Did you mean {program.split(maxsplit=1)[0]} --{_bare(name)}?"
    meant = _meant(name, known, COMMANDS)
    if meant is not None:
        return f"{message} Did you mean {program} {meant}?"
    return f"{message} {program} --help lists all commands."


def resumed_by_name(word: str) -> str:
    """Return the sentences for a word that follows --resume, which takes none."""
    return (
        f"--resume takes no value, and '{word}' follows it. It continues the unfinished run of "
        "this folder. --ledger FILE or --run NAME chooses the run."
    )


def stray_word(word: str, program: str, known: Sequence[str], before: str = "") -> str:
    """Return the sentences for a word to which no option belongs. ``before`` is the word before."""
    if before == "--resume":
        return resumed_by_name(word)
    message = f"'{word}' stands where {program} expects an option"
    name, equals, value = word.partition("=")
    meant = _meant(name, known, MEANINGS) if equals or not word[:1].isalnum() else None
    if meant is not None:
        return f"{message}. Did you mean {meant}{' ' + value if equals else ''}?"
    return f"{message}. {program} --help lists all options."


def meant_number(text: str, *, share: bool, whole: bool) -> str:
    """Return a question on the meaning of a text that is no number, or an empty text.

    Args:
        text: as typed.
        share: a number in (0, 1) is wanted, so that per cents have a meaning.
        whole: a whole number is wanted, so that a comma does not stand for the point.
    """
    bare = text.strip().strip(QUOTES).strip()
    percent = _number(bare[:-1].strip()) if bare.endswith("%") else None
    if share and percent is not None:
        return f"Did you mean {float(percent / 100):.12g} ({float(percent):.12g} %)?"
    for found, how in (
        (bare, ", without the quotes?"),
        (re.sub(r"[\u2010-\u2015\u2212]", "-", bare), ", with a hyphen?"),
        (re.sub(r"^10(\^|\*\*)", "1e", bare), "?"),
        (re.sub(r"(?<=\d)[,.' \u00a0\u202f](?=\d{3}(\D|$))", "", bare) if whole else bare, "?"),
        (
            bare if whole or bare.endswith(",") else bare.replace(",", "."),
            "? Decimals follow a point.",
        ),
    ):
        if found != text and _number(found) is not None:
            return f"Did you mean {found}{how}"
    return ""


def meant_numbers(text: str) -> str:
    """Return a question on a list that is not separated by commas, or an empty text."""
    parts = [part for part in re.split(r"[;\s]+", text.strip()) if part]
    if len(parts) > 1 and all(_number(part) is not None for part in parts):
        return f"Did you mean {','.join(parts)}?"
    return ""


def _number(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None
