"""The methods, each after its paper. `dpacct.fl.methods.protocol` is their interface.

List a new method here, in `dpacct.fl`, and in ``METHODS`` of `dpacct_cli.train.options` (names
alone, so that help needs no torch). Also list it in ``NAMES`` of tests/fl/methods/test_kit.py, in
docs/reference/methods.md and docs/reference/python.md.
"""

from __future__ import annotations

from collections.abc import Callable

from dpacct.fl.methods.dp_fed_ls import DPFedLS
from dpacct.fl.methods.dp_fedpgn import DPFedPGN, DPFedPGNLS
from dpacct.fl.methods.dp_fedsam import DPFedSAM, DPFedSAMTopK
from dpacct.fl.methods.drift import FedCM, FedDyn, Scaffold
from dpacct.fl.methods.fed_alpha_normec import AlphaNormEC, FedAlphaNormEC
from dpacct.fl.methods.fed_smp import FedSMPRandK, FedSMPTopK
from dpacct.fl.methods.fedavg import BLUR, BLURS, DPFedAvg, FedAvgSmoothed
from dpacct.fl.methods.protocol import Method

# By the name on the command line. Options of a method are arguments of its constructor.
METHODS: dict[str, Callable[..., Method]] = {
    method.name: method
    for method in (
        DPFedAvg, BLUR, BLURS, FedSMPRandK, FedSMPTopK, DPFedSAM, DPFedSAMTopK, DPFedPGN,
        DPFedPGNLS, DPFedLS, FedAlphaNormEC, AlphaNormEC, FedAvgSmoothed, Scaffold, FedDyn, FedCM,
    )
}  # fmt: skip
