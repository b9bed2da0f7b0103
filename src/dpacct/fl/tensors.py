"""Typed forms of functions of torch, its global generators and devices, and its settings.

Settings that a program has changed around a run must not reach the run. Clients train, and sums are
released, as they would be in a program that has changed nothing. Without gradients there would be
noise alone. Autocast would be another precision than the chosen one. Tensors of
`torch.inference_mode` cannot be watched.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter

_torch: Any = torch


# Errors of torch.load and its readers of zip files and pickles, for a file of another kind.
_DAMAGED = (
    AssertionError, pickle.UnpicklingError, AttributeError, EOFError, ImportError, LookupError,
    MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


def load_saved(name: str, file: Path, noun: str, device: torch.device | str = "cpu") -> Any:
    """Return what `torch.save` wrote, as tensors and plain values. Reading it runs nothing.

    Raises:
        InvalidParameter: about ``name``: the file is missing or no such file.
    """
    if not file.is_file():
        raise InvalidParameter(name, str(file), "there is no such file")
    validate.archive(name, file, noun)
    try:
        with warnings.catch_warnings():
            # torch warns of a foreign pickle before its error, which is clear enough.
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(file, map_location=device, weights_only=True)
    except _DAMAGED as error:
        rule = f"it cannot be read as {noun} ({type(error).__name__})"
        raise InvalidParameter(name, str(file), rule) from None


def norm(values: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return the Euclidean norm along a dimension, or of everything, summed up in ``dtype``."""
    return cast("Tensor", _torch.linalg.vector_norm(values, dim=dim, dtype=dtype))


def from_array(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array."""
    return cast("Tensor", _torch.from_numpy(array))


def numbers(values: Tensor) -> list[Any]:
    """Return a tensor [n] as a list of Python's integers, floats or truth values."""
    return cast("list[Any]", cast("Any", values).tolist())


def split(vector: Tensor, sizes: list[int] | int) -> tuple[Tensor, ...]:
    """Return views along the last dimension."""
    return cast("tuple[Tensor, ...]", cast("Any", vector).split(sizes, dim=-1))


@contextmanager
def forked_generators() -> Generator[None]:
    """Restore the global generators of torch, numpy and Python at the end."""
    plain, wide = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    devices = range(_torch.cuda.device_count()) if _torch.cuda.is_initialized() else ()
    fork = cast("AbstractContextManager[None]", _torch.random.fork_rng(devices=list(devices)))
    try:
        with fork:
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(wide)  # noqa: NPY002 - the global one


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators: torch's of the CPU and the device, numpy's and Python's."""
    _torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        # Torch seeds the current GPU, which need not be the device.
        with _torch.cuda.device(device):
            _torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one, for models that draw from it


def same_numbers(one: Tensor, two: Tensor) -> bool:
    """Return whether tensors are equal to the last bit, with NaN equal to NaN and -0 to 0."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return torch.equal(one, two) or bool(((one == two) | (one.isnan() & two.isnan())).all())


def same_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Return whether all pairs are `same_numbers`, with one wait for a device if they are."""
    there = {one.device for one, _ in pairs}
    fits = all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
    if len(there) == 1 and there != {torch.device("cpu")} and fits:
        alike = torch.stack([(one == two).all() for one, two in pairs]).all()
        if bool(alike):
            return True
    return all(same_numbers(one, two) for one, two in pairs)


def may_hold(flags: Tensor) -> bool:
    """Return whether a flag is set. On a device True, since asking would wait for its work."""
    return flags.device.type != "cpu" or bool(flags.any())


def check_shape(name: str, values: Tensor, *shape: int | None) -> None:
    """Refuse what is no tensor, and a shape that torch would broadcast; None is any number."""
    if not isinstance(values, Tensor):
        raise InvalidParameter(name, type(values).__name__, "a tensor is asked for")
    fits = [want in (None, have) for want, have in zip(shape, values.shape, strict=False)]
    if values.ndim != len(shape) or not all(fits):
        shown = ", ".join("any" if want is None else str(want) for want in shape)
        rule = f"its shape is [{shown}]"
        raise InvalidParameter(name, f"of shape {tuple(values.shape)}", rule)


# Relative difference that is allowed on a machine which does not repeat its own sums.
_NOISE = 1e-3


def near_numbers(one: Tensor, two: Tensor) -> bool:
    """Return whether tensors are equal, or differ by no more than the order of summation may."""
    if one.shape != two.shape:
        return False
    return same_numbers(one, two) or bool(norm(one - two) <= _NOISE * norm(one))


def listed(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Return a list [n] as a tensor on a device.

    An index should be a tensor, too: a list would be copied in each operation that takes it.
    """
    return torch.tensor(values, dtype=dtype, device=device)


Device = torch.device


def choose_device(name: str = "auto") -> Device:
    """Return the device ``cpu``, ``cuda`` or ``cuda:K``. ``auto`` takes the first GPU if any.

    Another name, or a device that PyTorch does not have, is an InvalidParameter.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidParameter("device", name, "a device is cpu, cuda or cuda:K")
    seen = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= seen:
        raise InvalidParameter("device", name, f"PyTorch sees {seen} CUDA devices here")
    return device


@contextmanager
def undisturbed() -> Generator[None]:
    """Turn gradients on, and inference mode, autocast and anomaly detection off.

    The CPU is the default device. A model's own autocast, switched inside, stays on.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            # It would switch other things on, too.
            stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_anomaly_enabled():
            # It reads every gradient, and in a group these are the gradients of all clients.
            stack.enter_context(torch.autograd.set_detect_anomaly(mode=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def arithmetic(precision: str) -> Generator[None]:
    """Use all bits of float32 inside, or TF32 if that is the precision. Then restore the settings.

    The precision must not depend on other settings of a program, nor on PyTorch's default, which is
    TF32 for convolutions on a device. Autocast to bfloat16 is apart from this. PyTorch has one
    setting for all threads: runs in several threads of a process take the same precision.

    The settings of PyTorch 2.9 and older ones must not be mixed: reading an old one after a
    new one was set is an error. The new settings can be read and set after any others.
    """
    backends, fast = cast("Any", torch.backends), precision == "tf32"
    cuda, cudnn, cpu = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    values: list[tuple[Any, str]] = [
        (place, "tf32" if fast else "ieee") for place in (cuda, cudnn.conv, cudnn.rnn)
    ]
    # A CPU has no TF32, and bfloat16 would be less than float32.
    values += [(place, "ieee") for place in (cpu.matmul, cpu.conv, cpu.rnn)]
    before = [place.fp32_precision for place, _ in values]
    for place, value in values:
        place.fp32_precision = value
    try:
        yield
    finally:
        for (place, _), value in zip(values, before, strict=True):
            place.fp32_precision = value
