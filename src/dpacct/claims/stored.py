"""The verdicts on the shipped claims, stored with the hash of what they were computed from.

Judging all claims takes a minute, most of it for cohorts of fixed size. Stored verdicts count only
for the very files and the very version of dpacct that they were computed with. With any other, the
claims are judged again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from dpacct.claims.files import Claim, shipped_claims
from dpacct.claims.judge import Judgment, facts_of, judge
from dpacct.outputs import JudgedClaim

FOLDER = files("dpacct.claims") / "published"
FILE = "verdicts.json"


def fingerprint() -> str:
    """Return the SHA-256 of the version of dpacct and of all shipped claim files, in hex."""
    texts = sorted(
        (file.name, file.read_bytes()) for file in FOLDER.iterdir() if file.name.endswith(".toml")
    )
    digest = hashlib.sha256(version("dpacct").encode())
    for name, text in texts:
        # Each file by its own hash, so that no text can run over into the next.
        digest.update(f"\n{name} {hashlib.sha256(text).hexdigest()}".encode())
    return digest.hexdigest()


def shipped_verdicts(tell: Callable[[Claim], None] = lambda _: None) -> list[JudgedClaim]:
    """Return the verdicts on all shipped claims, in their order.

    Args:
        tell: called with each claim before it is judged. No claim is, if the stored ones hold.
    """
    file = FOLDER / FILE
    stored: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if stored.get("fingerprint") == fingerprint():
        return cast("list[JudgedClaim]", stored["claims"])
    verdicts: list[JudgedClaim] = []
    for claim in shipped_claims().claims:
        tell(claim)
        verdicts.append(facts_of(judge(claim)))
    return verdicts


def store(judgments: Sequence[Judgment]) -> None:
    """Write the verdicts on all shipped claims beside them, in a checkout of dpacct."""
    # A claim a line, so that a difference shows which one changed.
    lines = ",\n".join(json.dumps(facts_of(one), ensure_ascii=False) for one in judgments)
    text = f'{{"fingerprint": "{fingerprint()}", "claims": [\n{lines}\n]}}\n'
    Path(str(FOLDER / FILE)).write_text(text, encoding="utf-8")
