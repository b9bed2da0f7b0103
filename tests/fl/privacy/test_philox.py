"""Philox in torch, beside NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpacct.fl.privacy import philox

CPU = torch.device("cpu")
WORD = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**63, 2**64 - 2, 2**64 - 1])
KEYS = st.lists(WORD, min_size=2, max_size=2)
COUNTERS = st.lists(WORD, min_size=4, max_size=4)


def raw(key, counter, count):
    generator = np.random.Philox(
        key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64)
    )
    return generator.random_raw(count)


def unsigned(words: torch.Tensor) -> np.ndarray:
    return words.flatten().numpy().view(np.uint64)


@given(KEYS, COUNTERS, st.integers(0, 9))
def test_words_are_those_of_numpy(key, counter, blocks):
    found = philox.words(key, counter, blocks, CPU)
    assert found.shape == (blocks, 4)
    assert np.array_equal(unsigned(found), raw(key, counter, 4 * blocks))


@pytest.mark.parametrize("full", [1, 2, 3, 4])
def test_a_counter_carries_into_all_its_words(full):
    key, counter = [5, 7], [2**64 - 4] + [2**64 - 1] * (full - 1) + [3] * (4 - full)
    assert np.array_equal(unsigned(philox.words(key, counter, 8, CPU)), raw(key, counter, 32))


def test_known_answer():
    # Random123's kat_vectors: philox4x64 10, counter and key of pi's digits. Its block is that of
    # the counter itself.
    key = [0x452821E638D01377, 0xBE5466CF34E90C6C]
    counter = [0x243F6A8885A308D3 - 1, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
    expected = [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6]
    assert unsigned(philox.words(key, counter, 1, CPU)).tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1000])
def test_slabs_do_not_show(monkeypatch, size):
    whole = philox.normals([1, 2], [3, 4, 5, 6], size, CPU)
    assert whole.shape == (size,)
    assert whole.dtype == torch.float64
    monkeypatch.setattr(philox, "_SLAB", 7)
    assert torch.equal(philox.normals([1, 2], [3, 4, 5, 6], size, CPU), whole)


def test_the_law_is_gaussian():
    # One key, so that this holds or not for good.
    found = philox.normals([11, 12], [13, 14, 15, 16], 400_000, CPU)
    assert stats.kstest(found.numpy(), "norm").pvalue > 0.01
    pairs = found.view(-1, 4)
    # Neighbors, and their squares, know nothing of each other.
    for one in range(4):
        for other in range(one):
            for power in (1, 2):
                both = torch.stack([pairs[:, one] ** power, pairs[:, other] ** power])
                assert abs(float(torch.corrcoef(both)[0, 1])) < 4.5 / math.sqrt(len(pairs))
    assert abs(float((found**4).mean()) - 3) < 4.5 * math.sqrt(96 / len(found))


@pytest.mark.parametrize("word", [0, 1, -1, -(2**63), 2**63 - 1, 2**32, -(2**32)])
def test_no_word_makes_what_is_not_finite(monkeypatch, word):
    monkeypatch.setattr(philox, "words", lambda *_: torch.full((1, 4), word))
    found = philox.normals([0, 0], [0] * 4, 4, CPU)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) <= 9.4926
