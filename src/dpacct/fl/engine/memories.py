"""What clients remember: where it lies between rounds, and its way to a device and back.

Rule 1: it stays on the device where the memories of all clients have room there, else it goes to
the CPU after each round. What is decided follows from the number of clients, from the size of a
memory, and from the device, which are public; no bit of a release depends on it. Rule 2: what goes
to or from a device goes all at once, of a chunk or of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dpacct.fl.layout import State
from dpacct.fl.local.batches import chunks

_HOST = torch.device("cpu")
# Share of what is free on a GPU once a round was trained there, and bytes on any other device.
_SHARE, _ROOM = 0.4, 1 << 30
# A device gives memory in such blocks. Bytes of memories that are copied at a time.
_BLOCK, _AT_ONCE = 512, 1 << 28


def room_on(device: torch.device) -> int:
    """Bytes that the memories of all clients may take on a device."""
    if device.type == "cuda":
        return int(_SHARE * torch.cuda.mem_get_info(device)[0])
    return 0 if device == _HOST else _ROOM


class Home:
    """Where the memories of a run lie between rounds, decided when the first ones come.

    Args:
        device: where clients train. clients: how many there are.
    """

    def __init__(self, device: torch.device, clients: int) -> None:
        self._device, self._clients = device, clients
        self._stays: bool | None = None

    def kept(self, memories: Mapping[int, State]) -> dict[int, State]:
        """The memories of clients, by number, after a round.

        Those that come from the CPU are left there, whoever brings them.
        """
        if self._stays is None and memories:
            largest = max(map(_size, memories.values()))
            self._stays = self._clients * largest <= room_on(self._device)
        return _bare(memories) if self._stays else fetched(memories)


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
    there = {client: own for client, own in memories.items() if not _all_on(own, _HOST)}
    return _bare(memories) | _moved(there, _HOST)


def _moved(memories: Mapping[int, State], device: torch.device) -> dict[int, State]:
    """Each in storage of its own, copied a few at once for each name; of another form, apart."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, own in memories.items():
        form = tuple((name, v.shape, v.dtype, v.device) for name, v in own.items())
        alike.setdefault(form, []).append(number)
    found: dict[int, State] = {}
    for numbers in alike.values():
        first = memories[numbers[0]]
        for part in chunks(numbers, max(1, _AT_ONCE // max(_size(first), 1))):
            whole = {
                name: torch.stack([memories[number][name].detach() for number in part]).to(device)
                for name in first
            }
            for row, number in enumerate(part):
                found[number] = {name: rows[row].clone() for name, rows in whole.items()}
    return found


def _bare(memories: Mapping[int, State]) -> dict[int, State]:
    return {client: {n: v.detach() for n, v in own.items()} for client, own in memories.items()}


def _size(memory: State) -> int:
    """Bytes that it takes on a device."""
    return sum(_BLOCK * -(-value.nbytes // _BLOCK) for value in memory.values())


def _all_on(memory: State, device: torch.device) -> bool:
    return all(value.device == device for value in memory.values())
