"""Opacus with the tight accountant, and with a ledger underneath.

Importing this module imports Opacus and torch, and registers the accountant:

```python
import dpacct.interop.opacus
engine = PrivacyEngine(accountant="dpacct")
```

`attach_ledger` charges what trains to a run of a ledger, step by step, and `audit_loop` tests by
canaries that it does as charged. Opacus' accountants as peers of ours are another matter:
`opacus_peers`.
"""

from __future__ import annotations

from typing import Any

from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.errors import Unsupported
from dpacct.packages import import_opacus
from dpacct.rounds import Phase, Poisson, Round, Schedule

# Whether Opacus is there is asked before what imports torch, which Opacus brings.
_accountants = import_opacus("accountants")

from dpacct.fl.opacus.audit import audit_loop  # noqa: E402 - see above
from dpacct.fl.opacus.loader import (  # noqa: E402 - likewise
    LedgerLoader,
    attach_ledger,
    refuse_adaptive,
)

__all__ = ["NAME", "LedgerLoader", "TightAccountant", "attach_ledger", "audit_loop", "register"]

# What `PrivacyEngine` is told.
NAME = "dpacct"


class TightAccountant(_accountants.IAccountant):
    """An accountant of Opacus whose epsilon is a proven upper bound: Poisson batches, add-remove.

    Attributes:
        history: (noise multiplier, sampling rate, steps), as all of Opacus' accountants keep it.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step."""
        steps = 0
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps = self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps + 1))

    def get_epsilon(self, delta: float, *_: Any, **_settings: Any) -> float:
        """Proven epsilon of all steps at ``delta``; settings of other accountants change nothing.

        Raises:
            InvalidParameter: a value out of range.
        """
        plan = self.schedule
        accountant = find_accountant(DEFAULT_ACCOUNTANT)
        return accountant.upper_epsilon(plan, delta) if plan.rounds else 0.0

    @property
    def schedule(self) -> Schedule:
        """The steps as a schedule."""
        return Schedule(
            Phase(Round(noise, Poisson(rate)), steps) for noise, rate, steps in self.history
        )

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """What `PrivacyEngine` calls it."""
        return NAME

    def get_optimizer_hook_fn(self, sample_rate: float) -> Any:
        """What Opacus calls after the noise and before the update.

        The hook raises `Unsupported` where gradients of several batches were added up: an example
        may be in two of them, and no rate accounts for that; and where the clip norm follows a
        count of the data, which has a cost of its own.
        """

        def count(optimizer: Any) -> None:
            refuse_adaptive(optimizer)
            if optimizer.accumulated_iterations != 1:
                raise Unsupported(
                    f"gradients of {optimizer.accumulated_iterations} batches were added up before "
                    "a step: an example may be in several of them and move the sum by more than "
                    "the clip norm. Step after each batch; BatchMemoryManager makes it larger."
                )
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return count


def register() -> None:
    """Make ``PrivacyEngine(accountant="dpacct")`` known to Opacus; importing this module does."""
    _accountants.register_accountant(NAME, TightAccountant, force=True)


register()
