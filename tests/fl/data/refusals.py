"""What a call that must fail says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpacct.errors import InvalidParameter


def refusal(
    call: Callable[..., object], *given: Any, name: str = "data_dir", **options: Any
) -> str:
    """Return the message with which a parameter is refused by its name."""
    with pytest.raises(InvalidParameter) as refused:
        call(*given, **options)
    assert refused.value.name == name
    return str(refused.value)
