"""A report for other places: an entry of the OpenDP deployments registry, and a model card.

Rule: both state the guarantee that the report promises. They refuse a report without one, and one
on a claim, which is no deployment. Facts that dpacct does not know are marked TODO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dpacct.display import chosen, trimmed, up
from dpacct.errors import Unsupported
from dpacct.report.document import Paragraph, Report, plain

_TODO = "TODO"


def to_registry(report: Report) -> str:
    """Return a draft entry of the registry of deployments, in YAML.

    Source: the entries at github.com/opendp/deployments-registry-data.

    Raises:
        Unsupported: the report promises nothing.
    """
    epsilon, delta = _guarantee(report)
    facts = report.facts
    unit = plain(str(facts["unit"]))
    entry: dict[str, Any] = {
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": report.title,
                "data_curators": [facts.get("author", _TODO)],
                "intended_use": _TODO,
                "data_product_type": "Machine learning model",
                "data_product_region": _TODO,
                "description": _TODO,
                "publication_date": facts.get("date", _TODO),
                "data_product_sector": _TODO,
            },
            "dp_flavor": {
                "name": "Approximate DP",
                "data_domain": _TODO,
                "unprotected_quantities": _TODO,
            },
            "privacy_loss": {
                "privacy_unit": unit,
                "privacy_unit_description": _neighbors(report),
                "privacy_parameters": {"epsilon": epsilon, "delta": delta},
            },
            "model": {
                "model_name": "Central",
                "actors": "A trusted server adds the noise. Everybody else sees the releases only.",
                "release_type": "Many releases",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Everything computed from the noisy sums is covered.",
                "composition": f"{_mechanism(facts)}. {_accountant(facts)}",
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _TODO,
                "mechanisms": "Gaussian noise on sums of bounded contributions",
                "justification": _TODO,
            },
            "resources": {"sources": _TODO, "registry_authors": [facts.get("author", _TODO)]},
        },
    }
    return "\n".join(_yaml(entry)) + "\n"


def to_model_card(report: Report) -> str:
    """Return a section of Markdown for the card of a model.

    Raises:
        Unsupported: the report promises nothing.
    """
    epsilon, delta = _guarantee(report)
    claim = next(b.words for b in report.blocks if isinstance(b, Paragraph) and b.strong)
    rows = {
        "guarantee": f"epsilon <= {trimmed(up(epsilon))} at delta {chosen(delta)}",
        "privacy unit": f"one {report.facts['unit']}, with all its data",
        "neighboring data sets": _neighbors(report),
        "mechanism": _mechanism(report.facts),
        "accounting": _accountant(report.facts),
    }
    table = [
        f"| {name} | {plain(words).replace('|', chr(92) + '|')} |" for name, words in rows.items()
    ]
    assumed = [f"- {words}" for words in report.facts["assumptions"]]
    parts = [
        "## Differential privacy", plain(claim), "\n".join(["| | |", "| --- | --- |", *table]),
        "The guarantee holds if:", "\n".join(assumed),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _guarantee(report: Report) -> tuple[float, float]:
    risk = report.facts["risk"]
    if report.facts["kind"] == "claim":
        raise Unsupported("this format is for a ledger or for rounds, and a claim is neither")
    if risk is None:
        raise Unsupported("this report promises nothing, so there is no guarantee to export")
    return float(risk["epsilon"]), float(report.facts["delta"])


def _neighbors(report: Report) -> str:
    """Return the row of the figures that says which data sets are neighbors."""
    for block in report.blocks:
        for name, *words in getattr(block, "rows", ()):
            if name == "adjacency":
                return str(words[0])
    return _TODO


def _mechanism(facts: dict[str, Any]) -> str:
    """Return the rounds in words, of a schedule or of all runs of a ledger."""
    found = facts.get("phases") or [p for run in facts["runs"] for p in run["phases"]]
    words = [
        f"{phase['rounds']} "
        + (f"rounds, {phase['sampling']} sampling" if "sampling" in phase else phase["mechanism"])
        + (f" at rate {chosen(phase['sampling_rate'])}" if "sampling_rate" in phase else "")
        + (
            f", noise multiplier {chosen(phase['noise_multiplier'], least=True)}"
            if "noise_multiplier" in phase
            else ""
        )
        for phase in found[:5]
    ]
    return "; ".join(words) + ("; and more" if len(found) > 5 else "")


def _accountant(facts: dict[str, Any]) -> str:
    name = facts.get("accountant") or facts.get("guarantee") or "tight"
    return f"dpacct, {name}: a proven upper bound that includes rounding errors"


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a nested dictionary. A JSON text is also one of YAML."""
    for key, held in value.items():
        if isinstance(held, dict):
            yield f"{indent}{key}:"
            yield from _yaml(held, indent + "  ")
        else:
            text = json.dumps(held, ensure_ascii=False)
            if isinstance(held, float) and "." not in text:
                # Some readers of YAML take 1e-05 for a text.
                text = text.replace("e", ".0e")
            yield f"{indent}{key}: {text}"
