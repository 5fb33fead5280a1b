"""Builds tf.data pipelines that turn an encoded corpus into batches of ids."""

import math

import numpy as np
import tensorflow as tf

from keras_transformer.pipelines.batching import (
    Bucket,
    batches_per_epoch,
    check_start,
    epoch_batches,
    plan_buckets,
    plan_few_buckets,
    sample_rows,
    skip_batches,
    sorted_batches,
)
from keras_transformer.pipelines.encoded_corpus import EncodedCorpus


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
            shape once. On one GPU, Keras compiles unless `jit_compile=False`.
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

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> dataset = kt.pipelines.training_dataset(corpus, batch_tokens=100)
        >>> inputs, labels = next(iter(dataset))
        >>> print(inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape)
        (2, 8) (2, 6) (2, 6)
    """
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(
            f"`shard` must be (index, count) with index < count. Received: {shard}."
        )
    check_start(seed, start_step)
    plan = buckets, _ = _plan(corpus, batch_tokens, pad_to_bucket)
    steps = batches_per_epoch(buckets)
    multiple = math.lcm(num_replicas, shard[1])

    def padded_batch(indices, bucket, epoch):
        bucket = buckets[bucket] if pad_to_bucket else None
        return corpus.padded_batch(indices, bucket, multiple, shard, int(epoch))

    def order_of(epoch):
        order = corpus.epoch_order(plan, seed, int(epoch))
        # Pairs of skipped batches are left out here, since the dataset would take
        # minutes to skip them in a large epoch.
        num_skipped = start_step % steps if epoch == start_step // steps else 0
        return skip_batches(buckets, *order, num_skipped)

    def one_epoch(epoch):
        order = tf.numpy_function(order_of, [epoch], (tf.int64, tf.int32))
        return _index_batches(order, buckets, epoch)

    dataset = tf.data.Dataset.counter(start_step // steps).flat_map(one_epoch)
    dataset = _ids_dataset(dataset, padded_batch, corpus.input_names)
    return dataset.apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )


def _plan(corpus, batch_tokens, pad_to_bucket):
    planner = plan_few_buckets if pad_to_bucket else plan_buckets
    return corpus.plan(batch_tokens, planner)


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

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> rows = kt.pipelines.batch_indices(corpus, batch_tokens=100, seed=1, step=1)
        >>> sorted(rows.tolist())
        [0, 1]
    """
    plan = buckets, _ = _plan(corpus, batch_tokens, pad_to_bucket)
    epoch, before = divmod(step - 1, batches_per_epoch(buckets))
    return epoch_batches(buckets, *corpus.epoch_order(plan, seed, epoch))[before][0]


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

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> dataset = kt.pipelines.evaluation_dataset(corpus, batch_tokens=8)
        >>> for inputs, labels in dataset:
        ...     print(labels.shape)
        ...
        (1, 6)
        (1, 6)
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

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> kt.pipelines.steps_per_epoch(corpus, batch_tokens=8)
        2
        >>> kt.pipelines.steps_per_epoch(corpus, batch_tokens=100)
        1
    """
    buckets, _ = corpus.plan(batch_tokens)
    return batches_per_epoch(buckets)


def _index_batches(order, buckets: list[Bucket], epoch) -> tf.data.Dataset:
    """Returns batches `(pair indices [batch], bucket, epoch)` of an `epoch_order`."""
    order = tuple(tf.ensure_shape(each, [None]) for each in order)
    batches = tf.data.Dataset.from_tensor_slices(order).bucket_by_sequence_length(
        element_length_func=lambda _, bucket: bucket,
        bucket_boundaries=list(range(1, len(buckets))),
        bucket_batch_sizes=[bucket.batch_size for bucket in buckets],
        no_padding=True,
    )
    return batches.map(lambda indices, bucket: (indices, bucket[0], epoch))


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
