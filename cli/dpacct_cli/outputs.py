"""What each command prints with ``--json``, as types, and the JSON Schemas of them and of files."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from dpacct.budget import Interval
from dpacct.outputs import (
    AccountantWord,
    AdjacencyWord,
    BudgetKeys,
    Ends,
    GaussianDPKeys,
    GuaranteeWord,
    JudgedClaim,
    LedgerReport,
    LedgerRun,
    LedgerSummary,
    MechanismKeys,
    Object,
    ScheduleReport,
    schema_of,
)


class Described(MechanismKeys):
    """A mechanism, and the population if it was typed."""

    num_clients: NotRequired[int]


class ClaimKeys(TypedDict):
    """The verdict on a stated epsilon."""

    stated: float
    verdict: str
    data_sets: str
    sufficient_noise: float | None


class WithMu(TypedDict):
    """mu of Gaussian DP, if --gdp was typed."""

    gdp: NotRequired[GaussianDPKeys]


class Epsilon(Described, WithMu):
    """`dpacct epsilon`."""

    epsilon: Interval
    delta: float
    accountant: AccountantWord
    claim: NotRequired[ClaimKeys]
    source: NotRequired[str]


class EpsilonOfRecord(TypedDict):
    """`dpacct epsilon --from` a ledger or the report of a run, which hold an answer."""

    epsilon: Ends
    delta: float
    accountant: None
    rounds: int
    sampling: None
    sampling_rate: None
    adjacency: AdjacencyWord | None
    noise_multiplier: None
    phases: None
    source: str


class Delta(Described):
    """`dpacct delta`."""

    delta: Interval
    epsilon: float
    accountant: AccountantWord


class Certify(Described):
    """`dpacct certify`. Delta in bounds, at epsilon, and as it was stated."""

    finding: str
    epsilon: float
    stated: float
    delta: Interval
    bits: int


class Divergence(NamedTuple):
    """A Renyi divergence at an order, with each proven bound by its name."""

    order: float
    lower: float
    upper: float
    routes: dict[str, float | None]


class Rdp(MechanismKeys):
    """`dpacct rdp`."""

    orders: list[float]
    rdp: list[Divergence]


class Target(NamedTuple):
    """Bounds, and the largest value allowed."""

    lower: float | None
    upper: float | None
    target: float | None


class RiskGoal(NamedTuple):
    """A limit of attacks."""

    name: str
    lower: float
    upper: float
    target: float | None


class Calibrate(Described):
    """`dpacct calibrate`."""

    solved_for: str
    accountant: AccountantWord
    delta: float
    epsilon: Target
    risk: NotRequired[RiskGoal]
    noise_scale: NotRequired[float]


class AnyRate(NamedTuple):
    """The best attack on any mechanism at a false positive rate."""

    fpr: float
    tpr: float
    posterior: float


class AnyMechanismKeys(NamedTuple):
    """Limits against the worst mechanism with a guarantee."""

    epsilon: float
    delta: float
    advantage: float
    best_guess: float
    rates: list[AnyRate]


class AttackRate(NamedTuple):
    """The best attack at a false positive rate."""

    fpr: float
    tpr: Interval
    posterior: Interval


class RiskOfAny(TypedDict):
    """`dpacct risk --eps`, without rounds."""

    prior: float
    any_mechanism: AnyMechanismKeys


class Risk(MechanismKeys):
    """`dpacct risk`."""

    advantage: Interval
    prior: float
    best_guess: Interval
    rates: list[AttackRate]
    accountant: AccountantWord
    any_mechanism: NotRequired[AnyMechanismKeys]


class Answered(NamedTuple):
    """The answer of one accountant: ours has both bounds, a peer's number is its upper bound."""

    name: str
    kind: Literal["ours", "peer"]
    epsilon: Interval | None = None
    seconds: float = 0.0
    note: str = ""  # Why there is no epsilon
    call: str = ""  # Of a peer, behind its answer

    @property
    def shown_name(self) -> str:
        """The name, with the package that it belongs to."""
        return f"dpacct {self.name}" if self.kind == "ours" else self.name

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The achieved and the proven bound, None for one that does not exist."""
        if self.epsilon is None:
            return None, None
        return self.epsilon.lower if self.epsilon.lower >= 0 else None, self.epsilon.upper


class Drawing(NamedTuple):
    """The cost of a job by one way of drawing its batches."""

    sampling: str
    words: str
    epsilon: Interval | None
    adjacency: AdjacencyWord
    seconds: float
    note: str


class Compare(Described):
    """`dpacct compare`."""

    results: list[Answered]
    delta: float
    samplings: NotRequired[list[Drawing]]


class Explore(TypedDict):
    """`dpacct explore`. A row has the keys of a schedule, those that were typed, and epsilon."""

    rows: list[Object]
    failed: int


class Train(MechanismKeys):
    """`dpacct train`."""

    method: str
    data: str
    model: str
    epsilon: Target
    delta: float
    clip_norm: float
    steps: NotRequired[int]
    groups: NotRequired[int]
    public_size: int | None
    test_accuracy: float
    # Computed from public examples, or else unprotected
    validation_accuracy: NotRequired[float]
    unprotected_validation_accuracy: NotRequired[float]
    unprotected_train_accuracy: NotRequired[float]
    unprotected_gap: NotRequired[float]
    rounds_to_target: NotRequired[int | None]
    unprotected_rounds_to_target: NotRequired[int | None]
    bytes_per_client: int
    test_data: str
    label_set: str
    seconds: float
    ledger: str
    private: bool
    not_private_because: str | None
    stopped_because: str | None
    clients: NotRequired[int]
    examples: NotRequired[int]
    partition: str | None
    simulated_clients: bool
    unit: str
    server: str | None
    bound: str
    model_file: str
    report: str
    checkpoint: str


class Shown(NamedTuple):
    """What an audit shows."""

    epsilon: float | None
    epsilon_if_gaussian: float | None
    noise_factor: float | None
    confidence: float | None


class Audit(MechanismKeys):
    """`dpacct audit`."""

    passed: bool
    faults: list[str]
    method: str
    data: str
    epsilon: Interval
    delta: float
    shown: Shown
    canaries: int
    guesses: int
    right: int
    clients: NotRequired[int]
    examples: NotRequired[int]
    error: float


class Limited(NamedTuple):
    """An observed rate in its interval, beside the proven limit."""

    value: float
    lower: float
    upper: float
    limit: float | None


class ObservedRate(NamedTuple):
    """An attack at a false positive rate."""

    fpr: float
    observed_fpr: float
    fpr_upper: float
    tpr: Limited


class AttackKeys(NamedTuple):
    """An attack on one kind of unit."""

    attack: str
    unit: str
    members: int
    nonmembers: int
    auc: Limited
    advantage: Limited
    rates: list[ObservedRate]
    limit_adjacency: str | None
    above_limit: bool


class Attack(TypedDict):
    """`dpacct attack`."""

    method: str
    data: str
    model: str
    rounds: int
    private: bool
    not_private_because: str | None
    confidence: float
    left_out: int
    adjacency: AdjacencyWord
    attacks: list[AttackKeys]


class LedgerVerify(TypedDict):
    """`dpacct ledger verify`."""

    sound: bool
    entries: int
    rounds: int
    head: str
    head_found: bool | None
    problems: list[str]
    remarks: list[str]
    unverified: list[str]


class LedgerRemaining(MechanismKeys):
    """`dpacct ledger remaining`."""

    remaining: int
    remaining_as_plan: int
    remaining_one_by_one: int
    would_read: Ends | None  # Epsilon after one of them
    epsilon: Ends
    budget: BudgetKeys


class LedgerCharge(MechanismKeys):
    """`dpacct ledger charge`."""

    run: int
    charged: int
    epsilon: Ends
    delta: float
    budget: BudgetKeys
    guarantee: GuaranteeWord
    path: str


class LedgerFinish(LedgerRun):
    """`dpacct ledger finish`."""

    freed: int


class LedgerGrant(TypedDict):
    """`dpacct ledger grant`."""

    role: str
    right: str
    teams: list[str]


class LedgerTeam(TypedDict):
    """A team of a ledger, with what its runs have spent and hold."""

    team: str
    quota: float | None
    epsilon: float


class LedgerQuota(TypedDict):
    """`dpacct ledger quota`."""

    teams: list[LedgerTeam]


class LedgerRequest(MechanismKeys):
    """`dpacct ledger request`."""

    request: int


class WaitingRequest(TypedDict):
    """A request that waits for approval."""

    request: int
    team: str
    name: str
    asked_by: str


class LedgerApprove(TypedDict):
    """`dpacct ledger approve`."""

    approved: int | None
    run: int | None
    waiting: list[WaitingRequest]


class LedgerExport(TypedDict):
    """`dpacct ledger export`."""

    entries: list[Object]


class ClaimsAnswer(TypedDict):
    """`dpacct claims`."""

    claims: list[JudgedClaim]


class TableCell(TypedDict):
    """A cell of a paper's table."""

    row: str
    column: str
    printed: float | None
    values: list[float]
    verdict: str


class TableClaim(TypedDict):
    """A claim about two rows of a paper's table."""

    says: str
    difference: float | None
    verdict: str


class Reproduced(TypedDict):
    """`dpacct reproduce TABLE`."""

    table: str
    tiny: bool
    measure: str
    cells: list[TableCell]
    claims: list[TableClaim]
    files: list[str]


class PaperTables(TypedDict):
    """`dpacct reproduce`."""

    tables: list[str]


# The types of what a command prints, by its name; a group of commands prints one type, a ledger's
# several. A picture is data.
TYPES: dict[str, tuple[Any, ...]] = {
    "calibrate": (Calibrate,),
    "epsilon": (Epsilon, EpsilonOfRecord),
    "delta": (Delta,),
    "certify": (Certify,),
    "risk": (Risk, RiskOfAny),
    "rdp": (Rdp,),
    "compare": (Compare,),
    "explore": (Explore,),
    "train": (Train, Reproduced),
    "audit": (Audit,),
    "attack": (Attack,),
    "ledger-init": (LedgerSummary,),
    "ledger-show": (LedgerSummary,),
    "ledger-verify": (LedgerVerify,),
    "ledger-report": (LedgerReport,),
    "ledger-remaining": (LedgerRemaining,),
    "ledger-charge": (LedgerCharge,),
    "ledger-finish": (LedgerFinish,),
    "ledger-grant": (LedgerGrant,),
    "ledger-quota": (LedgerQuota,),
    "ledger-request": (LedgerRequest,),
    "ledger-approve": (LedgerApprove,),
    "ledger-export": (LedgerExport,),
    "report": (ScheduleReport, LedgerReport),
    "claims": (ClaimsAnswer,),
    "reproduce": (Reproduced, PaperTables),
}
FILES = ("schedule-file", "claims-file")
NAMES = sorted({*TYPES, *FILES, "plot"})


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints, or of a file that it reads."""
    if name in FILES:
        # They bring the readers of files.
        from dpacct.claims.files import claims_schema
        from dpacct.schedules.files import file_schema

        return file_schema() if name == "schedule-file" else claims_schema()
    kinds = TYPES.get(name)
    if kinds is None:
        # It brings all pictures.
        from dpacct.pictures import Picture

        kinds = (Picture,)
    return schema_of(f"dpacct {name.replace('-', ' ')} --json", *kinds)


if __name__ == "__main__":
    print(json.dumps(schema(sys.argv[1]), indent=2) if sys.argv[1:] else "\n".join(NAMES))
