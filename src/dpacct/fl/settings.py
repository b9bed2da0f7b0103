"""`Settings`: the keywords of a run, each with its type, its default and its meaning.

`Federation`, `Server` and the command line take these keywords and build one frozen value of them.
A wrong type raises an error here, before anything is computed or charged.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.local.sgd import SGD, Changing, changes
from dpacct.fl.methods.protocol import Method
from dpacct.fl.postprocess import Average, ServerOptimizer
from dpacct.fl.privacy.allocation import Allocation, rounds_of, sampling_of
from dpacct.fl.privacy.bounds import Bound, Clip
from dpacct.fl.privacy.correlated import Cohorts
from dpacct.fl.privacy.noise import GaussianNoise, Noise, SecureGaussianNoise
from dpacct.fl.report import Callback
from dpacct.fl.tensors import undisturbed
from dpacct.ledger import MOST_AHEAD, Address, Ledger, Terms, known_terms
from dpacct.rounds import (
    AccountantName,
    Adjacency,
    AdjacencyName,
    Full,
    Poisson,
    Sampling,
    Schedule,
    Uniform,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settings:
    """The settings of a run, with clients here or elsewhere.

    Args:
        rounds: planned number of rounds, not needed with a schedule.
        schedule: the rounds to run, of changing noise and sampling. It replaces ``rounds``,
            ``sampling`` and ``noise_multiplier``, and is charged as one plan. With a budget, the
            noise of all rounds is scaled by one factor to meet it.
        method: the federated method. Default: DP-FedAvg.
        clip_norm: norm bound C of a client's whole update, short for ``bound=Clip(C)``. It may
            change by round: a function of the round (1, 2, ...).
        bound: another bound.
        sampling: of the cohorts. Default: ``Poisson(0.1)``. ``Allocation(steps)`` puts each client
            into one random round of every epoch. With `CorrelatedNoise` it is `Cyclic`,
            `MinSeparation` or ``Full()``.
        adjacency: of all rounds. Default: replace-one for `Uniform`, add-remove if ``public_size``
            is given, else zero-out (at the same epsilon, with a public number of clients).
        public_size: a public number M of clients. The divisor q M and every other printed or
            stored number follow from it. The true number then stays secret. M may be wrong.
        budget: the target. It calibrates the noise if none is given, else it limits the run.
        noise_multiplier: std of the noise on the sum / C, instead of a calibration. 0: no noise,
            and an infinite epsilon.
        delta: at which epsilon is reported, without a budget. An existing ledger has its own delta,
            and no other delta is allowed. Otherwise the default is 1e-5.
        local: local training, an `SGD` or a `LocalAdam`. Default: ``SGD()``, and for `Examples`
            the gradient.
        server_lr: factor on the noisy mean. It may change by round: a function of the round, or a
            scheduler of `torch.optim.lr_scheduler`. ``local=SGD(lr=...)`` takes the same.
        server: the server's optimizer, `Momentum` or `Adam`. None takes the plain step.
        average: of the released parameters, which `Federation.averaged` returns: `Average`.
        noise: source of the noise. Default: `GaussianNoise`, added by a trusted server.
            `CorrelatedNoise` is charged once for the whole run.
        secure_noise: short for ``noise=SecureGaussianNoise()``.
        ledger: an open `Ledger`, or the path of one. None: the checkpoint's name with
            ``.ledger`` appended, or without a checkpoint a temporary file. Everything is charged
            in any case.
        name: of the run in the ledger.
        ahead: how many equal rounds of the plan the ledger reserves by one entry, up to 1024. It
            saves a disk flush a round. The ledger reads them as spent until they have run. Those
            that are left are given back when the run is closed or, after a crash, resumed.
        accountant: that calibrates the noise.
        device: default that of the model.
        seed: makes cohorts and noise repeatable, and the run **not private**: its epsilon is
            infinite. For tests and for comparing methods on public data.
        checkpoint: file that holds the run, written every ``checkpoint_every`` rounds.
        checkpoint_every: rounds between checkpoints. One is written at the end in any case.

    Raises:
        InvalidParameter: a value of a wrong type or out of range.
    """

    rounds: int | None = None
    schedule: Schedule | None = None
    method: Method | None = None
    clip_norm: float | Callable[[int], float] | None = None
    bound: Bound | None = None
    sampling: Sampling | Allocation | Cohorts | None = None
    adjacency: Adjacency | AdjacencyName | None = None
    public_size: int | None = None
    budget: Budget | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    local: SGD | None = None
    server_lr: Changing = 1.0
    server: ServerOptimizer | None = None
    average: Average | None = None
    noise: Noise | None = None
    secure_noise: bool = False
    ledger: Ledger | Address | str | Path | None = None
    name: str | None = None
    ahead: int = 1
    accountant: AccountantName = "tight"
    device: torch.device | str | None = None
    seed: int | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        for name in _FORMS:
            if getattr(self, name, None) is not None:
                check_form(name, getattr(self, name))
        for name in ("secure_noise", "distributed"):
            value = getattr(self, name, False)
            if not isinstance(value, bool):
                raise InvalidParameter(name, value, "it is True or False")
        find_accountant(str(self.accountant))
        if self.name is not None:
            validate.line("name", self.name, "the name of a run")
        put = object.__setattr__
        noun = "the number of rounds between checkpoints"
        every = validate.count("checkpoint_every", self.checkpoint_every, noun)
        put(self, "checkpoint_every", every)
        most = validate.count("ahead", self.ahead, "the number of rounds ahead", MOST_AHEAD)
        put(self, "ahead", most)
        if not changes(self.server_lr):
            put(self, "server_lr", server_rate(self.server_lr))
        _ = self.planned_rounds
        if self.schedule is not None:
            self._check_schedule(self.schedule)

    def _check_schedule(self, schedule: Schedule) -> None:
        """Refuse settings that contradict the schedule."""
        if not schedule.rounds:
            raise InvalidParameter("schedule", schedule, "a schedule has at least one round")
        kinds = list(schedule.distinct())
        if len(kinds) > 1 and any(isinstance(sampling_of(kind), Allocation) for kind in kinds):
            rule = "a run by random allocation has equal epochs"
            hint = "Train in several runs of one ledger."
            raise InvalidParameter("schedule", schedule, rule, hint)
        if self.rounds not in (None, self.planned_rounds):
            rule = f"the schedule has {self.planned_rounds} rounds"
            raise InvalidParameter("rounds", self.rounds, rule, "Leave it out.")
        for name in ("sampling", "noise_multiplier"):
            if getattr(self, name) is not None:
                rule = "the schedule has one for each round"
                raise InvalidParameter(name, getattr(self, name), rule, "Leave it out.")
        if self.adjacency is not None and Adjacency.parse(self.adjacency) != schedule.adjacency:
            rule = f"the rounds of the schedule are charged under {schedule.adjacency}"
            hint = f'Give its rounds another one: Round(..., adjacency="{self.adjacency}").'
            raise InvalidParameter("adjacency", str(self.adjacency), rule, hint)

    @property
    def planned_rounds(self) -> int:
        """The planned number of rounds."""
        if self.schedule is None:
            return validate.rounds(self.rounds)
        return sum(count * rounds_of(item) for item, count in self.schedule)

    @property
    def samplings(self) -> list[Sampling | Allocation]:
        """The different sampling schemes of the rounds, that of the first round first."""
        schemes: Iterable[Any] = [Poisson(0.1) if self.sampling is None else self.sampling]
        if self.schedule is not None:
            schemes = dict.fromkeys(map(sampling_of, self.schedule.distinct()))
        return [one if isinstance(one, Allocation) else choose_independent(one) for one in schemes]

    @property
    def checkpoint_path(self) -> Path | None:
        """The checkpoint's file."""
        return None if self.checkpoint is None else Path(self.checkpoint)

    @property
    def ledger_place(self) -> Ledger | Address | str | Path | None:
        """The ledger: the given one, a file beside the checkpoint, or None for a temporary one."""
        beside = self.checkpoint_path
        if self.ledger is not None or beside is None:
            return self.ledger
        return beside.with_name(f"{beside.name}.ledger")

    @property
    def noise_source(self) -> Noise:
        """The noise that was given, the secure one, or the plain one."""
        if self.noise is None:
            return SecureGaussianNoise() if self.secure_noise else GaussianNoise()
        if self.secure_noise:
            rule = f"the noise is {self.noise.name} already"
            raise InvalidParameter("secure_noise", self.secure_noise, rule, "Drop one of them.")
        return self.noise

    @property
    def known_terms(self) -> Terms | None:
        """The terms of the ledger, None before there is one."""
        return known_terms(self.ledger_place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalSettings(Settings):
    """The settings of a run with clients that train in this process.

    Args:
        Others: as for `Settings`.
        vectorize: train clients in groups: "auto" measures, True, False.
        chunk_size: clients in memory at a time, and in a group. Default: as many as fit into 1 GiB,
            or into 40 % of the free memory of a GPU.
        callbacks: see `Callback`.
        example: a synthetic client to try all settings on. Default: random values.
        distributed: this process is one of ``torch.distributed``, and so are all others with the
            same arguments. Rank 0 alone uses ledger, budget, checkpoint and callbacks.
    """

    vectorize: bool | Literal["auto"] = "auto"
    chunk_size: int | None = None
    callbacks: Sequence[Callback] = ()
    example: ClientData | None = None
    distributed: bool = False

    def __post_init__(self) -> None:
        # The zero-argument super() does not work in a dataclass with slots.
        Settings.__post_init__(self)
        if isinstance(self.callbacks, str | Tensor) or not isinstance(self.callbacks, Iterable):
            raise InvalidParameter("callbacks", self.callbacks, "a list of callbacks is given")
        object.__setattr__(self, "callbacks", tuple(self.callbacks))
        for callback in self.callbacks:
            if not _has(callback, "start", "report", "finish"):
                rule = "a callback has the methods start, report and finish"
                raise InvalidParameter("callbacks", callback, rule, "Subclass fl.Callback.")


def _has(value: object, *members: str) -> bool:
    """Return whether a value is an object, not a class, with these methods."""
    return not isinstance(value, type) and all(callable(getattr(value, m, None)) for m in members)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(Path(str(cast("Any", value))).name)


def _is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


# Of a keyword: a test of its value, and the rule in words.
_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "schedule": (
        _is_a(Schedule),
        "a schedule is a sum of rounds, such as 100 * Round(1.0, Poisson(0.1)) + 50 * Round(0.8)",
    ),
    "method": (
        lambda value: _has(value, "prepare", "local_update", "post", "server"),
        "a method is an object of a class of dpacct.fl, such as fl.DPFedSAM()",
    ),
    "bound": (
        lambda value: _has(value, "sensitivity", "apply", "limits") and hasattr(value, "clip_norm"),
        (
            "a bound is Clip, PerLayerClip, SmoothedNormalization, AdaptiveClip or one like them, "
            "such as bound=fl.AdaptiveClip(1.0)"
        ),
    ),
    "budget": (_is_a(Budget), "a budget is one of epsilon and delta, such as Budget(8, 1e-5)"),
    "local": (_is_a(SGD), "local training is fl.SGD(lr=0.1, steps=10), or fl.LocalAdam"),
    "server": (
        lambda value: _has(value, "step") and not isinstance(value, torch.optim.Optimizer),
        "a server optimizer is fl.Momentum or fl.Adam: its state is public and in checkpoints",
    ),
    "average": (_is_a(Average), "an average of the released parameters is fl.Average(decay=0.9)"),
    "noise": (
        lambda value: _has(value, "check", "encode", "add"),
        "noise is an object, such as fl.SecureGaussianNoise(). Its strength is noise_multiplier",
    ),
    "ledger": (
        lambda value: isinstance(value, Ledger | Address) or _is_path(value),
        "a ledger is an open Ledger, the path of its file, or the address of its database",
    ),
    "checkpoint": (_is_path, "a checkpoint is the path of a file"),
    "example": (_is_a(ClientData), "an example of a client is a ClientData"),
}


def check_form(name: str, value: object) -> None:
    """Refuse a value of a keyword that is of another kind."""
    fits, rule = _FORMS[name]
    if not fits(value):
        raise InvalidParameter(name, value, rule)


def server_rate(value: object) -> float:
    """Return a server learning rate as a float."""
    return validate.real("server_lr", value, "a server learning rate is a finite number")


def choose_independent(sampling: Any) -> Sampling:
    """Return a sampling scheme whose rounds are drawn one by one, or refuse another one."""
    if isinstance(sampling, Poisson) and sampling.reveals_size is not None:
        raise Unsupported(
            f"{sampling!r}: runs have one divisor and one noise, which reveal no size. Take "
            f"Poisson({sampling.sampling_rate:g}), which costs less"
        )
    if isinstance(sampling, Poisson | Uniform | Full):
        return sampling
    rule = "a sampling scheme is Poisson(rate), Uniform(cohort_size, num_clients) or Full()"
    if isinstance(sampling, int | float) or sampling is None:
        raise InvalidParameter("sampling", sampling, rule)
    raise Unsupported(
        f"sampling by {sampling!r}: cohorts that follow a public rule (a list, a cycle, a seed) "
        f"are not secret, so sampling does not amplify privacy. {rule[0].upper()}{rule[1:]}, drawn "
        "from the operating system's randomness. Without amplification use Full(), or correlated "
        "noise: noise=fl.CorrelatedNoise(strategy) with fl.Cyclic or fl.MinSeparation"
    )


def choose_bound(bound: Bound | None, clip_norm: Any, method: Method | None = None) -> Bound:
    """Return the one bound of a run: the user's, the method's, or `Clip` at the clip norm."""
    if bound is None and method is not None:
        bound = method.bound
    if bound is None:
        if clip_norm is None:
            rule = "a bound on each update is needed: clip_norm, or bound"
            raise InvalidParameter("clip_norm", None, rule)
        if hasattr(clip_norm, "sensitivity"):
            rule = "a clip norm is a number, and this is a bound"
            hint = f"Give it as bound={type(clip_norm).__name__}(...)."
            raise InvalidParameter("clip_norm", type(clip_norm).__name__, rule, hint)
        return Clip(clip_norm)
    if clip_norm is not None:
        rule = f"{type(bound).__name__} bounds the updates already"
        raise InvalidParameter("clip_norm", clip_norm, rule, "Drop one of them.")
    check_form("bound", bound)
    return bound


@undisturbed()
def place(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """Return the model on the device, by default its own."""
    if not isinstance(model, nn.Module):
        raise InvalidParameter("model", model, "a model is an instance of torch.nn.Module")
    own = next(model.parameters(), torch.empty(0)).device
    try:
        return model.to(torch.device(own if device is None else device))
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        if device is None:
            raise
        rule = f"PyTorch cannot use that device here ({str(error).partition(chr(10))[0][:100]})"
        raise InvalidParameter("device", device, rule) from None


def check_sequence(clients: Any) -> None:
    """Refuse a population that has no length or no numbered clients."""
    kind, other = type(clients).__name__, isinstance(clients, Mapping | Tensor)
    if other or not _has(clients, "__len__", "__getitem__"):
        rule = "a population is a sequence of ClientData, or Examples"
        raise InvalidParameter("clients", f"a {kind}", rule)


def checkpoint_file(path: object, own: Path | None) -> Path:
    """Return the file that a run is saved to or read from: the given one, or the run's own."""
    given = own if path is None else path
    if given is None:
        raise InvalidParameter("path", None, "the run has no checkpoint file of its own")
    if not _is_path(given):
        raise InvalidParameter("path", path, "a checkpoint is the path of a file")
    return Path(str(given))


def with_keywords_of(kind: type[Settings], init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that takes the fields of its last argument as keywords."""
    first = list(inspect.signature(init).parameters.values())[:-1]
    given = [*first, *inspect.signature(kind).parameters.values()]
    known = {parameter.name for parameter in given}

    @wraps(init)
    def spread(*arguments: Any, **keywords: Any) -> None:
        for name in keywords.keys() - known:
            raise TypeError(f"{init.__qualname__}() got an unexpected keyword argument {name!r}")
        own = {p.name: keywords.pop(p.name) for p in first if p.name in keywords}
        init(*arguments, **own, settings=kind(**keywords))

    vars(spread)["__signature__"] = inspect.Signature(given)
    return spread
