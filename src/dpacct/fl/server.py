"""`Server`: a run whose rounds a loop of your own fills, with clients here or elsewhere.

`Federation` with the clients left out: the same engine, ledger, checkpoints and reports. Your loop
drives it round by round: reserved and drawn, filled, released.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Concatenate, NoReturn, ParamSpec, cast

from torch import nn

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.engine import for_rehearsal
from dpacct.fl.engine.rehearsal import check_kind, require_bound
from dpacct.fl.engine.rounds import OpenRound, Rounds
from dpacct.fl.engine.run import PrivateRun
from dpacct.fl.engine.setup import check_shares, prepare
from dpacct.fl.privacy.noise import NoiseShares, SharesElsewhere
from dpacct.fl.report import RoundReport
from dpacct.fl.settings import Settings, place, with_keywords_of
from dpacct.fl.tensors import undisturbed


class Elsewhere(Sequence[ClientData]):
    """A population that trains elsewhere: it has a size, and no data to look at."""

    def __init__(self, num_clients: int) -> None:
        self._count = validate.count("num_clients", num_clients, "the population")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: object) -> NoReturn:
        raise Unsupported(f"client {index} trains elsewhere. The server has none of its data")


class TriedRound(OpenRound):
    """A round of one client that is not charged, and whose release shows nothing of it."""

    def __init__(self, run: Rounds, client: int) -> None:
        if client not in range(run.engine.num_clients):
            raise InvalidParameter("client", client, "there is no such client")
        draw = replace(run.engine.draw_for([client]), workers=[client])
        super().__init__(run, cast("Any", None), run.event(), time.perf_counter(), draw)
        # Nothing of it is in the ledger.
        self._committed = True

    def release(self) -> RoundReport:
        """Check the update of the client, and release a round of zeros.

        Raises:
            InvalidParameter: the update is not finite. Unsupported: there is none.
        """
        if not self._answered:
            raise Unsupported("the loop added no update of its client")
        if any(bool(bad) for bad in self.found.dropped):
            raise InvalidParameter("update", f"of client {min(self._answered)}", "it is finite")
        return self.release_zeros()

    @undisturbed()
    def release_zeros(self) -> RoundReport:
        """Go through all stages behind the sum, with zeros in its place."""
        collected, before = self.found, self._state
        collected.total.zero_()
        collected.rows.clear()
        collected.indicators = (
            None if collected.indicators is None else collected.indicators.zero_()
        )
        # The planned number, so that shares of the noise suffice.
        collected.arrived = math.ceil(self._engine.plan.cohort_size)
        report = super().release()
        check_kind(self._run.state, before)
        return report


P = ParamSpec("P")


def _takes(
    kind: Callable[P, Settings],
) -> Callable[
    [Callable[[Server, nn.Module, int, Settings], None]],
    Callable[Concatenate[Server, nn.Module, int, P], None],
]:
    """Spread the settings that an ``__init__`` takes into its keywords."""
    return lambda init: with_keywords_of(cast("Any", kind), init)


class Server(PrivateRun):
    """A private training run whose rounds a loop of your own fills.

    Iterate over it: each `OpenRound` is reserved in the ledger, with its cohort drawn. Train its
    workers in blocks of `OpenRound.local`, or send out `OpenRound.assignment` and
    `OpenRound.receive` the answers. Then `OpenRound.release`: the noise is added once, the ledger
    commits, the model moves, memories are kept. A client without an answer contributes zero. A
    round that is left without a release stays spent.

    This class checks that only members of the cohort are added, each once. The code that carries
    the messages has to ensure the rest. A client's data show in its own answer alone. The waiting
    time for an answer does not depend on other answers. Cohorts stay secret.

    Args:
        model: changed in place, and moved to ``device`` (see `Federation`).
        num_clients: the population. Cohorts are drawn from all of it, reachable or not.
        public_size: as for `Federation`. Without it ``num_clients`` is public.
        noise: as for `Federation`. With `NoiseShares` clients add the noise, and the sum comes
            from behind masks: `dpacct.fl.flower`, or `OpenRound.commit` and `OpenRound.add_sum`.
        Others, as keywords: see `dpacct.fl.settings.Settings`.

    Attributes:
        setting: the settings common to clients, checkpoints and the ledger's run, in words.
        Others: see `PrivateRun`.

    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
        BudgetExceeded: (when the first round is opened) the plan does not fit into the ledger.
        AuditFailed: (likewise) the bound does not bound.
    """

    @_takes(Settings)
    def __init__(self, model: nn.Module, num_clients: int, settings: Settings) -> None:
        if isinstance(settings.noise, NoiseShares):
            settings = replace(settings, noise=SharesElsewhere(settings.noise.minimum))
        model = place(model, settings.device)
        parts = prepare(settings, model, Elsewhere(num_clients))
        check_shares(parts)
        super().__init__(model, parts, settings)
        self._rehearsed = False
        self._looks: list[Callable[[], None]] = []

    @undisturbed()
    def rehearsal(self, client: int = 0) -> TriedRound:
        """Return a round of one client, in which a loop of your own is tried before any charge.

        Call it with the function that trains a round: ``train(run.rehearsal())``. Errors of the
        loop, the model and the loss are raised, and an update has to be finite. The run itself,
        its model and its memories stay as they are.

        Raises:
            InvalidParameter: there is no such client.
        """
        # Its own engine, state and model: those of the run itself stay where they are.
        tried = copy.copy(self)
        tried.state = replace(self.state, client_states={}, noise=None)
        tried.engine, tried.model = for_rehearsal(self.engine), copy.deepcopy(self.model)
        return TriedRound(tried, client)

    def begin(self) -> int:
        """Try a round of zeros, and register the run in the ledger. Iterating does the same.

        Returns:
            The planned number of rounds.
        Raises:
            BudgetExceeded: see the class.
        """
        if not self._rehearsed and self.round < self.rounds:
            require_bound(self.engine, self.state)
            self.rehearsal().release_zeros()
            self._rehearsed = True
        begun = self.account.begun
        self.register()
        if self._checkpoint and not begun:
            # A process that dies in its first round leaves a run that can be resumed.
            self.save()
        return self.rounds

    def __iter__(self) -> Iterator[OpenRound]:
        """Open the remaining rounds, until the plan or the budget ends."""
        self.begin()
        for opened in self._each(self.open):
            try:
                yield opened
            finally:
                for look in self._looks:
                    look()
            if opened.settled:
                self._save_if_due()

    def on_settled(self, look: Callable[[], None]) -> None:
        """Call a function after each round, and when the rounds are left."""
        self._looks.append(look)
