"""Federated training under client-level differential privacy, charged for the rounds that ran."""

import os
from importlib.util import find_spec

from dpacct.packages import import_torch, install_command

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        f"dpacct.fl trains with PyTorch, which is not installed: {install_command('fl')}",
        name="torch",
    )
# Too old a version reads files that others made unsafely: an error.
import_torch()

# Clients of a group lie behind each other in memory, and the bits of Intel's products depend on
# addresses unless it is told otherwise before its first one. A user's own setting is kept.
os.environ.setdefault("MKL_CBWR", "AUTO")

from dpacct.fl.auditing.audit import audit
from dpacct.fl.auditing.runs import RunAudit, audit_run, audit_server
from dpacct.fl.clients import Canary, ClientData, Examples, Owned, Population
from dpacct.fl.engine.rounds import OpenRound
from dpacct.fl.engine.states import Contributions, Draw
from dpacct.fl.federation import Federation
from dpacct.fl.layout import Noised
from dpacct.fl.local.sgd import SGD, LocalAdam
from dpacct.fl.methods import (
    BLUR,
    BLURS,
    METHODS,
    AlphaNormEC,
    DPFedAvg,
    DPFedLS,
    DPFedPGN,
    DPFedPGNLS,
    DPFedSAM,
    DPFedSAMTopK,
    FedAlphaNormEC,
    FedAvgSmoothed,
    FedCM,
    FedDyn,
    FedSMPRandK,
    FedSMPTopK,
    Scaffold,
)
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.models import Evaluation, evaluate
from dpacct.fl.postprocess import Adam, Average, Momentum, ServerOptimizer
from dpacct.fl.privacy.allocation import Allocation
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, Clip, PerLayerClip, SmoothedNormalization
from dpacct.fl.privacy.correlated import CorrelatedNoise, Cyclic, MinSeparation
from dpacct.fl.privacy.findings import Audit, AuditFailed, Finding
from dpacct.fl.privacy.masks import Dense, Mask, PublicTopK, RandomK
from dpacct.fl.privacy.noise import GaussianNoise, Noise, NoiseShares, SecureGaussianNoise
from dpacct.fl.privatize import AggregationPlan, privatize
from dpacct.fl.report import Callback, CSVWriter, Diagnostics, JSONLinesWriter, RoundReport
from dpacct.fl.server import Server
from dpacct.fl.training.local_run import LocalRun
from dpacct.rounds import Full, Poisson, Uniform

__all__ = [
    "BLUR", "BLURS", "METHODS", "SGD", "Adam", "AdaptiveClip", "AggregationPlan", "Allocation",
    "AlphaNormEC", "Audit", "AuditFailed", "Average", "Bound", "CSVWriter",
    "Callback", "Canary", "ClientData", "Clip", "Context", "Contributions", "CorrelatedNoise",
    "Cyclic", "DPFedAvg", "DPFedLS", "DPFedPGN", "DPFedPGNLS", "DPFedSAM", "DPFedSAMTopK",
    "Dense", "Diagnostics", "Draw", "Evaluation", "Examples", "FedAlphaNormEC",
    "FedAvgSmoothed", "FedCM", "FedDyn", "FedSMPRandK", "FedSMPTopK", "Federation", "Finding",
    "Full", "GaussianNoise", "JSONLinesWriter", "LocalAdam", "LocalRun", "Mask", "Method",
    "MinSeparation", "Momentum", "Noise", "NoiseShares", "Noised", "OpenRound", "Owned",
    "PerLayerClip", "Poisson", "Population", "PublicTopK", "RandomK", "RoundReport", "RunAudit",
    "Scaffold", "SecureGaussianNoise", "Server", "ServerOptimizer", "SmoothedNormalization",
    "Uniform", "audit", "audit_run", "audit_server", "evaluate", "privatize",
]  # fmt: skip
