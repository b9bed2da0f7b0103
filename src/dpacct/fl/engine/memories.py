"""What clients remember, on its way to a device and back: all of a chunk, or of a round, at once.

Between rounds memories lie on the CPU: those of a whole population may be more than a device holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dpacct.fl.layout import State

_HOST = torch.device("cpu")


def uploaded(memories: Sequence[State | None], device: torch.device) -> list[State | None]:
    """The memories of some clients on a device; those that are there stay as they are.

    Args:
        memories: None of clients without one. device: where they go.
    """
    found = list(memories)
    if device != _HOST:
        here = {n: own for n, own in enumerate(memories) if own and _all_on(own, _HOST)}
        for place, own in _moved(here, device).items():
            found[place] = own
    return found


def fetched(memories: Mapping[int, State]) -> dict[int, State]:
    """The memories of clients, by number, on the CPU."""
    host = {client: own for client, own in memories.items() if _all_on(own, _HOST)}
    there = {client: own for client, own in memories.items() if client not in host}
    kept = {client: {n: v.detach() for n, v in own.items()} for client, own in host.items()}
    return kept | _moved(there, _HOST)


def _moved(memories: Mapping[int, State], device: torch.device) -> dict[int, State]:
    """Each in storage of its own, after one copy for each name; of those of another form, more."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, own in memories.items():
        form = tuple((name, v.shape, v.dtype, v.device) for name, v in own.items())
        alike.setdefault(form, []).append(number)
    found: dict[int, State] = {}
    for numbers in alike.values():
        first = memories[numbers[0]]
        whole = {
            name: torch.stack([memories[number][name].detach() for number in numbers]).to(device)
            for name in first
        }
        for row, number in enumerate(numbers):
            found[number] = {name: rows[row].clone() for name, rows in whole.items()}
    return found


def _all_on(memory: State, device: torch.device) -> bool:
    return all(value.device == device for value in memory.values())
