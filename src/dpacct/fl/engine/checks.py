"""Checks of what a `Federation` is given: refused before anything is computed or spent."""

from __future__ import annotations

from typing import Any

from dpacct import validate
from dpacct.accountant import epsilon
from dpacct.budget import DEFAULT_DELTA, Budget
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Params
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.bounds import Bound, Clip
from dpacct.fl.privacy.noise import GaussianNoise, Noise, SecureGaussianNoise
from dpacct.ledger.record.charged import PAIRS, TIGHT
from dpacct.ledger.terms import Terms
from dpacct.rounds import Adjacency, Full, Poisson, Round, Sampling, Schedule, Uniform


def choose_sampling(sampling: Any) -> Sampling:
    """A sampling scheme that the accountant knows.

    Raises:
        Unsupported: cohorts by a public rule. InvalidParameter: no sampling scheme.
    """
    if isinstance(sampling, Poisson | Uniform | Full):
        return sampling
    rule = "a sampling scheme is Poisson(rate), Uniform(cohort_size, num_clients) or Full()"
    if isinstance(sampling, int | float) or sampling is None:
        raise InvalidParameter("sampling", sampling, rule)
    raise Unsupported(
        f"sampling by {sampling!r}: cohorts that follow a public rule (a list, a cycle, a seed) "
        f"are not secret, so sampling does not amplify privacy. {rule[0].upper()}{rule[1:]}, drawn "
        "from the operating system's randomness; without amplification use Full()"
    )


def choose_bound(bound: Any, clip_norm: Any, method: Method) -> Bound:
    """The bound of the run: the user's, the method's, or `Clip` at the clip norm.

    Raises:
        InvalidParameter: none, or more than one. Unsupported: a clip norm from private values.
    """
    chosen: Any = method.bound if bound is None else bound
    if chosen is None:
        if clip_norm is None:
            rule = "a bound on each update is needed: clip_norm, or bound"
            raise InvalidParameter("clip_norm", None, rule)
        if hasattr(clip_norm, "sensitivity"):
            rule = "a clip norm is a number, and this is a bound"
            hint = f"Give it as bound={type(clip_norm).__name__}(...)."
            raise InvalidParameter("clip_norm", type(clip_norm).__name__, rule, hint)
        return Clip(clip_norm)
    if clip_norm is not None:
        rule = f"{type(chosen).__name__} bounds the updates already"
        raise InvalidParameter("clip_norm", clip_norm, rule, "Drop one of them.")
    if not all(hasattr(chosen, name) for name in ("sensitivity", "apply", "limits", "clip_norm")):
        rule = "a bound is Clip, PerLayerClip, SmoothedNormalization, AdaptiveClip or one like them"
        raise InvalidParameter("bound", type(chosen).__name__, rule)
    return chosen


def choose_noise_source(noise: Noise | None, *, secure: bool) -> Noise:
    """The noise that was given, the secure one, or the plain one.

    Raises:
        InvalidParameter: secure noise is asked for beside another one.
    """
    if noise is None:
        return SecureGaussianNoise() if secure else GaussianNoise()
    if secure:
        rule = f"the noise is {noise.name} already"
        raise InvalidParameter("secure_noise", secure, rule, "Drop one of them.")
    return noise


def choose_delta(
    budget: Budget | None,
    delta: float | None,
    terms: Terms | None,
    adjacency: Adjacency,
    unit: str,
) -> float:
    """The one delta of a run: that of its ledger, which its budget and its own may only repeat.

    Raises:
        InvalidParameter: two of them differ, one is out of range, or the ledger has another
            adjacency or unit.
    """
    own = None if delta is None else validate.delta(delta)
    if budget is not None:
        if own not in (None, budget.delta):
            rule = f"the budget has a delta of its own ({budget.delta:g})"
            raise InvalidParameter("delta", delta, rule, "Drop one of them.")
        own = budget.delta
    if terms is not None:
        return terms.check(own, adjacency, unit)
    return DEFAULT_DELTA if own is None else own


def choose_schedule(
    planned: Schedule | None,
    rounds: int | None,
    sampling: Sampling,
    adjacency: Adjacency,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float,
    accountant: str,
) -> tuple[Schedule, Budget]:
    """Return the rounds of a run with their noise, and the budget of a new ledger.

    Args:
        planned: a schedule; a budget scales its noise. None: equal rounds of the next arguments.
        rounds, sampling, adjacency, noise_multiplier: of equal rounds.
        budget: that the noise has to meet, or that goes with given noise; None for no limit.
        delta: of the run. accountant: that calibrates.
    Raises:
        InvalidParameter: neither budget nor noise.
    """
    plan = planned
    if plan is None and noise_multiplier is not None:
        multiplier = validate.noise_multiplier(noise_multiplier)
        plan = validate.rounds(rounds) * Round(multiplier, sampling, adjacency)
        if budget is not None:
            return plan, budget
    if budget is None:
        if plan is None:
            rule = "a budget is needed to choose the noise, or a noise_multiplier"
            raise InvalidParameter("budget", None, rule)
        # No limit was asked for: one that the plan stays below by any accountant, quickly found.
        return plan, Budget(2 * epsilon(plan, delta=delta, accountant="rdp").upper + 1, delta)
    if plan is not None:
        found = calibrate(epsilon=budget.epsilon, delta=delta, schedule=plan, accountant=accountant)
        return found.schedule, budget
    found = calibrate(
        epsilon=budget.epsilon,
        delta=delta,
        rounds=rounds,
        sampling=sampling,
        adjacency=adjacency,
        accountant=accountant,
    )
    return found.schedule, budget


def plan_accountant(method: Method, params: Params, accountant: str, sampling: Sampling) -> str:
    """The accountant of a run's plan: the one asked for, unless the method's clients remember.

    Args:
        method: of the run.
        params: the model's.
        accountant: that was asked for.
        sampling: of its rounds.
    Raises:
        Unsupported: memories that are kept by those who take part, in cohorts of fixed size.
    """
    remembers = has_memories(method, params)
    if remembers and not method.everyone_computes and method.not_private_because is None:
        _check_memories(method, sampling)
    return PAIRS if remembers and accountant == TIGHT else accountant


def has_memories(method: Method, params: Params) -> bool:
    """Return whether a method's clients remember something from round to round."""
    overridden = any(overrides(method, member) for member in ("init_client", "client_state"))
    return overridden or method.init_client(params) is not None


def _check_memories(method: Method, sampling: Sampling) -> None:
    """Refuse cohorts in which one client's memory would tell of another client's place.

    docs/derivations/federated.md, "Client memories", has data sets that exceed every bound for
    rounds that are taken one after the other.
    """
    if isinstance(sampling, Uniform):
        raise Unsupported(
            f"clients of {method.name or type(method).__name__} remember when they took part, and "
            f"in cohorts of fixed size one takes part in the place of another: what others "
            f"remember tells of each, which no bound covers. Take Poisson("
            f"{sampling.sampling_rate:g}), or let all clients update their memory in every round "
            "(everyone_computes = True)"
        )
