"""What the command line's presets say about methods can be built, and is what papers print."""

from __future__ import annotations

import pytest

from dpacct.fl.methods import METHODS
from dpacct_cli.train.presets import PRESETS

CHOSEN = [(preset, method) for preset, content in PRESETS.items() for method in content.methods]


@pytest.mark.parametrize(("preset", "method"), CHOSEN)
def test_the_options_of_a_preset_build_the_method(preset, method):
    options = PRESETS[preset].methods[method]
    built = METHODS[method](**options)
    assert built.not_private_because is None
    for name, value in options.items():
        assert getattr(built, name) == value


def test_published_settings_have_their_methods():
    assert PRESETS["cifar10-resnet18"].methods["dp-fedpgn"] == {"rho": 0.2, "beta": 0.3}
    assert PRESETS["cifar10-resnet18-sam"].methods["dp-fedsam"] == {"rho": 0.5}
    assert PRESETS["mnist-logistic"].methods["dp-fed-ls"] == {"smoothing": 1.0}
    normec = PRESETS["cifar10-resnet20"]
    assert normec.methods["fed-alpha-normec"] == {"alpha": 0.01, "beta": 0.01}
    # The server's rate is the local one.
    assert normec.values["server_lr"] == normec.values["local_lr"]
