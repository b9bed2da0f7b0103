"""Opacus with the tight accountant, and with a ledger underneath.

Importing this module imports Opacus and torch, and registers the accountant:

```python
import dpacct.interop.opacus
engine = PrivacyEngine(accountant="dpacct")
```

Opacus has no entry points: without this import it does not know the name. With this accountant
`PrivacyEngine.make_private` returns a loader whose batches are counted when they are drawn, and an
optimizer that takes one step for each, with noise that no seed of the program repeats.
`attach_ledger` charges training to a run of a ledger, step by step, or by the epoch with a loader
of `allocate`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.packages import import_opacus
from dpacct.rounds import Phase, Poisson, Round, Schedule

# Opacus brings torch. Check that it is installed before importing modules that need torch.
_accountants = import_opacus("accountants")
_engines = import_opacus("privacy_engine")

from dpacct.interop.opacus.loader import LedgerLoader, allocate, attach_ledger, check_steps  # noqa: E402 - see above
from dpacct.interop.opacus.steps import Steps  # noqa: E402 - likewise

__all__ = [
    "NAME", "LedgerLoader", "TightAccountant", "allocate", "attach_ledger", "register",
]  # fmt: skip

# The name for `PrivacyEngine(accountant=...)`.
NAME = "dpacct"


class TightAccountant(_accountants.IAccountant):
    """An accountant of Opacus with a proven upper bound of epsilon for Poisson batches.

    The neighboring relation is zero-out, because Opacus makes the sampling rate and the divisor of
    a step from the number of examples, which is therefore public.

    Attributes:
        history: (noise multiplier, sampling rate, batches), as all of Opacus' accountants keep it.
            Batches without noise, or with noise from a given generator, have noise multiplier 0.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self._by_epoch = False

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one batch, with or without a step: leaving a batch out is a choice, too."""
        steps = 0
        if self.history and tuple(self.history[-1][:2]) == (noise_multiplier, sample_rate):
            steps = self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps + 1))

    def recount(self, sample_rate: float, counted: float, noise_multiplier: float) -> None:
        """Give a counted batch the noise multiplier of its step, if a scheduler changed it.

        Workers draw batches ahead of a scheduler.
        """
        if noise_multiplier == counted:
            return
        # A history that was loaded meanwhile may not have it.
        for place, (noise, rate, batches) in reversed(list(enumerate(self.history))):
            if (noise, rate) == (counted, sample_rate):
                self.history[place : place + 1] = [(noise, rate, batches - 1)] * (batches > 1)
                break
        self.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    def count_epoch(self) -> None:
        """Note that a pass is charged as a whole, by the ledger alone."""
        self._by_epoch = True

    def get_epsilon(self, delta: float, *_: Any, **_settings: Any) -> float:
        """Return a proven epsilon of all batches at ``delta``, infinity if one has no noise.

        Their number and noise are fixed beforehand. The reading of a ledger covers every rule of
        stopping. Settings of other accountants are ignored.

        Raises:
            InvalidParameter: a value out of range.
        """
        delta = validate.delta(delta)
        if self._by_epoch:
            raise Unsupported(
                "epochs of random allocation are not Poisson steps. Their epsilon is that of the "
                "run of attach_ledger: run.epsilon()"
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
            Unsupported: batches are counted already, which the checkpoint would forget.
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
        if len(self):
            raise Unsupported(
                f"{len(self)} batches are counted already, and the checkpoint would replace them. "
                "Load it into a new engine, before its first batch. To go back to earlier weights, "
                "load module_state_dict alone: what was spent since then stays spent"
            )
        # Their history has the same form.
        if state_dict and state_dict.get("mechanism") in ("rdp", "prv", "gdp"):
            state_dict = {**state_dict, "mechanism": NAME}
        super().load_state_dict(state_dict)  # pyright: ignore[reportUnknownMemberType]

    def get_optimizer_hook_fn(self, sample_rate: float) -> Any:  # noqa: ARG002 - the loader knows it
        """Return the hook that Opacus calls after the noise and before the update.

        It rejects the steps of an optimizer that `make_private` did not return with this
        accountant: nothing says how its batches and noise are drawn.
        """

        def check(optimizer: Any) -> None:
            if Steps.of(optimizer) is None:
                raise Unsupported(
                    "the batches and the noise of this optimizer are not known: train with what "
                    "PrivacyEngine(accountant='dpacct').make_private returns. What steps of "
                    "another loop cost: dpacct.epsilon(steps * Round(noise, Poisson(rate)), ...)"
                )

        return check


@functools.cache
def register() -> None:
    """Make ``PrivacyEngine(accountant="dpacct")`` known to Opacus. Importing this module does."""
    _accountants.register_accountant(NAME, TightAccountant, force=True)
    make_private = _engines.PrivacyEngine.make_private
    make_private_with_epsilon = _engines.PrivacyEngine.make_private_with_epsilon

    @functools.wraps(make_private)
    def checked(engine: Any, **settings: Any) -> Any:
        ours = isinstance(engine.accountant, TightAccountant)
        if ours:
            _check_settings(settings)
        made = make_private(engine, **settings)
        optimizer, loader = made[1], made[-1]
        if loader is not settings["data_loader"]:
            loader.stated_batch_size = settings["data_loader"].batch_size
        if ours:
            loader = check_steps(loader, optimizer, engine.accountant)
            steps = Steps.of(optimizer)
            if steps is not None and not steps.private:
                warnings.warn(
                    "a generator was given: anyone who knows its state can repeat what it draws, "
                    "so epsilon is infinite. Give none for a private run.",
                    stacklevel=2,
                )
        return (*made[:-1], loader)

    @functools.wraps(make_private_with_epsilon)
    def calibrated(
        engine: Any,
        *,
        data_loader: Any,
        target_epsilon: float,
        target_delta: float,
        epochs: float,
        **settings: Any,
    ) -> Any:
        settings["data_loader"] = data_loader
        if not isinstance(engine.accountant, TightAccountant):
            settings |= {"target_epsilon": target_epsilon, "target_delta": target_delta}
            return make_private_with_epsilon(engine, epochs=epochs, **settings)
        if len(engine.accountant):
            warnings.warn(
                f"{len(engine.accountant)} batches are counted already. The noise meets the target "
                "for the new ones alone; get_epsilon returns the cost of all.",
                stacklevel=2,
            )
        # Opacus cuts epochs / rate off to a whole number, and so loses one of 3 x 75 steps.
        rate = 1 / len(data_loader)
        steps = math.ceil(epochs * int(1 / rate))
        solved = calibrate(
            epsilon=target_epsilon, delta=target_delta, rounds=steps, sampling_rate=rate
        )
        # Of the search that this one replaces.
        settings.pop("epsilon_tolerance", None)
        return engine.make_private(**settings, noise_multiplier=solved.noise_multiplier)

    _engines.PrivacyEngine.make_private = checked
    _engines.PrivacyEngine.make_private_with_epsilon = calibrated


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Reject settings of `make_private` whose steps this accountant cannot count."""
    if not settings.get("poisson_sampling", True):
        raise Unsupported(
            "poisson_sampling=False: batches that a loader cuts from a list or shuffles are "
            "not amplified by sampling, and this accountant proves Poisson batches only. Leave "
            "it out. What shuffled epochs cost: "
            "dpacct.epsilon(epochs * dpacct.ShuffledEpoch(noise, steps), delta=...)."
        )
    if "noise_multiplier" in settings:
        noise = settings["noise_multiplier"]
        validate.at_least_zero("noise_multiplier", noise, "a noise multiplier")


register()
