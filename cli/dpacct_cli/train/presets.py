"""Default settings for each data set, and the settings of published work.

Defaults were tuned for accuracy on public test sets. With private data, such tuning costs budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Values = dict[str, str]

DEFAULT_DATA = "digits"


def _values(text: str) -> Values:
    """Return settings that are written as words ``key=value``."""
    return dict(word.split("=") for word in text.split())


COMMON: Values = _values(
    "data=digits clients=100 partition=iid model=logistic rounds=30 q=0.3 eps=8 clip_norm=1 "
    "local_lr=0.1 local_epochs=5 batch_size=10 server_lr=1 device=auto public_seed=0"
)
_MNIST: Values = _values("clients=1000 q=0.05 clip_norm=0.4 lr_decay=0.99 weight_decay=4e-5")
_COLORS: Values = _values(
    "clients=500 partition=dirichlet:0.6 model=cnn-small rounds=100 q=0.1 clip_norm=0.8 "
    "local_lr=0.2 local_epochs=1 batch_size=25"
)

DEFAULTS: Mapping[str, Values] = {
    "digits": _values("rounds=60 local_lr=1"),
    "mnist": _MNIST,
    "fashion-mnist": _MNIST,
    "emnist": _MNIST,
    "cifar10": _COLORS,
    "cifar100": _COLORS,
    "svhn": _COLORS,
    "femnist": _values(
        "clients= partition=natural rounds=60 local_lr=0.3 local_epochs=2 batch_size=20"
    ),
    "shakespeare": _values(
        "clients= partition=natural model=lstm-small rounds=50 q=0.1 clip_norm=4 local_lr=8 "
        "local_epochs=1 batch_size=4"
    ),
    "adult": _values("clients=1000 q=0.1 clip_norm=0.5 batch_size=32"),
}


# For runs that protect single examples.
EXAMPLES_COMMON: Values = _values(
    "data=digits model=logistic rounds=200 q=0.05 eps=8 clip_norm=1 server_lr=1 device=auto "
    "public_seed=0"
)
_IMAGES: Values = _values("rounds=300 q=0.01 server_lr=2")
_COLOR_IMAGES = _IMAGES | _values("model=cnn-small server_lr=0.5")
EXAMPLES_DEFAULTS: Mapping[str, Values] = {
    "digits": {},
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "emnist": _IMAGES,
    "cifar10": _COLOR_IMAGES,
    "cifar100": _COLOR_IMAGES,
    "svhn": _COLOR_IMAGES,
    "femnist": _IMAGES,
    "shakespeare": _values("model=lstm-small"),
    "adult": {},
}


class Preset(NamedTuple):
    """Settings of published work, options of methods, and the differences from the publication."""

    values: Values
    methods: Mapping[str, Mapping[str, Any]]
    source: str


_DP_FED_LS: Values = _values(
    "model=logistic local_lr=0.1 local_epochs=5 lr_decay=0.99 weight_decay=4e-5"
)
_DP_FEDPGN: Values = _values(
    "data=cifar10 clients=500 partition=dirichlet:0.6 rounds=300 q=0.1 noise=0.8 delta=0.002 "
    "clip_norm=0.2 local_lr=0.1 local_epochs=5 batch_size=50 lr_decay=0.998"
)
_DP_FEDSAM = _DP_FEDPGN | _values("noise=0.95 local_epochs=30 momentum=0.5 weight_decay=5e-4")
_SMOOTHED: Mapping[str, Mapping[str, Any]] = {"dp-fed-ls": {"smoothing": 1.0}}
_PGN_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dp-fedpgn": {"rho": 0.2, "beta": 0.3},
    "dp-fedpgn-ls": {"rho": 0.2, "beta": 0.3, "smoothing": 0.01},
}
_SAM_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dp-fedsam": {"rho": 0.5},
    "dp-fedsam-topk": {"rho": 0.5, "fraction": 0.4},
    "fed-smp-randk": {"fraction": 0.4},
    "fed-smp-topk": {"fraction": 0.4},
    "blurs": {"fraction": 0.4},
}
_PGN_SOURCE = (
    "DP-FedPGN; there the clip norm is a median, which is not private, and the learning rate one "
    "of a grid"
)

PRESETS: Mapping[str, Preset] = {
    "mnist-logistic": Preset(
        _DP_FED_LS
        | _values(
            "data=mnist clients=500 partition=iid rounds=30 q=0.05 eps=8 "
            "delta=0.0010743183535273748 clip_norm=0.4 batch_size=10"
        ),
        _SMOOTHED,
        "DP-Fed-LS, Poisson sampling; there 10000 of the training images are for validation",
    ),
    "shakespeare-lstm": Preset(
        _DP_FED_LS
        | _values(
            "data=shakespeare clients= partition=natural model=lstm rounds=100 q=0.2 noise=1.4 "
            "delta=0.0005153412692120689 clip_norm=5 local_lr=1.47 batch_size=50"
        ),
        _SMOOTHED,
        "DP-Fed-LS, Poisson sampling; there 975 roles, chosen from another edition of the plays",
    ),
    "cifar10-resnet10": Preset(_DP_FEDPGN | _values("model=resnet10"), _PGN_OPTIONS, _PGN_SOURCE),
    "cifar10-resnet18": Preset(_DP_FEDPGN | _values("model=resnet18"), _PGN_OPTIONS, _PGN_SOURCE),
    "cifar10-resnet18-sam": Preset(
        _DP_FEDSAM | _values("model=resnet18"),
        _SAM_OPTIONS,
        "DP-FedSAM; there the cohorts are of fixed size, and charged as if they were Poisson",
    ),
    "femnist-cnn": Preset(
        _DP_FEDSAM
        | _values("data=femnist clients= partition=natural model=cnn rounds=200 batch_size=32"),
        _SAM_OPTIONS,
        "DP-FedSAM on EMNIST; there 500 clients hold a fifth of EMNIST by a Dirichlet partition",
    ),
    "cifar10-resnet20": Preset(
        _values(
            "data=cifar10 clients=20 partition=iid model=resnet20 rounds=300 sampling=full eps=8 "
            "delta=1e-5 local_lr=0.1 local_steps=1 batch_size=32 server_lr=0.1"
        ),
        {
            "fed-alpha-normec": {"alpha": 0.01, "beta": 0.01},
            "fedavg-smoothed": {"alpha": 0.01, "beta": 0.1},
        },
        "Fed-alpha-NormEC; there a tenth of the training images are for testing, and local steps "
        "are not stated",
    ),
}
