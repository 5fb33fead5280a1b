"""Builds tf.data pipelines that turn an encoded corpus into batches of ids."""

import math

import numpy as np
import tensorflow as tf

from keras_transformer.pipelines.batching import (
    batches_per_epoch,
    check_start,
    plan_buckets,
    plan_few_buckets,
    sample_rows,
    sorted_batches,
)
from keras_transformer.pipelines.encoded_corpus import EncodedCorpus
from keras_transformer.pipelines.training_batches import BatchOrder


def training_dataset(
    corpus: EncodedCorpus,
    batch_tokens: int,
    seed: int = 1,
    start_step: int = 0,
    num_replicas: int = 1,
    pad_to_bucket: bool = False,
    shard: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:
    """Returns an endless dataset of shuffled batches for training.

    Each epoch contains every pair once, or as often as `corpus.weights` requires. The
    order of an epoch depends on the seed and the epoch's number alone. The numbers of
    replicas and shards do not change which pairs share a batch.

    Args:
        corpus: The `EncodedCorpus`.
        batch_tokens: Maximum number of ids on each side of a batch, padding included
            (25,000 in the paper). Rows added for replicas do not count.
        seed: Seed for shuffling, not negative.
        start_step: Number of batches to skip, for resuming.
        num_replicas: Number of replicas. Batches get rows of padding up to a multiple
            of this number.
        pad_to_bucket: Whether batches have at most six shapes, as XLA compiles each
            shape once.
        shard: `(index, count)` of one of several workers, which gets every `count`-th
            row of each batch, from row `index`.

    Returns:
        Dataset of `({"source_ids": int32 [batch, source_length], "target_ids": int32
        [batch, target_length]}, labels int32 [batch, target_length])`. `target_ids`
        begin with the start id, and `labels` end with the end id instead.

    Raises:
        ValueError: If `shard` is invalid.
        DataError: If the longest sentence exceeds `batch_tokens`, or if `seed` or
            `start_step` is negative.
    """
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(
            f"`shard` must be (index, count) with index < count. Received: {shard}."
        )
    check_start(seed, start_step)
    order = _order(corpus, batch_tokens, seed, pad_to_bucket)
    multiple = math.lcm(num_replicas, shard[1])

    def padded_batch(number):
        rows, bucket, epoch = order[number]
        bucket = bucket if pad_to_bucket else None
        return corpus.padded_batch(rows, bucket, multiple, shard, epoch)

    numbers = tf.data.Dataset.counter(start_step)
    return _ids_dataset(numbers, padded_batch, corpus.input_names)


def _order(corpus, batch_tokens, seed, pad_to_bucket):
    planner = plan_few_buckets if pad_to_bucket else plan_buckets
    return BatchOrder(corpus, batch_tokens, seed, planner)


def batch_indices(
    corpus: EncodedCorpus,
    batch_tokens: int,
    seed: int,
    step: int,
    pad_to_bucket: bool = False,
) -> np.ndarray:
    """Returns the rows of the pairs in a batch of `training_dataset`.

    They are those of all workers together.

    Args:
        corpus: The `EncodedCorpus`.
        batch_tokens: As for `training_dataset`.
        seed: As for `training_dataset`.
        step: Number of the batch, counted from 1.
        pad_to_bucket: As for `training_dataset`.

    Returns:
        int array `[batch]`.

    Raises:
        DataError: If the longest sentence exceeds `batch_tokens`.
    """
    rows, _, _ = _order(corpus, batch_tokens, seed, pad_to_bucket)[step - 1]
    return rows


def epoch_rows(corpus: EncodedCorpus) -> np.ndarray:
    """Returns the rows of a corpus in an epoch of training, in no particular order.

    If the corpus has weights, they are a sample of about the size of an epoch.
    """
    one_leaf = np.zeros(corpus.num_pairs * (1 + len(corpus.copies)), np.uint8)
    random = np.random.default_rng(0)
    return sample_rows(one_leaf, corpus.weights, corpus.copies, random)


def evaluation_dataset(
    corpus: EncodedCorpus,
    batch_tokens: int,
    num_replicas: int = 1,
    rows: np.ndarray | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of batches that contain every pair once, sorted by length.

    The elements have the same form as in `training_dataset`. The cardinality is known.

    Args:
        corpus: The `EncodedCorpus`.
        batch_tokens: Maximum number of ids on each side of a batch, padding included.
        num_replicas: Number of replicas. Batches get rows of padding up to a multiple
            of this number.
        rows: int array of the indices of the pairs. If `None`, all pairs.

    Raises:
        DataError: If the longest sentence exceeds `batch_tokens`.
    """
    rows = np.arange(corpus.num_pairs) if rows is None else rows
    batches = sorted_batches(*corpus.lengths(rows), batch_tokens)
    return _ids_dataset(
        tf.data.Dataset.range(len(batches)),
        lambda number: corpus.padded_batch(rows[batches[number]], None, num_replicas),
        corpus.input_names,
    )


def steps_per_epoch(corpus: EncodedCorpus, batch_tokens: int) -> int:
    """Returns the number of batches in each epoch of `training_dataset`.

    Args:
        corpus: The `EncodedCorpus`.
        batch_tokens: As for `training_dataset`.

    Raises:
        DataError: If the longest sentence exceeds `batch_tokens`.
    """
    buckets, _ = corpus.plan(batch_tokens)
    return batches_per_epoch(buckets)


def _ids_dataset(dataset: tf.data.Dataset, padded_batch, names) -> tf.data.Dataset:
    """Converts elements to ids by a function that returns a `padded_batch`."""

    def load(*element):
        ids = tf.numpy_function(padded_batch, element, [tf.int32] * (len(names) + 1))
        source_ids, target_ids, labels, *groups = (
            tf.ensure_shape(each, [None, None]) for each in ids
        )
        inputs = source_ids, target_ids, *groups
        return dict(zip(names, inputs, strict=True)), labels

    dataset = dataset.map(load, num_parallel_calls=2, deterministic=True)
    options = tf.data.Options()
    # `padded_batch` already splits each batch among the workers. TensorFlow's automatic
    # sharding would split the data once more.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(8)
