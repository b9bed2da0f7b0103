"""JSON Schemas of outputs and files: valid by themselves, one for each command, true of examples.

Every JSON object that a test of the command line reads is held against its schema (`Ran.json`).
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dpacct_cli.app import ENTRIES, load
from dpacct_cli.outputs import FILES, NAMES, schema

jsonschema: Any = pytest.importorskip("jsonschema")

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_and_file_has_a_schema() -> None:
    wanted = {*FILES}
    for name, entry in ENTRIES.items():
        if name == "app":  # A page, which prints nothing
            continue
        below = getattr(load(name, entry), "commands", {})
        wanted |= {f"{name}-{each}" for each in below} if name == "ledger" else {name}
    # The page of `app` prints no JSON.
    assert {*NAMES} == wanted - {"app"}


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_valid(name: str) -> None:
    found = json.loads(json.dumps(schema(name)))
    jsonschema.Draft202012Validator.check_schema(found)
    assert found == schema(name)


def test_shipped_files_fit_their_schemas() -> None:
    plan = tomllib.loads((ROOT / "examples" / "plan.toml").read_text(encoding="utf-8"))
    jsonschema.validate(plan, schema("schedule-file"))
    for file in (ROOT / "src" / "dpacct" / "claims" / "published").glob("*.toml"):
        claims = tomllib.loads(file.read_text(encoding="utf-8"))
        jsonschema.validate(claims, schema("claims-file"))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("calibrate", {"schema": 1, "solved_for": "noise"}),
        ("epsilon", {"schema": 2}),
        ("schedule-file", {"phase": [{"rounds": 0.5, "noise_multiplier": 1}]}),
        ("claims-file", {"claim": []}),
    ],
)
def test_a_wrong_object_is_found(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema(name))
