"""Opacus with the tight accountant, and with a ledger underneath.

Importing this module imports Opacus and torch, and registers the accountant:

```python
import dpacct.interop.opacus
engine = PrivacyEngine(accountant="dpacct")
```

With this accountant `PrivacyEngine.make_private` returns a loader that allows one step per batch: a
step without a separate batch raises. `attach_ledger` charges training to a run of a ledger, step
by step, or by the epoch with a loader of `allocate`.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.packages import import_opacus
from dpacct.rounds import Phase, Poisson, Round, Schedule

# Opacus brings torch. Check that it is installed before importing modules that need torch.
_accountants = import_opacus("accountants")
_engines = import_opacus("privacy_engine")

from dpacct.interop.opacus.loader import (  # noqa: E402 - see above
    LedgerLoader,
    allocate,
    attach_ledger,
    check_steps,
    refuse_adaptive,
)
from dpacct.interop.opacus.steps import (  # noqa: E402 - likewise
    Steps,
    check_accumulation,
    check_precision,
)

__all__ = [
    "NAME",
    "LedgerLoader",
    "TightAccountant",
    "allocate",
    "attach_ledger",
    "register",
]

# The name for `PrivacyEngine(accountant=...)`.
NAME = "dpacct"


class TightAccountant(_accountants.IAccountant):
    """An accountant of Opacus with a proven upper bound of epsilon for Poisson batches.

    The neighboring relation is zero-out, because Opacus makes the sampling rate and the divisor of
    a step from the number of examples, which is therefore public.

    Attributes:
        history: (noise multiplier, sampling rate, steps), as all of Opacus' accountants keep it.
            Steps without noise, or with noise from a given generator, have noise multiplier 0.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self._unchecked: Callable[[], Any] = lambda: None
        self._by_epoch = False

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step."""
        steps = 0
        if self.history and tuple(self.history[-1][:2]) == (noise_multiplier, sample_rate):
            steps = self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps + 1))

    def get_epsilon(self, delta: float, *_: Any, **_settings: Any) -> float:
        """Return a proven epsilon of all steps at ``delta``, infinity if a step had no noise.

        Settings of other accountants are ignored.

        Raises:
            InvalidParameter: a value out of range.
        """
        delta = validate.delta(delta)
        if self._by_epoch:
            raise Unsupported(
                "epochs by random allocation are no Poisson steps: the run "
                "of attach_ledger has their epsilon, run.epsilon()"
            )
        if any(noise == 0 for noise, _, _ in self.history):
            return math.inf
        plan = self.schedule
        accountant = find_accountant(DEFAULT_ACCOUNTANT)
        return accountant.upper_epsilon(plan, delta) if plan.rounds else 0.0

    @property
    def schedule(self) -> Schedule:
        """The steps as a schedule.

        Raises:
            InvalidParameter: a step had no noise.
        """
        return Schedule(
            Phase(Round(noise, Poisson(rate)), steps) for noise, rate, steps in self.history
        )

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name that `PrivacyEngine` uses."""
        return NAME

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the history of a checkpoint, written by this accountant or by Opacus' own.

        Raises:
            ValueError: there is no history, or the accountant is unknown.
        """
        rule = "the state of an accountant of Opacus has a history of (noise, rate, steps)"
        if not isinstance(state_dict, Mapping):
            raise InvalidParameter("state_dict", type(state_dict).__name__, rule)
        try:
            for noise, rate, steps in state_dict.get("history", ()):
                validate.count("steps", steps, "the number of steps")
                validate.at_least_zero("noise_multiplier", noise, "a noise multiplier")
                validate.sampling_rate(rate)
        except (TypeError, ValueError):
            raise InvalidParameter("state_dict", "of another form", rule) from None
        # Their history has the same form.
        if state_dict and state_dict.get("mechanism") in ("rdp", "prv", "gdp"):
            state_dict = {**state_dict, "mechanism": NAME}
        super().load_state_dict(state_dict)  # pyright: ignore[reportUnknownMemberType]

    def get_optimizer_hook_fn(self, sample_rate: float) -> Any:
        """Return the hook that Opacus calls after the noise and before the update.

        A loader that `make_private` did not return cannot be checked. The caller then promises
        Poisson sampling at this rate, one optimizer, and one step for each batch. The hook raises
        `Unsupported` for a second such optimizer, gradients of several batches, less than float32,
        and a clip norm that follows a count of the data.
        """

        def count(optimizer: Any) -> None:
            refuse_adaptive(optimizer)
            steps = Steps.of(optimizer)
            self._by_epoch |= steps is not None and steps.by_epoch
            if steps is None:
                check_accumulation(optimizer)
                check_precision(optimizer)
                if self._unchecked() not in (None, optimizer):
                    raise Unsupported(
                        "a second optimizer steps, and whether it uses the batches of the first "
                        "is not known: on the same batch, two steps cost more than two batches. "
                        "Use one optimizer for all parameters, or an engine for each of them."
                    )
                self._unchecked = weakref.ref(optimizer)
            noise = 0.0 if _is_seeded(optimizer) else optimizer.noise_multiplier
            self.step(noise_multiplier=noise, sample_rate=sample_rate)

        return count


def _is_seeded(optimizer: Any) -> bool:
    """Return True if a given generator draws the noise or the batches of an optimizer."""
    steps = Steps.of(optimizer)
    if steps is not None:
        return steps.seeded
    return optimizer.generator is not None and not optimizer.secure_mode


@functools.cache
def register() -> None:
    """Make ``PrivacyEngine(accountant="dpacct")`` known to Opacus. Importing this module does."""
    _accountants.register_accountant(NAME, TightAccountant, force=True)
    make_private = _engines.PrivacyEngine.make_private

    @functools.wraps(make_private)
    def checked(engine: Any, **settings: Any) -> Any:
        ours = isinstance(engine.accountant, TightAccountant)
        if ours and not settings.get("poisson_sampling", True):
            raise Unsupported(
                "poisson_sampling=False: batches that a loader cuts from a list or shuffles are "
                "not amplified by sampling, and this accountant proves Poisson batches only. Leave "
                "it out. What shuffled epochs cost: "
                "dpacct.epsilon(epochs * dpacct.ShuffledEpoch(noise, steps), delta=...)."
            )
        made = make_private(engine, **settings)
        optimizer, loader = made[1], made[-1]
        if loader is not settings["data_loader"]:
            loader.stated_batch_size = settings["data_loader"].batch_size
        if ours:
            loader = check_steps(loader, optimizer)
            if _is_seeded(optimizer):
                warnings.warn(
                    "a generator was given: anyone who knows its state can repeat what it draws, "
                    "so epsilon is infinite. Give none for a private run.",
                    stacklevel=2,
                )
        return (*made[:-1], loader)

    _engines.PrivacyEngine.make_private = checked


register()
