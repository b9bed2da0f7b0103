"""The tight accountant as Flower's `PrivacyAccountant`, for its differentially private strategies.

```python
from dpacct.interop.flower import TightAccountant
strategy = DifferentialPrivacyServerSideFixedClipping(..., accountant=TightAccountant(config))
```

Flower's own accountant counts a round "without amplification" as a release in which one client
moves the sum by its clip norm. If a cohort is smaller than the population, a client that joins
displaces another one and moves the sum by up to twice the clip norm. That is charged here.
Importing this module imports Flower. `dpacct.fl.flower` is a strategy of our own.
"""

from __future__ import annotations

from typing import Any, cast

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import Budget
from dpacct.errors import InvalidParameter
from dpacct.ledger import MOST_AHEAD, Run
from dpacct.packages import import_package
from dpacct.rounds import AccountantName, Adjacency, Full, Phase, Poisson, Round, Schedule, Uniform

# Before names are imported that an older Flower lacks.
import_package("flwr", "flwr", "1.41", "flower")

from flwr.serverapp import (  # noqa: E402 - see above
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)


class TightAccountant:
    """Flower's accountant protocol, with proven upper bounds.

    Args:
        config: of Flower: population, sampling, neighbors, delta and limit.
        run: the run of a ledger, charged on disk before a strategy releases its noisy sum. Its
            delta is the configuration's.
        accountant: the name of our accountant that gives the bound.

    Attributes:
        config: the configuration.

    Raises:
        InvalidParameter: the run's ledger has another delta or adjacency.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        *,
        run: Run | None = None,
        accountant: AccountantName = DEFAULT_ACCOUNTANT,
    ) -> None:
        self.config, self._run = config, run
        self._accountant = find_accountant(accountant)
        self._events: list[tuple[GaussianPrivacyEvent, int]] = []
        if run is not None:
            delta = run.epsilon().delta
            if delta != config.target_delta:
                rule = f"the ledger's is {delta:g}"
                raise InvalidParameter("target_delta", config.target_delta, rule)

    @property
    def num_releases(self) -> int:
        """The number of composed rounds."""
        return sum(count for _, count in self._events)

    @property
    def schedule(self) -> Schedule:
        """The composed rounds, in their order."""
        return Schedule([Phase(self.round_of(event), count) for event, count in self._events])

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count rounds, and charge the ledger's run for them.

        Raises:
            InvalidParameter: the event is of another population, or the count is none.
            BudgetExceeded: the rounds do not fit. The noisy sum must not be released.
        """
        times = validate.count("count", count, "a number of rounds")
        round_ = self.round_of(event)
        if (run := self._run) is not None:
            for left in range(times, 0, -1):
                ticket = run.reserve(round_, ahead=max(run.ahead, min(left, MOST_AHEAD)))
                ticket.draw()
                ticket.commit()
        self._events.append((event, times))

    def get_epsilon(self, delta: float) -> float:
        """Return a proven upper bound of epsilon at this delta, or 0 before the first round."""
        at = validate.delta(delta)
        return self._accountant.epsilon(self.schedule, at).upper if self._events else 0.0

    def get_delta(self, epsilon: float) -> float:
        """Return a proven upper bound of delta at this epsilon."""
        at = validate.epsilon(epsilon)
        return self._accountant.delta(self.schedule, at).upper if self._events else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return the total, at this delta or the configuration's."""
        at = self.config.target_delta if delta is None else delta
        method = f"dpacct {self._accountant.name}"
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, method)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Return True if more rounds would exceed a limit. Nothing is counted.

        Raises:
            InvalidParameter: there is no limit.
        """
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            rule = "a limit is given here, or in the configuration"
            raise InvalidParameter("max_epsilon", None, rule)
        most = Budget(limit, self.config.target_delta)
        times = validate.count("count", count, "a number of rounds")
        after = Schedule([*self.schedule, Phase(self.round_of(event), times)])
        return self._accountant.epsilon(after, most.delta).upper > most.epsilon

    def round_of(self, event: GaussianPrivacyEvent) -> Round:
        """Return the round as it is charged.

        Raises:
            InvalidParameter: it is of another population.
        """
        config, size = self.config, event.sample_size
        if event.population_size != config.population_size:
            rule = f"the configuration has a population of {config.population_size}"
            raise InvalidParameter("population_size", event.population_size, rule)
        replaced = config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        adjacency = Adjacency.REPLACE_ONE if replaced else Adjacency.ADD_REMOVE
        match config.sampling_method:
            case SamplingMethod.POISSON:
                sampling: Any = Poisson(size / config.population_size)
            case SamplingMethod.WITHOUT_REPLACEMENT:
                sampling = Uniform(size, config.population_size)
            case _:
                # In a smaller cohort one client more displaces another one.
                sampling = Full()
                if size < config.population_size:
                    adjacency = Adjacency.REPLACE_ONE
        return Round(event.noise_multiplier, sampling, adjacency)

    def state_dict(self) -> dict[str, object]:
        """Return the composed rounds, as JSON."""
        config = self.config
        return {
            "schema_version": 1,
            "backend": "dpacct",
            "config": [
                config.target_delta,
                config.population_size,
                config.neighboring_relation.value,
                config.sampling_method.value,
            ],
            "events": [[e.noise_multiplier, e.sample_size, times] for e, times in self._events],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from the rounds of `state_dict`. The run of a ledger keeps its own record.

        Raises:
            InvalidParameter: it is of another configuration.
        """
        own = self.state_dict()
        if any(state.get(key) != own[key] for key in ("schema_version", "backend", "config")):
            rule = "it was written by this accountant, for the same configuration"
            raise InvalidParameter("state", state.get("config"), rule)
        events: list[tuple[GaussianPrivacyEvent, int]] = []
        for noise, size, times in cast("list[tuple[float, int, int]]", state["events"]):
            event = GaussianPrivacyEvent(noise, size, self.config.population_size)
            self.round_of(event)
            events.append((event, validate.count("events", times, "a number of rounds")))
        self._events = events
