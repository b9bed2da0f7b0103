"""A report for other places: an entry of the OpenDP deployments registry, and a model card.

Rule: both state the guarantee that the report promises, and reject a report without one. Facts that
dpacct does not know are marked TODO.
"""

from __future__ import annotations

import json
from typing import Any

from dpacct.certificates import in_words
from dpacct.display import chosen, escaped, trimmed, up
from dpacct.errors import Unsupported
from dpacct.items import KEYS, parts_in_words, read_part
from dpacct.report.document import Report, bullets, filled, template
from dpacct.report.front import gdp_in_words, neighbors
from dpacct.rounds import Schedule

_MOST_PHASES = 5


def to_registry(report: Report) -> str:
    """Return a draft entry of the registry of deployments, in YAML.

    Source: the entries at github.com/opendp/deployments-registry-data.

    Raises:
        Unsupported: the report promises nothing.
    """
    facts = _promised(report)
    values = {
        "name": report.title,
        "author": facts.get("author", "TODO"),
        "date": facts.get("date", "TODO"),
        "unit": facts["unit"],
        "neighbors": neighbors(facts["adjacency"], facts["unit"]),
        "epsilon": float(facts["risk"]["epsilon"]),
        "delta": float(facts["delta"]),
        "composition": f"{_mechanism(facts)}. {_accounting(facts)}",
        "mechanism": _mechanism(facts),
    }
    return template("registry.yaml").substitute({key: _yaml(one) for key, one in values.items()})


def to_model_card(report: Report) -> str:
    """Return a section of Markdown for the card of a model.

    Raises:
        Unsupported: the report promises nothing.
    """
    facts = _promised(report)
    blocks = filled(
        "model-card.md",
        {"assumptions": bullets(facts["assumptions"])},
        headline=report.headline,
        epsilon=trimmed(up(float(facts["risk"]["epsilon"]))),
        delta=chosen(facts["delta"]),
        unit=facts["unit"],
        neighbors=neighbors(facts["adjacency"], facts["unit"]),
        mechanism=_mechanism(facts),
        accounting=_accounting(facts),
    )
    return "\n\n".join(blocks) + "\n"


def _promised(report: Report) -> dict[str, Any]:
    """Return the facts of a report that promises something."""
    if report.facts["risk"] is None:
        raise Unsupported("this report promises nothing, so there is no guarantee to export")
    return report.facts


def _mechanism(facts: dict[str, Any]) -> str:
    """Return the rounds in words, of a schedule or of all runs of a ledger."""
    phases = facts.get("phases") or [phase for run in facts["runs"] for phase in run["phases"]]
    words: list[str] = []
    for entry in phases[:_MOST_PHASES]:
        keys = {key: value for key, value in entry.items() if key in KEYS}
        words += parts_in_words(Schedule([read_part(keys, facts["adjacency"])]))
    return "; ".join(words) + ("; and more" if len(phases) > _MOST_PHASES else "")


def _accounting(facts: dict[str, Any]) -> str:
    name = facts.get("accountant") or facts["guarantee"]
    words = f"dpacct, {name}: a proven upper bound that includes rounding errors"
    again, gaussian = facts.get("certified"), facts.get("gdp")
    words_of = [words, in_words(again) if again else "", gdp_in_words(gaussian) if gaussian else ""]
    return "; ".join(part for part in words_of if part)


def _yaml(value: str | float) -> str:
    """Return a value in YAML, of which every JSON text is one."""
    text = json.dumps(escaped(value) if isinstance(value, str) else value, ensure_ascii=False)
    # Some readers of YAML take 1e-05 for a text.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
