"""How long the parts of a round take, where a GPU computes behind the host's back.

A GPU notes the time by itself as it comes to a mark, so that nobody waits for it there; it is
waited for once, when the seconds are asked for.
"""

from __future__ import annotations

import time
from typing import Any

import torch

# The parts of a round whose seconds are told.
LOCAL, PRIVACY = "local", "privacy"
_cuda: Any = torch.cuda


class Laps:
    """A clock that runs from when it is made; what passes between marks belongs to a part."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks = [self._mark()]
        self._parts: list[str] = []

    def end(self, part: str) -> None:
        """What has passed since the last mark was this part's."""
        self._marks.append(self._mark())
        self._parts.append(part)

    def seconds(self, part: str) -> float:
        """Of all its laps together."""
        if self._device.type == "cuda":
            self._marks[-1].synchronize()
        pairs = zip(self._parts, self._marks, self._marks[1:], strict=False)
        return sum(self._between(start, end) for name, start, end in pairs if name == part)

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        mark = _cuda.Event(enable_timing=True)
        mark.record(_cuda.current_stream(self._device))
        return mark

    def _between(self, start: Any, end: Any) -> float:
        return end - start if self._device.type != "cuda" else start.elapsed_time(end) / 1e3
