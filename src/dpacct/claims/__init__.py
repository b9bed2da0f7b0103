"""Published claims of privacy: read from files, judged, and shipped.

>>> from dpacct import claims
>>> found = claims.judge(claims.load_claims("paper.toml").claims[0])  # doctest: +SKIP
>>> found.verdict  # doctest: +SKIP
<Verdict.PROVEN: 'proven'>
"""

from dpacct.claims.claim import (
    Claim,
    Claims,
    ClipFrom,
    Divisor,
    NoiseBy,
    Reading,
    Role,
    Source,
    Statement,
)
from dpacct.claims.files import load_claims, parse_claims
from dpacct.claims.judge import Judged, Judgment, Verdict, judge
from dpacct.claims.shipped import shipped_claims

__all__ = [
    "Claim",
    "Claims",
    "ClipFrom",
    "Divisor",
    "Judged",
    "Judgment",
    "NoiseBy",
    "Reading",
    "Role",
    "Source",
    "Statement",
    "Verdict",
    "judge",
    "load_claims",
    "parse_claims",
    "shipped_claims",
]
