"""What the run itself proves of all attacks on it: the limit that stands beside what was observed.

The limit is that of the rounds which the checkpoint has learned from, as its ledger charged them.
It holds on average over trainings, for comparing clients who took part with clients of the same
kind who did not. Rule: without a guarantee there is no limit, and that is said, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.fl.engine.checkpoint import saved_in
from dpacct.fl.privacy.account import check_run
from dpacct.fl.privacy.randomness import SEEDED
from dpacct.ledger import Ledger, Run
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import Accusations, AnyMechanism, accusations
from dpacct.rounds import Adjacency, Phase, Round, Schedule
from dpacct_cli.attack.target import Target
from dpacct_cli.render import plain, up


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """The most that any attack does.

    Attributes:
        attacks: of the run's rounds; or of any mechanism with its epsilon; None where nothing is
            known.
        because: why there is none.
        told: what it is of, in words.
    """

    attacks: Accusations | AnyMechanism | None
    because: str = ""
    told: str = ""

    def auc(self) -> float | None:
        """Of any score, proven."""
        found = self.attacks
        return found.auc() if isinstance(found, AnyMechanism) else found and found.auc

    def advantage(self) -> float | None:
        """The largest TPR - FPR, proven."""
        found = self.attacks
        return found.advantage() if isinstance(found, AnyMechanism) else found and found.advantage

    def tpr(self, fpr: float) -> float | None:
        """The largest TPR at an FPR, proven."""
        return None if self.attacks is None else self.attacks.tpr(fpr)


@dataclass(frozen=True, slots=True, eq=False)
class Proven:
    """What is known of a run.

    Attributes:
        private: whether it has a guarantee. because: why not.
        clients: for comparing clients. examples: for comparing examples.
    """

    private: bool
    because: str
    clients: Limit
    examples: Limit


def proven(target: Target, *, strangers: bool) -> Proven:
    """The limits of a run.

    Args:
        target: its model.
        strangers: held-out examples belong to nobody who took part. If they belong to clients who
            did, an example that was trained on and one that was not differ as one client replaced
            by another, whatever the run's own adjacency.
    Raises:
        LedgerError: the ledger is damaged, or not that of the checkpoint.
    """
    path = target.files.ledger
    saved = saved_in(dict(target.content))
    if saved is None:
        return _both(_limit(Schedule(), DEFAULT_ACCOUNTANT))
    if not path.is_file():
        return _without(f"its ledger {path} is not there")
    with Ledger.open(path, read_only=True) as ledger:
        holder = f"the checkpoint {target.path}"
        ledger.require(saved.position, holder)
        run = check_run(ledger, saved, str(target.content.get("setting")), holder)
        if not run.private:
            why = target.job.method.not_private_because or SEEDED
            return _without(f"the run is not private: {why}")
        return _of_run(run, target.rounds, strangers=strangers)


def _without(why: str) -> Proven:
    none = Limit(None, why)
    return Proven(private=False, because=why, clients=none, examples=none)


def _both(limit: Limit) -> Proven:
    return Proven(private=True, because="", clients=limit, examples=limit)


def _of_run(run: Run, rounds: int, *, strangers: bool) -> Proven:
    if rounds == 0:
        return _both(_limit(Schedule(), run.accountant))
    if run.plan is None or not run.on_plan:
        spent = run.epsilon()
        told = f"any mechanism with epsilon {up(spent.upper)} at delta {plain(spent.delta)}"
        if not 0.0 < spent.upper < float("inf"):
            return _without("no epsilon is proven for its rounds")
        clients = Limit(AnyMechanism(spent.upper, spent.delta), told=told)
        if strangers:
            return _both(clients)
        return Proven(
            private=True,
            because="",
            clients=clients,
            examples=Limit(None, "the held-out examples are of clients who took part"),
        )
    kinds = run.plan.distinct()
    # What a longer plan allows bounds what its beginning does.
    schedule = rounds * next(iter(kinds)) if len(kinds) == 1 else run.plan
    clients = _limit(schedule, run.accountant)
    if strangers or schedule.adjacency is Adjacency.REPLACE_ONE:
        return _both(clients)
    replaced = Schedule(
        Phase(Round(round_.noise_multiplier, round_.sampling, Adjacency.REPLACE_ONE), count)
        for round_, count in schedule
    )
    return Proven(
        private=True, because="", clients=clients, examples=_limit(replaced, run.accountant)
    )


def _limit(schedule: Schedule, accountant: str) -> Limit:
    found = accusations(Attacks(schedule, find_accountant(accountant)))
    return Limit(found, told=str(schedule.adjacency))
