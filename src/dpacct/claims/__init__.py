"""Privacy claims of publications: read from files, judged, and shipped with the package.

>>> from dpacct import claims
>>> judged = claims.judge(claims.load_claims("paper.toml").claims[0])  # doctest: +SKIP
>>> judged.verdict  # doctest: +SKIP
<Verdict.PROVEN: 'proven'>
"""

from dpacct.claims.files import (
    Claim,
    Claims,
    ClipFrom,
    Divisor,
    NoiseBy,
    Reading,
    Role,
    Source,
    Statement,
    load_claims,
    parse_claims,
    shipped_claims,
)
from dpacct.claims.judge import Judged, Judgment, Verdict, judge

__all__ = [
    "Claim", "Claims", "ClipFrom", "Divisor", "Judged", "Judgment", "NoiseBy", "Reading", "Role",
    "Source", "Statement", "Verdict", "judge", "load_claims", "parse_claims", "shipped_claims",
]  # fmt: skip
