"""How many examples are computed at a time."""

from __future__ import annotations

import pytest

from dpacct.fl.trainers.sizes import Sizes

LADDERS = [Sizes(32, 96, 32), Sizes(96, 288, 32), Sizes(64, 256, 64), Sizes.one(160)]


@pytest.mark.parametrize("sizes", LADDERS)
def test_everybody_is_in_one_group_of_few_and_of_like_sizes(sizes: Sizes):
    for count in range(1, 1200):
        groups = sizes.groups(count)
        assert sum(groups) == count
        assert len(groups) == -(-count // sizes.most)
        held = [sizes.holding(length) for length in groups]
        assert all(0 < few <= size <= sizes.most for few, size in zip(groups, held, strict=True))
        assert all((size - sizes.least) % sizes.step == 0 for size in held)
        assert max(held) - min(held) <= sizes.step
        # Nobody stands beside somebody but at the end.
        assert all(length % sizes.step == 0 for length in groups[:-1])
    assert sizes.groups(0) == []


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("sizes", LADDERS)
def test_parts_for_threads_take_no_more_than_the_group(sizes: Sizes, threads: int):
    for count in range(1, sizes.most + 1):
        parts = sizes.parts(count, threads)
        assert sum(parts) == count
        assert 1 <= len(parts) <= threads
        assert sum(map(sizes.holding, parts)) <= sizes.holding(count)
        assert max(map(sizes.holding, parts)) - min(map(sizes.holding, parts)) <= sizes.step


def test_a_group_is_split_as_far_as_there_are_threads_and_sizes():
    assert Sizes(32, 288, 32).parts(256, 2) == [128, 128]
    assert Sizes(32, 288, 32).parts(70, 2) == [64, 6]
    assert Sizes(64, 288, 32).parts(160, 4) == [96, 64]
    assert Sizes.one(160).parts(150, 4) == [150]
    assert Sizes(32, 288, 32).groups(1024) == [256] * 4
