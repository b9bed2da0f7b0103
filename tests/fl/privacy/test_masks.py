from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.masks import Mask
from tests.fl.problems import federation, flat, linear, make_clients, perceptron

LAYOUT = Layout(("a", "b", "c"), tuple(torch.Size([n]) for n in (7, 40, 1)), (7, 40, 1))


@given(st.floats(0.001, 1), st.integers(1, 50))
def test_random_masks_keep_their_share_of_each_tensor(fraction, round_number):
    kept = fl.RandomK(fraction).select(LAYOUT, round_number, None)
    if fraction == 1:
        assert kept is None
        return
    assert kept is not None
    assert torch.equal(kept, kept.unique())
    sizes = LAYOUT.restrict(kept).sizes
    for size, whole in zip(sizes, LAYOUT.sizes, strict=True):
        assert size == math.ceil(fraction * whole - 1e-9)


def test_random_masks_are_public_and_new_in_each_round():
    first = fl.RandomK(0.3).select(LAYOUT, 1, None)
    again = fl.RandomK(0.3).select(LAYOUT, 1, torch.randn(48))
    assert torch.equal(first, again)
    assert not torch.equal(first, fl.RandomK(0.3).select(LAYOUT, 2, None))
    assert not torch.equal(first, fl.RandomK(0.3, seed=1).select(LAYOUT, 1, None))
    for make, fraction in product((fl.RandomK, fl.PublicTopK), (0, -0.1, 1.01, math.nan)):
        with pytest.raises(InvalidParameter, match="share of coordinates"):
            make(fraction)


def test_top_k_reads_the_last_release():
    released = torch.arange(48.0)
    released[0] = -100
    kept = fl.PublicTopK(0.1).select(LAYOUT, 2, released)
    assert kept.tolist() == [0, 43, 44, 45, 46, 47]
    assert fl.PublicTopK(0.1).select(LAYOUT, 1, None) is None
    assert fl.PublicTopK(1.0).select(LAYOUT, 2, released) is None
    assert fl.PublicTopK(0.1, refresh=3).select(LAYOUT, 4, released) is None
    assert fl.PublicTopK(0.1, refresh=3).select(LAYOUT, 5, released) is not None


@dataclass(frozen=True)
class Sparse(Method):
    mask: Mask = field(default_factory=lambda: fl.RandomK(0.25))


@pytest.mark.parametrize(("secure", "vectorize"), [(False, True), (True, False)])
def test_only_kept_coordinates_move_and_only_they_get_noise(secure, vectorize):
    model = perceptron()
    before = flat(model)
    layout = Layout.of(dict(model.named_parameters()))
    with federation(
        model, make_clients([6] * 4), method=Sparse(), rounds=1, secure_noise=secure,
        vectorize=vectorize,
    ) as run:  # fmt: skip
        run.run()
    moved = (flat(model) != before).nonzero().flatten()
    assert torch.equal(moved, fl.RandomK(0.25).select(layout, 1, None))


def test_layers_have_their_own_bounds_under_a_mask_too():
    options = {"bound": fl.PerLayerClip((0.1, 0.2, 0.3, 0.4)), "secure_noise": True}
    with federation(perceptron(), make_clients([6] * 3), method=Sparse(), **options) as run:
        assert run.run().released


def test_layouts_flatten_and_restore():
    params = {
        "w": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor([7.0]),
        "s": torch.tensor(8.0),
    }
    layout = Layout.of(params)
    vector = layout.flatten(params)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    back = layout.unflatten(vector)
    assert all(torch.equal(back[name], params[name]) for name in params)
    stacked = {name: torch.stack([value, 2 * value]) for name, value in params.items()}
    assert torch.equal(layout.flatten(stacked), torch.stack([vector, 2 * vector]))
    assert layout.segments == [(0, 6), (6, 7), (7, 8)]


def test_post_processing_keeps_the_shape_and_reaches_the_model():
    def posting(post):
        method = type("Posting", (Method,), {"post": lambda _, noised, __: post(noised)})()
        return federation(linear(), make_clients([6]), method=method)

    with posting(lambda noised: noised.map_tensors(torch.neg).map(lambda v: v * 0)) as run:
        run.run()
    assert torch.equal(flat(run.model), flat(linear()))
    short = posting(lambda noised: noised.map(lambda v: v[:-1]))
    with short, pytest.raises(InvalidParameter, match="keeps the shape"):
        short.run()


def test_what_a_release_says_of_itself():
    said = {}

    @dataclass(frozen=True)
    class Asking(Method):
        def server(self, params, noised, server_state):
            said[noised.round] = noised
            return dict(params), server_state

    with federation(
        linear(), make_clients([6] * 8), method=Asking(), sampling=fl.Poisson(0.5), clip_norm=2.0,
        noise_multiplier=3.0, server_lr=0.3, local=fl.SGD(lr=0.2, steps=5, lr_decay=0.5),
    ) as run:  # fmt: skip
        run.run()
    last = said[3]
    assert last.cohort_size == 4
    assert last.std == pytest.approx(3.0 * 2.0 / 4, rel=1e-9)
    assert (last.lr, last.steps, last.server_lr) == (0.05, 5, 0.3)
    assert {name: value.shape for name, value in last.tensors.items()} == {
        "weight": (3, 6),
        "bias": (3,),
    }
