"""The claims that come with the package: published settings, each with its place in its text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from dpacct.claims.claim import Claims
from dpacct.claims.files import parse_claims


@cache
def shipped_claims() -> Claims:
    """All claims and statements that come with the package, in the order of their files."""
    folder = files("dpacct.claims") / "published"
    found = [
        parse_claims(file.read_text(encoding="utf-8"), file.name)
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    ]
    return Claims(
        tuple(claim for one in found for claim in one.claims),
        tuple(statement for one in found for statement in one.statements),
    )
