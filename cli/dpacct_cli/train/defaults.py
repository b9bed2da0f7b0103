"""Default settings for each data set.

They were tuned for accuracy on public test sets. With private data, such tuning costs budget.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    "glue": _values(
        "clients=500 model=roberta-base-lora q=0.1 clip_norm=0.2 local_epochs=1 batch_size=16"
    ),
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
    "glue": _values("model=roberta-base-lora"),
}
