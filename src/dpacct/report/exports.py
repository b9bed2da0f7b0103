"""A report for other places: an entry of the OpenDP deployments registry, and a model card.

Rule: both state the guarantee that the report promises, and reject a report without one. Facts that
dpacct does not know are marked TODO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dpacct.display import chosen, trimmed, up
from dpacct.errors import Unsupported
from dpacct.report.document import Report, heading, paragraph, safe, table
from dpacct.report.words import neighbors

_TODO = "TODO"
_MOST_PHASES = 5


def to_registry(report: Report) -> str:
    """Return a draft entry of the registry of deployments, in YAML.

    Source: the entries at github.com/opendp/deployments-registry-data.

    Raises:
        Unsupported: the report promises nothing.
    """
    epsilon, delta = _guarantee(report)
    facts = report.facts
    author, mechanism = facts.get("author", _TODO), _mechanism(facts)
    entry: dict[str, Any] = {
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": report.title,
                "data_curators": [author],
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
                "privacy_unit": facts["unit"],
                "privacy_unit_description": neighbors(facts["adjacency"], facts["unit"]),
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
                "post_processing": "Everything computed from the noisy releases is covered.",
                "composition": f"{mechanism}. {_accountant(facts)}",
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _TODO,
                "mechanisms": mechanism,
                "justification": _TODO,
            },
            "resources": {"sources": _TODO, "registry_authors": [author]},
        },
    }
    return "\n".join(_yaml(entry)) + "\n"


def to_model_card(report: Report) -> str:
    """Return a section of Markdown for the card of a model.

    Raises:
        Unsupported: the report promises nothing.
    """
    epsilon, delta = _guarantee(report)
    facts = report.facts
    rows = (
        ("guarantee", f"epsilon at most {trimmed(up(epsilon))} at delta {chosen(delta)}"),
        ("privacy unit", f"one {facts['unit']}, with all its data"),
        ("neighboring data sets", neighbors(facts["adjacency"], facts["unit"])),
        ("mechanism", _mechanism(facts)),
        ("accounting", _accountant(facts)),
    )
    blocks = (
        heading(2, "Differential privacy"),
        paragraph(report.headline),
        table(("", ""), rows),
        "The guarantee holds if:",
        "\n".join(f"- {safe(words)}" for words in facts["assumptions"]),
    )
    return "\n\n".join(blocks) + "\n"


def _guarantee(report: Report) -> tuple[float, float]:
    """Return epsilon and delta as the report promises them."""
    risk = report.facts["risk"]
    if risk is None:
        raise Unsupported("this report promises nothing, so there is no guarantee to export")
    return float(risk["epsilon"]), float(report.facts["delta"])


def _mechanism(facts: dict[str, Any]) -> str:
    """Return the rounds in words, of a schedule or of all runs of a ledger."""
    phases = facts.get("phases") or [phase for run in facts["runs"] for phase in run["phases"]]
    words: list[str] = []
    for phase in phases[:_MOST_PHASES]:
        sampled = "sampling" in phase
        said = [f"{phase['rounds']} {'rounds' if sampled else phase['mechanism']}"]
        if sampled:
            said.append(f"{phase['sampling']} sampling")
        if "sampling_rate" in phase:
            said.append(f"rate {chosen(phase['sampling_rate'])}")
        if "noise_multiplier" in phase:
            said.append(f"noise multiplier {chosen(phase['noise_multiplier'], least=True)}")
        words.append(", ".join(said))
    return "; ".join(words) + ("; and more" if len(phases) > _MOST_PHASES else "")


def _accountant(facts: dict[str, Any]) -> str:
    name = facts.get("accountant") or facts["guarantee"]
    return f"dpacct, {name}: a proven upper bound that includes rounding errors"


def _yaml(values: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a nested dictionary. A JSON text is also one of YAML."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml(value, indent + "  ")  # pyright: ignore[reportUnknownArgumentType]
            continue
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and "." not in text:
            # Some readers of YAML take 1e-05 for a text.
            text = text.replace("e", ".0e")
        yield f"{indent}{key}: {text}"
