"""What rounds of the engine release, whoever carries the messages: `Federation` and `Server`."""

from __future__ import annotations

from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.auditing.watching import Aimed, Watch
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.markers import scatter
from dpacct.ledger import Event
from dpacct.rounds import Adjacency


def refuse_unaudited(state: TrainingState, not_private_because: str | None) -> None:
    """A run whose promise cannot be tested from its beginning.

    Raises:
        Unsupported: nothing is promised, or it goes on from a checkpoint.
    """
    if state.round:
        raise Unsupported("a run is audited from its beginning, and this one goes on from another")
    if not_private_because is not None:
        raise Unsupported(f"nothing is promised that could be tested: {not_private_because}")


def refuse_ledger(account: Account) -> None:
    """A run whose charge would be kept.

    Raises:
        Unsupported: it has a ledger or a checkpoint.
    """
    if account.path is not None:
        rule = "an audit releases nothing, so that it charges no ledger and keeps no checkpoint"
        raise Unsupported(f"{rule}: build the run without ledger= and checkpoint=")


def aim_at(engine: Engine, state: TrainingState, canaries: Canaries) -> Watch:
    """Give canaries their directions in the model of a run, and watch them.

    Raises:
        InvalidParameter: the model has too few coordinates for so many canaries.
    """
    plan = engine.plan
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    canaries.aim(engine.layout.size, state.bound.clip_norm, replaced=replaced)
    sizes = engine.layout.sizes
    return Watch(canaries, plan.sampling.sampling_rate, plan.adjacency, sizes)


def see_round(
    watch: Watch, canaries: Canaries, engine: Engine, before: TrainingState, after: TrainingState
) -> None:
    """Note what a round has released, if it has.

    Args:
        engine: that has played it. before, after: where the run stood; the same object where
            nothing was released, since too few noise shares arrived.
    Raises:
        Unsupported: it is not finite.
    """
    if after is before or after.released is None:
        return
    aimed, event = expected(engine, before, canaries)
    watch.see(after.released * engine.plan.cohort_size, aimed, event)


def expected(engine: Engine, state: TrainingState, canaries: Canaries) -> tuple[Aimed, Event]:
    """What canaries contribute to the next round, bounded as the engine does."""
    kept = engine.open(state).kept

    def bounded(rows: Tensor) -> Tensor:
        inside = engine.bound(state, kept, rows).bounded.rows
        return scatter(inside, kept, engine.layout.size)

    like = next(iter(state.params.values()))
    aimed = Aimed.of(canaries, bounded, like, state.bound.clip_norm)
    return aimed, engine.plan.event(state.bound, engine.noise, {})
