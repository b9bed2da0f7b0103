"""A server whose clients add the noise: what of a run goes together with sums that are hidden.

Rule 1: what would show a client's own values beside its hidden update is refused. Rule 2: what
clients are to draw is tried before anything is charged.
"""

from __future__ import annotations

from dataclasses import replace

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.methods.protocol import overrides
from dpacct.fl.privacy.bounds import AdaptiveClip
from dpacct.fl.privacy.noise import NoiseShares, SharesElsewhere, share_sigma


def elsewhere(noise: NoiseShares) -> SharesElsewhere:
    """Shares that real clients add.

    Raises:
        InvalidParameter: drop-outs are to be simulated.
    """
    if noise.dropout_rate:
        rule = "it simulates who drops out; of clients elsewhere that is seen"
        raise InvalidParameter("dropout_rate", noise.dropout_rate, rule, "Leave it out.")
    return SharesElsewhere(noise.minimum)


def check_shares(engine: Engine, state: TrainingState) -> None:
    """A run with shares from elsewhere hides all that is a client's own; others pass.

    Raises:
        Unsupported: something of a client would be seen, or a share cannot be drawn.
    """
    noise, method, bound = engine.noise, engine.method, state.bound
    if not isinstance(noise, SharesElsewhere):
        return
    name = method.name or type(method).__name__
    # Rule 1.
    if method.everyone_computes or overrides(method, "init_client"):
        raise Unsupported(
            f"{name} with noise shares: the server keeps its clients' memories, which no noise "
            "covers. Take a method without memories"
        )
    if isinstance(bound, AdaptiveClip):
        raise Unsupported(
            "an adaptive clip norm with noise shares: who was clipped is counted in a second sum, "
            "which is not hidden. Take a fixed clip_norm"
        )
    # Rule 2.
    limits = bound.limits(engine.layout)
    if engine.layout.size:
        share_sigma(limits, engine.plan.update_std(bound), noise.minimum)


def rehearsed(engine: Engine) -> Engine:
    """An engine in which made-up clients add the shares."""
    noise = engine.noise
    if not isinstance(noise, SharesElsewhere):
        return engine
    return replace(engine, noise=replace(noise, rehearsed=True))
