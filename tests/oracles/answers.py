"""Stored answers of slow oracles. `python -m tests.oracles.answers` computes and stores them again.

With test files as arguments, it adds the answers that these ask for.

`known(oracle, ...)` is `oracle(...)`, looked up in `answers.json` where it is stored. The profile
`thorough` computes every answer, and compares it with the stored one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpmath import mp, mpc, mpf

FILE = Path(__file__).with_name("answers.json")
DIGITS = 30
_stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
# What `main` stores: the answers that the tests ask for.
_recorded: dict[str, Any] | None = None


def known(oracle: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Return the oracle's answer: numbers of float, mpf or mpc, or sequences of these."""
    name = f"{oracle.__module__.rpartition('.')[2]}.{oracle.__name__}"
    key = " ".join([name, json.dumps(args), *([json.dumps(settings)] if settings else [])])
    thorough = os.environ.get("DPACCT_TESTS", "quick") != "quick"
    if key in _stored and not thorough and _recorded is None:
        return _decoded(_stored[key])
    answer = oracle(*args, **settings)
    if _recorded is not None:
        _recorded[key] = _encoded(answer)
    elif key in _stored:
        _check(answer, _decoded(_stored[key]), key)
    return answer


def _encoded(answer: Any) -> Any:
    if isinstance(answer, (mpf, mpc)):
        parts = [answer.real, answer.imag] if isinstance(answer, mpc) else [answer]
        return " ".join(mp.nstr(part, DIGITS) for part in parts)
    return answer if isinstance(answer, float) else [_encoded(part) for part in answer]


def _decoded(stored: Any) -> Any:
    if isinstance(stored, str):
        with mp.workdps(DIGITS + 5):
            parts = [mpf(part) for part in stored.split()]
            return mpc(*parts) if len(parts) == 2 else parts[0]
    return stored if isinstance(stored, float) else [_decoded(part) for part in stored]


def _check(answer: Any, stored: Any, key: str) -> None:
    if isinstance(stored, list):
        for one, other in zip(answer, stored, strict=True):
            _check(one, other, key)
    else:
        # Sums of doubles end in other digits on another machine.
        assert abs(answer - stored) <= 1e-9 * abs(stored), f"the stored answer of {key} is another"


def main() -> None:
    """Run the tests that ask for answers, and store what they ask for."""
    from tests.oracles import answers

    answers._recorded = dict(_stored) if sys.argv[1:] else {}
    root = Path(__file__).parents[1]
    asking = [str(path) for path in root.rglob("test_*.py") if "known(" in path.read_text("utf-8")]
    if pytest.main(["-q", "-p", "no:cacheprovider", *(sys.argv[1:] or asking)]) == 0:
        text = json.dumps(answers._recorded, indent=0, sort_keys=True)
        FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
