"""Federated training under client-level differential privacy, charged for what really ran."""

from dpacct.fl.adaptive_clip import AdaptiveClip
from dpacct.fl.aggregate import AggregationPlan, privatize
from dpacct.fl.audit import audit
from dpacct.fl.bounds import Bound, Clip, PerLayerClip, SmoothedNormalization
from dpacct.fl.callbacks import Callback, CSVWriter, JSONLinesWriter, RunView
from dpacct.fl.clients import ClientData, Population
from dpacct.fl.evaluation import Evaluation, evaluate
from dpacct.fl.federation import Federation
from dpacct.fl.findings import Audit, AuditFailed, Finding
from dpacct.fl.local import SGD
from dpacct.fl.masks import Dense, Mask, PublicTopK, RandomK
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
    FedSMPRandK,
    FedSMPTopK,
)
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.noise import GaussianNoise, Noise, NoiseShares
from dpacct.fl.reports import Diagnostics, Report, Timing
from dpacct.fl.secure_noise import SecureGaussianNoise
from dpacct.fl.stages import Bounded, Noised
from dpacct.rounds import Full, Poisson, Uniform

__all__ = [
    "BLUR",
    "BLURS",
    "METHODS",
    "SGD",
    "AdaptiveClip",
    "AggregationPlan",
    "AlphaNormEC",
    "Audit",
    "AuditFailed",
    "Bound",
    "Bounded",
    "CSVWriter",
    "Callback",
    "ClientData",
    "Clip",
    "Context",
    "DPFedAvg",
    "DPFedLS",
    "DPFedPGN",
    "DPFedPGNLS",
    "DPFedSAM",
    "DPFedSAMTopK",
    "Dense",
    "Diagnostics",
    "Evaluation",
    "FedAlphaNormEC",
    "FedAvgSmoothed",
    "FedSMPRandK",
    "FedSMPTopK",
    "Federation",
    "Finding",
    "Full",
    "GaussianNoise",
    "JSONLinesWriter",
    "Mask",
    "Method",
    "Noise",
    "NoiseShares",
    "Noised",
    "PerLayerClip",
    "Poisson",
    "Population",
    "PublicTopK",
    "RandomK",
    "Report",
    "RunView",
    "SecureGaussianNoise",
    "SmoothedNormalization",
    "Timing",
    "Uniform",
    "audit",
    "evaluate",
    "privatize",
]
