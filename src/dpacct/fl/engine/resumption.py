"""Checkpoints of a run: written after a round, read when it goes on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from dpacct.fl.engine.checkpoint import read_checkpoint, write_checkpoint
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.snapshots import Expected, noise_of, pack, saved_in, unpack
from dpacct.fl.layout import copies
from dpacct.fl.privacy.masks import reads_release
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.training.choose import TrainingPlan
from dpacct.rounds import Round


class Resumed(NamedTuple):
    """What is not of the rounds of a run that goes on.

    Attributes:
        note: what is worth one, or None. training: how clients were trained, if known.
    """

    note: str | None
    training: TrainingPlan | None


def save(rounds: Rounds, path: Path, training: TrainingPlan | None = None) -> None:
    """Write a checkpoint of the last finished round; ``training``: how clients are trained."""
    engine, state = rounds.engine, rounds.state
    if not reads_release(engine.method.mask):
        state = replace(state, released=None)
    saved = rounds.account.saved()
    content = pack(state, rounds.setting(), saved, engine.source.save(), training)
    write_checkpoint(path, content)


@undisturbed()
def resume(rounds: Rounds, path: Path, *, calibrated: bool) -> Resumed:
    """Go on from a checkpoint.

    Args:
        rounds: of a run of the same setting. path: of the file.
        calibrated: the noise was found for a budget, and the checkpoint's is taken if another
            version found it in other last digits.
    Raises:
        InvalidParameter: missing, damaged, or of another setting.
        LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
    """
    content = read_checkpoint(path, torch.device("cpu"))
    holder = f"the checkpoint {path}"
    saved = saved_in(content, str(path))
    if saved is not None:
        rounds.account.find(saved, holder)
    if calibrated:
        _take_noise(rounds, noise_of(content))
    engine = rounds.engine
    setting = rounds.setting()
    found = unpack(
        content,
        Expected(
            str(path),
            setting,
            engine.layout,
            rounds.plan.bound(rounds.first_bound, content["round"] + 1),
            engine.device,
            engine.num_clients,
            engine.method.init_client(copies(rounds.state.params)),
        ),
    )
    engine.source.restore(found.randomness)
    if saved is not None:
        rounds.account.resume(rounds.event(), saved, setting, holder)
    rounds.state = found.state
    if rounds.account.plan is not None and not rounds.plan.constant:
        rounds.plan = rounds.plan.as_registered(rounds.account.plan, calibrated=calibrated)
    rounds.advance()
    rounds.write_model()
    return Resumed(None, found.training)


def _take_noise(rounds: Rounds, noise_multiplier: float | None) -> None:
    """Another noise that differs from that of the plan by less than a calibration promises."""
    plan = rounds.engine.plan
    own = plan.noise_multiplier
    if noise_multiplier is None or not math.isclose(noise_multiplier, own, rel_tol=1e-5):
        return
    rounds.engine = replace(rounds.engine, plan=replace(plan, noise_multiplier=noise_multiplier))
    if rounds.plan.constant:
        [(round_, count)] = rounds.plan.schedule
        found = count * Round(noise_multiplier, round_.sampling, round_.adjacency)
        rounds.plan = replace(rounds.plan, schedule=found)
