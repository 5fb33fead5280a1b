"""Buckets and the order of batches, against their definitions and brute force.

A bucket contains pairs of similar lengths. Buckets form a binary tree, and each pair
belongs to a leaf. Pairs that do not fill a bucket's last batch move to the parent.
"""

import itertools
from collections import Counter

import numpy as np
import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines.batching import (
    batches_per_epoch,
    epoch_order,
    plan_buckets,
    plan_few_buckets,
    sample_weighted_pairs,
    sorted_batches,
)


def random_lengths(num_pairs, seed=0):
    """Returns correlated source and target lengths, some long, as in a real corpus."""
    generator = np.random.default_rng(seed)
    source = generator.gamma(5, 3, num_pairs).astype(int) + 2
    target = (source * generator.normal(1.1, 0.25, num_pairs)).astype(int).clip(2)
    return source, target


def epoch_batches(buckets, leaves, seed, epoch):
    """Returns (bucket index, pair indices) of each batch, bucket by bucket."""
    order, numbers = epoch_order(buckets, leaves, seed, epoch)
    batches = []
    for number, bucket in enumerate(buckets):
        inside = order[numbers == number]
        starts = range(0, len(inside), bucket.batch_size)
        batches += [(number, inside[at : at + bucket.batch_size]) for at in starts]
    return batches


@pytest.mark.parametrize("num_pairs", [1, 2, 103, 5003])
@pytest.mark.parametrize("batch_tokens", [97, 701])
@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("plan", [plan_buckets, plan_few_buckets])
def test_epoch_contains_every_pair_once_in_its_bucket(
    num_pairs, batch_tokens, seed, plan
):
    lengths = random_lengths(num_pairs, seed)
    buckets, leaves = plan(*lengths, batch_tokens)
    batches = epoch_batches(buckets, leaves, seed, epoch=3)
    counts = Counter(index for _, batch in batches for index in batch.tolist())
    assert counts == Counter(range(num_pairs))
    assert len(batches) == batches_per_epoch(buckets)
    for number, batch in batches:
        bucket = buckets[number]
        assert lengths[0][batch].max() <= bucket.source_length
        assert lengths[1][batch].max() <= bucket.target_length
        longest = max(bucket.source_length, bucket.target_length)
        assert longest * bucket.batch_size <= batch_tokens
        assert longest * (bucket.batch_size + 1) > batch_tokens
    # Only the root, bucket 0, may have a batch that is not full.
    short = [n for n, batch in batches if len(batch) < buckets[n].batch_size]
    assert short in ([], [0])


def test_buckets_form_a_tree():
    lengths = random_lengths(5003)
    buckets, leaves = plan_buckets(*lengths, 499, max_leaves=11)
    parents = {bucket.parent for bucket in buckets}
    assert set(leaves.tolist()) == set(range(len(buckets))) - parents
    assert len(set(leaves.tolist())) == 11
    assert buckets[0].parent == -1
    for number, bucket in enumerate(buckets[1:], start=1):
        parent = buckets[bucket.parent]
        assert bucket.parent < number
        assert bucket.source_length <= parent.source_length
        assert bucket.target_length <= parent.target_length
        assert [b.parent for b in buckets].count(bucket.parent) == 2
        assert parent.num_pairs == 0
    for leaf in set(leaves.tolist()):
        inside = leaves == leaf
        assert inside.sum() == buckets[leaf].num_pairs
        assert lengths[0][inside].max() == buckets[leaf].source_length
        assert lengths[1][inside].max() == buckets[leaf].target_length


def test_first_split_matches_brute_force():
    source, target = random_lengths(397, seed=2)
    buckets, leaves = plan_buckets(source, target, 60, max_leaves=2)
    assert len(buckets) == 3

    def padded(inside):
        return inside.sum() * (source[inside].max() + target[inside].max())

    costs = {}
    for axis, lengths in enumerate((source, target)):
        for cut in np.unique(lengths)[:-1]:
            below = lengths <= cut
            # Each half must fill at least two batches.
            has_two_batches = [
                half.sum() * max(source[half].max(), target[half].max()) >= 2 * 60
                for half in (below, ~below)
            ]
            if all(has_two_batches):
                costs[axis, cut] = padded(below) + padded(~below)
    found = padded(leaves == 1) + padded(leaves == 2)
    assert found == min(costs.values())
    assert len(costs) > 20


@pytest.mark.parametrize("max_buckets", [1, 2, 3, 20])
def test_few_buckets_have_the_least_padding(max_buckets):
    source, target = random_lengths(97, seed=2)
    lengths = np.maximum(source, target)
    buckets, bucket_of_pair = plan_few_buckets(source, target, 99, max_buckets)
    assert len(buckets) <= max_buckets
    assert [bucket.parent for bucket in buckets] == [*range(-1, len(buckets) - 1)]
    for number, bucket in enumerate(buckets):
        inside = bucket_of_pair == number
        assert bucket.num_pairs == inside.sum() > 0
        assert bucket.source_length == bucket.target_length == lengths[inside].max()
    found = sum(bucket.num_pairs * bucket.source_length for bucket in buckets)
    choices = itertools.combinations(np.unique(lengths), min(max_buckets, 3))
    bounds = [sorted({*chosen, lengths.max()}) for chosen in choices]
    positions = [
        sum(ends[np.searchsorted(ends, length)] for length in lengths)
        for ends in bounds
        if len(ends) <= max_buckets
    ]
    if max_buckets <= 3:
        assert found == min(positions)
    else:
        assert found == lengths.sum() or len(buckets) == max_buckets


def test_epoch_order_depends_on_seed_and_epoch():
    lengths = random_lengths(1009)
    buckets, leaves = plan_buckets(*lengths, 499)
    orders = {
        (seed, epoch): epoch_order(buckets, leaves, seed, epoch)[0].tobytes()
        for seed in (0, 1, 7)
        for epoch in (0, 1, 7)
    }
    assert len(set(orders.values())) == 9
    # NumPy's global generator must not change the order.
    np.random.seed(3)
    for (seed, epoch), order in reversed(orders.items()):
        assert epoch_order(buckets, leaves, seed, epoch)[0].tobytes() == order


def test_epoch_order_shuffles_batches():
    """An epoch's order consists of its batches, one after another."""
    lengths = random_lengths(5003)
    buckets, leaves = plan_buckets(*lengths, 499)
    order, numbers = epoch_order(buckets, leaves, seed=1, epoch=0)
    at, widths = 0, []
    while at < len(order):
        bucket = buckets[numbers[at]]
        batch = numbers[at : at + bucket.batch_size]
        # The only batch that may be short is in the root, bucket 0. It may be anywhere.
        size = len(batch) if (batch == batch[0]).all() else (batch == 0).argmin()
        widths.append(bucket.source_length)
        at += size
    assert len(widths) == batches_per_epoch(buckets)
    # In random order, neighbors differ about as much as any two batches do.
    differences = np.abs(np.subtract.outer(widths, widths)).mean()
    assert np.abs(np.diff(widths)).mean() > 0.8 * differences


def test_leftover_pairs_change_with_the_epoch():
    lengths = random_lengths(5003)
    buckets, leaves = plan_buckets(*lengths, 499)
    moved = []
    for epoch in range(2):
        order, numbers = epoch_order(buckets, leaves, 1, epoch)
        # Pairs whose batch is not in their leaf were left over there.
        moved.append(set(order[numbers != leaves[order]].tolist()))
    assert len(moved[0]) == len(moved[1]) > 50
    assert len(moved[0] & moved[1]) < len(moved[0]) / 2


def padding_fraction(batches, *lengths):
    """Returns the fraction of padding ids on both sides of batches of pair indices."""
    sides = [side[batch] for batch in batches for side in lengths]
    return 1 - sum(map(np.sum, sides)) / sum(side.max() * len(side) for side in sides)


def test_buckets_reduce_padding_to_a_third():
    lengths = random_lengths(20_011)
    fractions = []
    # A single leaf means batches of random pairs.
    for max_leaves in (1, 32):
        buckets, leaves = plan_buckets(*lengths, 4096, max_leaves=max_leaves)
        batches = [batch for _, batch in epoch_batches(buckets, leaves, 1, 0)]
        fractions.append(padding_fraction(batches, *lengths))
    assert fractions[1] < fractions[0] / 3


def test_sorted_batches_contain_every_pair_once():
    source, target = random_lengths(1009)
    batches = sorted_batches(source, target, 499)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1009))
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert max(source[batch].max(), target[batch].max()) * len(batch) <= 499
        if following is not None:
            more = np.append(batch, following[0])
            assert max(source[more].max(), target[more].max()) * len(more) > 499


# 0.1 * 3 / 0.1 exceeds 3 by floating-point error.
@pytest.mark.parametrize(("weight", "expected"), [(1.3, 130), (0.1 * 3 / 0.1, 300)])
def test_weights_set_the_number_of_drawn_pairs(weight, expected):
    random = np.random.default_rng(0)
    drawn = sample_weighted_pairs(np.zeros(100, int), np.full(100, weight), random)
    assert len(drawn) == expected


@pytest.mark.parametrize(("weight", "expected"), [(0.01, 4), (0.3, 120), (1e-7, 1)])
def test_weights_are_rounded_over_all_leaves(weight, expected):
    leaves = np.repeat(np.arange(40), 10)
    draws = [
        sample_weighted_pairs(leaves, np.full(400, weight), np.random.default_rng(seed))
        for seed in (0, 1)
    ]
    counts = [np.bincount(leaves[drawn], minlength=40) for drawn in draws]
    assert counts[0].sum() == expected
    np.testing.assert_array_equal(*counts)


def test_budget_below_longest_sentence_is_rejected():
    source, target = np.array([3, 11, 4]), np.array([5, 6, 12])
    message = r"Received: batch_tokens=11, longest sentence=12"
    for plan in (plan_buckets, plan_few_buckets, sorted_batches):
        plan(source, target, 12)
        with pytest.raises(DataError, match=message):
            plan(source, target, 11)
        with pytest.raises(DataError, match=r"batch_tokens=10, longest sentence=11"):
            plan(source[:2], target[:2], 10)
