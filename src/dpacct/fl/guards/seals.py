"""Tensors that must keep their values, beside what they were.

Rule 1: what a tensor was is kept in storage that nobody else holds. Rule 2: a write is seen
whichever way it came: by torch (which counts it), or past its counter (through ``.data``, numpy, a
storage, `torch.utils.swap_tensors`), which the bytes show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_

import torch
from torch import Tensor

from dpacct.fl.tensors import truths

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
# Bytes that are compared in less time than an operation of numpy takes to begin.
_FEW = 1 << 12


class Seal:
    """Tensors as they are now.

    Args:
        tensors: by name; others may hold and write to them.
        masters: what they are, by name, in storage of our own; default copies made here.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], masters: Mapping[str, Tensor] | None = None
    ) -> None:
        if masters is None:
            masters = {name: value.detach().clone() for name, value in tensors.items()}
        self._sealed = [(name, _Sealed(tensors[name], masters[name])) for name in tensors]

    def again(self, tensors: Mapping[str, Tensor]) -> Seal:
        """A seal of tensors as they are now; this one, if it is of the same in the same places.

        Args:
            tensors: by name. The masters of this seal, which it made itself, are overwritten.
        """
        names = [name for name, _ in self._sealed]
        same = names == list(tensors) and all(
            sealed.lies_there(tensors[name]) for name, sealed in self._sealed
        )
        if not same:
            return Seal(tensors)
        for _, sealed in self._sealed:
            sealed.renew()
        return self

    def broken(self) -> str | None:
        """Name of a tensor that is no longer what it was; None where all are."""
        return broken_ones([self])[0]

    def asked(self) -> tuple[str | None, list[tuple[str, Tensor]]]:
        """As `broken`, as far as no device is waited for; and what is left to ask there."""
        asked: list[tuple[str, Tensor]] = []
        for name, sealed in self._sealed:
            same = sealed.face_is_whole() and sealed.same()
            if isinstance(same, Tensor):
                asked.append((name, same))
            elif not same:
                return name, []
        return None, asked

    def restore(self) -> None:
        """Give the tensors the values that they had."""
        for _, sealed in self._sealed:
            sealed.tensor.data = sealed.master.clone()


def broken_ones(seals: Sequence[Seal]) -> list[str | None]:
    """Of each seal what `Seal.broken` says; a device is waited for once, not for each tensor."""
    looked = [seal.asked() for seal in seals]
    found = [name for name, _ in looked]
    asked = [(seal, name, same) for seal, (_, left) in enumerate(looked) for name, same in left]
    if not asked:
        return found
    place = asked[0][2].device
    answers = truths(torch.stack([same.to(place) for *_, same in asked]))
    for (seal, name, _), same in zip(asked, answers, strict=True):
        if not same and found[seal] is None:
            found[seal] = name
    return found


class _Sealed:
    """One tensor, beside what it was."""

    __slots__ = ("_face", "_grad", "_notes", "master", "same", "tensor")

    def __init__(self, tensor: Tensor, master: Tensor) -> None:
        self.tensor, self.master = tensor, master
        self._look()
        self.same = _comparison(tensor, master)

    def _look(self) -> None:
        tensor = self.tensor
        self._face = _face(tensor)
        self._grad = tensor.grad if tensor.is_leaf else None
        self._notes = list(vars(tensor).values())

    def lies_there(self, tensor: Tensor) -> bool:
        """Whether a tensor is this one, where it lay: then `same` still reads its memory."""
        where = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        # The comparison keeps the memory alive: no other can have come to lie there.
        there = tensor is self.tensor and where == (self._face[0], *self._face[2:5])
        # A master that was made in inference mode can be written to there alone.
        return there and self.master.is_inference() == torch.is_inference_mode_enabled()

    def renew(self) -> None:
        """Take the tensor as it is now for what it has to stay."""
        self.master.copy_(self.tensor.detach())
        self._look()

    def face_is_whole(self) -> bool:
        """Whether it is the same as far as can be told without reading it."""
        tensor = self.tensor
        if _face(tensor) != self._face or (tensor.is_leaf and tensor.grad is not self._grad):
            return False
        notes = vars(tensor)
        return len(notes) == len(self._notes) and all(map(is_, notes.values(), self._notes))


def _face(tensor: Tensor) -> tuple[object, ...]:
    """What can be told of a tensor without reading it."""
    return (
        tensor.data_ptr(),
        tensor._version,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - torch's count of writes
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        len(tensor._backward_hooks or ()),  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its hooks
    )


def _comparison(tensor: Tensor, master: Tensor) -> Callable[[], bool | Tensor]:
    """A function that says whether the bytes are still those of the master; on a device later."""
    pair = tensor.detach(), master.detach()
    # Eight bytes at a time are compared in a fraction of the time.
    now, then = map(_words if all(map(_is_in_words, pair)) else _bits, pair)
    if tensor.device.type != "cpu":
        return lambda: torch.all(now == then)
    # The face has shown that the tensor lies where it lay: the array still shares its memory.
    ours, theirs = now.numpy(), then.numpy()
    if ours.nbytes <= _FEW:
        return lambda: ours.tobytes() == theirs.tobytes()
    return lambda: not (ours != theirs).any()


def _is_in_words(tensor: Tensor) -> bool:
    offset = int(tensor.storage_offset()) * tensor.element_size()
    whole = tensor.nbytes % _WORD == offset % _WORD == 0
    return whole and tensor.nbytes > 0 and tensor.is_contiguous()


def _words(tensor: Tensor) -> Tensor:
    bare = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return bare.reshape(-1).view(torch.int64)


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers, which equal themselves even where they stand for NaN."""
    bare = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return bare.view(_WHOLE_NUMBERS[bare.element_size()])
