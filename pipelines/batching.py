"""Batches pairs of similar lengths under a token budget.

The budget is the largest number of ids on each side of a batch, including padding.

"Sentence pairs were batched together by approximate sequence length" (the paper,
section 5.1). A pair has two lengths, so a bucket is a rectangle in the plane of source
and target lengths. The buckets form a binary tree, whose root contains the whole
corpus. In each step, the leaf whose split saves the most padding is split in two, until
no split saves padding or the number of leaves reaches its limit. Each half of a split
must fill at least `_MIN_BATCHES` batches. Each pair belongs to one leaf.

Pairs that do not fill a bucket's last batch move to the parent bucket, up to the root.
At most one batch of an epoch is not full. Without weights, an epoch contains every pair
once. This module uses NumPy only.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.errors import DataError

# Minimum number of batches per epoch in a leaf. With fewer, a leaf would leave many of
# its pairs to its parent.
_MIN_BATCHES = 2


class Copies(NamedTuple):
    """Changed copies of a part of the pairs of an epoch."""

    share: float  # of the pairs
    # Function of the lengths of pairs, an int array, that returns those of the copies.
    bound: Callable


_PAIRS = Copies(1.0, np.asarray)  # the pairs themselves


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A rectangle in the plane of source and target lengths."""

    source_length: int  # length of the longest source, including the end id
    target_length: int
    batch_size: int  # maximum number of pairs within the token budget
    parent: int  # index of the bucket that this one was split from, -1 for the root
    num_pairs: int = 0  # pairs per epoch that belong to no smaller bucket


def plan_buckets(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    batch_tokens: int,
    max_leaves: int = 32,
    weights: np.ndarray | None = None,
    copies: Sequence[Copies] = (),
) -> tuple[list[Bucket], np.ndarray]:
    """Splits a corpus into buckets, given the lengths of its pairs with end ids.

    The arrays are `[num_pairs]`. `weights` are the numbers of times that an epoch
    contains each pair. The rows of the corpus are its pairs, followed by all pairs once
    more for each of the `copies`. Returns the tree as a list, every parent before its
    children, the root first, and each row's leaf as an index into the list, an integer
    array `[num_rows]`.
    """
    lengths = np.asarray(source_lengths), np.asarray(target_lengths)
    width = check_budget(*lengths, batch_tokens, copies) + 1

    def keys_of(copy):
        source, target = map(copy.bound, lengths)
        return source.astype(np.int64) * width + target

    # A cell is a distinct combination of source and target length. Even a huge corpus
    # has only thousands of cells.
    kinds = [_PAIRS, *copies]
    found = [np.unique(keys_of(copy), return_counts=True) for copy in kinds]
    keys = np.unique(np.concatenate([each for each, _ in found]))
    counts = np.zeros(len(keys), np.int64)
    for (each, count), copy in zip(found, kinds, strict=True):
        counts[np.searchsorted(keys, each)] += np.ceil(copy.share * count).astype(int)
    cells = np.stack([keys // width, keys % width], axis=1)
    buckets = [_bucket(cells, batch_tokens, parent=-1)]
    leaf_of_cell = np.zeros(len(keys), np.int32)
    # For each leaf, the result of `_best_split`.
    splits = {0: _best_split(cells, counts, batch_tokens)}
    while len(splits) < max_leaves:
        parent = max(splits, key=lambda leaf: splits[leaf][0])
        saved, axis, cut = splits.pop(parent)
        if saved <= 0:
            break
        inside = leaf_of_cell == parent
        for half in (cells[:, axis] <= cut, cells[:, axis] > cut):
            in_half = inside & half
            leaf_of_cell[in_half] = len(buckets)
            half_cells = cells[in_half]
            splits[len(buckets)] = _best_split(
                half_cells, counts[in_half], batch_tokens
            )
            buckets.append(_bucket(half_cells, batch_tokens, parent))
    leaf_of_cell = leaf_of_cell.astype(np.min_scalar_type(len(buckets)))
    leaf_of_row = np.concatenate(
        [leaf_of_cell[np.searchsorted(keys, keys_of(copy))] for copy in kinds]
    )
    return _count_pairs(buckets, leaf_of_row, weights, copies), leaf_of_row


def plan_few_buckets(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    batch_tokens: int,
    max_buckets: int = 6,
    weights: np.ndarray | None = None,
    copies: Sequence[Copies] = (),
) -> tuple[list[Bucket], np.ndarray]:
    """Divides a corpus into a few buckets with one length for both sides.

    For XLA, which compiles once per shape. Arguments and results match
    `plan_buckets`, but the buckets form a chain: the first one has the longest pairs,
    and each is the parent of the next. No other lengths have less padding.
    """
    longest = check_budget(source_lengths, target_lengths, batch_tokens, copies)
    lengths, kinds = np.maximum(source_lengths, target_lengths), [_PAIRS, *copies]
    num_shorter = np.zeros(longest + 1)  # rows of at most each length
    for copy in kinds:
        counts = np.bincount(copy.bound(lengths), minlength=longest + 1)
        num_shorter += np.cumsum(np.ceil(copy.share * counts))
    length = np.arange(len(num_shorter))
    # Positions in a bucket of the pairs above one length (rows), up to another one.
    costs = (num_shorter - num_shorter[:, None]) * length.astype(float)
    costs[length[:, None] > length] = np.inf
    least = np.where(length == 0, 0.0, np.inf)  # positions up to each length
    lower = []  # for each number of buckets, the last bucket's lower bound
    for _ in range(max_buckets):
        totals = least[:, None] + costs
        lower.append(np.argmin(totals, axis=0))
        least = np.min(totals, axis=0)
    ends = [int(length[-1])]
    while lower and ends[-1]:
        ends.append(int(lower.pop()[ends[-1]]))
    highest = [
        high
        for high, low in itertools.pairwise([*ends, 0])
        if num_shorter[high] > num_shorter[low]
    ]
    buckets = [
        Bucket(high, high, batch_tokens // high, parent=number - 1)
        for number, high in enumerate(highest)
    ]
    bucket_of_length = len(highest) - 1 - np.searchsorted(highest[::-1], length)
    bucket_of_length = bucket_of_length.astype(np.uint8)
    bucket_of_row = np.concatenate(
        [bucket_of_length[copy.bound(lengths)] for copy in kinds]
    )
    return _count_pairs(buckets, bucket_of_row, weights, copies), bucket_of_row


def _count_pairs(buckets, bucket_of_row, weights, copies):
    """Returns the buckets with the numbers of their rows in an epoch."""
    drawn = bucket_of_row
    if weights is not None or copies:
        random = np.random.default_rng(0)
        drawn = drawn[sample_rows(bucket_of_row, weights, copies, random)]
    return [
        dataclasses.replace(bucket, num_pairs=int(count))
        for bucket, count in zip(
            buckets, np.bincount(drawn, minlength=len(buckets)), strict=True
        )
    ]


def sample_rows(
    leaf_of_row: np.ndarray,
    weights: np.ndarray | None,
    copies: Sequence[Copies],
    random: np.random.Generator,
) -> np.ndarray:
    """Samples the rows of an epoch (see `plan_buckets`), not shuffled."""
    drawn, kinds = [], [_PAIRS, *copies]
    leaves = leaf_of_row.reshape(len(kinds), -1)
    num_pairs = leaves.shape[1]
    for number, (leaf_of_pair, copy) in enumerate(zip(leaves, kinds, strict=True)):
        if copy is _PAIRS and weights is None:
            drawn.append(np.arange(num_pairs))
            continue
        scaled = copy.share * (np.ones(num_pairs) if weights is None else weights)
        found = sample_weighted_pairs(leaf_of_pair, scaled, random)
        drawn.append(number * num_pairs + found)
    return np.concatenate(drawn)


def sample_weighted_pairs(
    leaf_of_pair: np.ndarray, weights: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Samples the pairs of an epoch by their weights.

    A pair with weight 2.3 occurs twice. In addition, 30% of the pairs whose weights
    have the fractional part 0.3 are drawn once more. Their number is rounded up, over
    all leaves together. A leaf has the same number of pairs in every epoch. Returns
    the pairs' indices, not shuffled.
    """
    copies = np.floor(weights).astype(np.int64)
    fractions = weights - copies
    # Floating-point error, as in 0.1 * 3 / 0.1.
    fractions[(fractions < 1e-6) & (copies > 0)] = 0
    drawn = [np.repeat(np.arange(len(weights)), copies)]
    for fraction in np.unique(fractions[fractions > 0]):
        candidates = np.flatnonzero(fractions == fraction)
        before = 0  # pairs drawn from the previous leaves
        num_candidates = 0
        for leaf in np.unique(leaf_of_pair[candidates]):
            members = candidates[leaf_of_pair[candidates] == leaf]
            num_candidates += len(members)
            # Without `round`, floating-point error would draw 31 extra pairs instead of
            # 30 for 100 pairs with weight 1.3.
            total = max(1, int(np.ceil(round(fraction * num_candidates, 6))))
            drawn.append(random.choice(members, total - before, replace=False))
            before = total
    return np.concatenate(drawn)


def check_budget(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    batch_tokens: int,
    copies: Sequence[Copies] = (),
) -> int:
    """Returns the maximum length, or raises a `DataError` if it exceeds a batch."""
    longest = np.maximum(source_lengths.max(), target_lengths.max())
    longest = int(max(copy.bound(longest) for copy in [_PAIRS, *copies]))
    if batch_tokens < longest:
        raise DataError(
            "`batch_tokens` must be at least the longest sentence. Received: "
            f"batch_tokens={batch_tokens}, longest sentence={longest}. Increase it "
            "(training.batch_tokens) or drop longer pairs (data.max_length)"
        )
    return longest


def check_start(seed: int, start_step: int) -> None:
    """Raises a `DataError` if the seed or the first step of training is negative."""
    if seed < 0 or start_step < 0:
        raise DataError(
            "`seed` and `start_step` must not be negative. "
            f"Received: seed={seed}, start_step={start_step}"
        )


def batches_per_epoch(buckets: Sequence[Bucket]) -> int:
    """Returns the number of batches in an epoch."""
    num_batches = 0
    # Number of pairs in each bucket that are in no batch yet.
    waiting = [bucket.num_pairs for bucket in buckets]
    # Children come after their parents, so this order moves all remainders up.
    for number in range(len(buckets) - 1, 0, -1):
        full, rest = divmod(waiting[number], buckets[number].batch_size)
        num_batches += full
        waiting[buckets[number].parent] += rest
    return num_batches + -(-waiting[0] // buckets[0].batch_size)


def epoch_order(
    buckets: Sequence[Bucket],
    leaf_of_pair: np.ndarray,
    seed: int,
    epoch: int,
    weights: np.ndarray | None = None,
    copies: Sequence[Copies] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffles the corpus for an epoch. Equal arguments give equal orders.

    Returns the rows' indices batch by batch, with the batches in random order, and the
    bucket in which each of these rows is batched, int64 and int32 `[rows in epoch]`.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(sample_rows(leaf_of_pair, weights, copies, random))
    bucket_of_position = leaf_of_pair[order].astype(np.int32)
    waiting = _positions(bucket_of_position, len(buckets))
    for number in range(len(buckets) - 1, 0, -1):
        bucket, positions = buckets[number], waiting[number]
        rest = positions[len(positions) // bucket.batch_size * bucket.batch_size :]
        bucket_of_position[rest] = bucket.parent
        waiting[bucket.parent] = np.concatenate([waiting[bucket.parent], rest])
    batches = [
        positions[start : start + bucket.batch_size]
        for bucket, positions in zip(
            buckets, _positions(bucket_of_position, len(buckets)), strict=True
        )
        for start in range(0, len(positions), bucket.batch_size)
    ]
    random.shuffle(batches)
    # A batch that is not full can be anywhere in this order. The dataset emits it last,
    # because tf.data's `bucket_by_sequence_length` forms the batches.
    positions = np.concatenate(batches)
    return order[positions], bucket_of_position[positions]


def epoch_batches(
    buckets: Sequence[Bucket], order: np.ndarray, bucket_of_position: np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """Divides an `epoch_order` into batches, each `(pair indices, bucket index)`.

    The batches are those of tf.data's `bucket_by_sequence_length`: one is complete at
    its last pair, and one that is not full comes last.
    """
    batches = []
    for number, positions in enumerate(_positions(bucket_of_position, len(buckets))):
        size = buckets[number].batch_size
        for start in range(0, len(positions), size):
            batch = positions[start : start + size]
            place = len(batch) < size, int(batch[-1])
            batches.append((place, order[batch], number))
    batches.sort(key=lambda batch: batch[0])
    return [(indices, number) for _, indices, number in batches]


def skip_batches(
    buckets: Sequence[Bucket],
    order: np.ndarray,
    bucket_of_position: np.ndarray,
    num_batches: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an `epoch_order` without the pairs of its first `epoch_batches`."""
    if not num_batches:
        return order, bucket_of_position
    positions = np.arange(len(order))
    batches = epoch_batches(buckets, positions, bucket_of_position)
    is_left = np.ones(len(order), bool)
    is_left[np.concatenate([each for each, _ in batches[:num_batches]])] = False
    return order[is_left], bucket_of_position[is_left]


def sorted_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int
) -> list[np.ndarray]:
    """Sorts the corpus by length and splits it into batches of pair indices."""
    check_budget(source_lengths, target_lengths, batch_tokens)
    order = np.lexsort((source_lengths, target_lengths))
    batches = []
    start = longest = 0
    for position, index in enumerate(order):
        longest = max(longest, int(source_lengths[index]), int(target_lengths[index]))
        if longest * (position - start + 1) > batch_tokens:
            batches.append(order[start:position])
            start = position
            longest = int(max(source_lengths[index], target_lengths[index]))
    return [*batches, order[start:]]


def _positions(bucket_of_position: np.ndarray, num_buckets: int) -> list[np.ndarray]:
    """Returns for each bucket the positions of its pairs, in ascending order."""
    by_bucket = np.argsort(bucket_of_position, kind="stable")
    sizes = np.bincount(bucket_of_position, minlength=num_buckets)
    return np.split(by_bucket, np.cumsum(sizes)[:-1])


def _bucket(cells: np.ndarray, batch_tokens: int, parent: int) -> Bucket:
    source_length, target_length = map(int, cells.max(axis=0))
    batch_size = batch_tokens // max(source_length, target_length)
    return Bucket(source_length, target_length, batch_size, parent)


def _best_split(
    cells: np.ndarray, counts: np.ndarray, batch_tokens: int
) -> tuple[int, int, int]:
    """Finds the split of a bucket that saves the most padding.

    `cells` are distinct (source, target) lengths `[num_cells, 2]`, and `counts` their
    numbers of pairs. Returns the number of padding ids saved, 0 if there is no such
    split, the axis (0 for the source), and the maximum length in the lower half.
    """
    best = (0, 0, 0)
    padded = int(counts.sum() * cells.max(axis=0).sum())
    for axis in (0, 1):
        # Entry i of the following arrays describes the split whose lower half is the
        # first i + 1 cells in this order.
        order = np.argsort(cells[:, axis], kind="stable")
        ordered, sizes = cells[order], counts[order]
        below = np.cumsum(sizes)[:-1]
        above = counts.sum() - below
        longest_below = np.maximum.accumulate(ordered)[:-1]
        longest_above = np.maximum.accumulate(ordered[::-1])[::-1][1:]
        saved = padded - below * longest_below.sum(axis=1)
        saved -= above * longest_above.sum(axis=1)
        useful = (
            (ordered[:-1, axis] < ordered[1:, axis])
            & (below * longest_below.max(axis=1) >= _MIN_BATCHES * batch_tokens)
            & (above * longest_above.max(axis=1) >= _MIN_BATCHES * batch_tokens)
        )
        saved = np.where(useful, saved, 0)
        if len(saved) and saved.max() > best[0]:
            at = int(saved.argmax())
            best = (int(saved[at]), axis, int(ordered[at, axis]))
    return best
