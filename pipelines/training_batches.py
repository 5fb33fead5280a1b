"""Training batches of a few constant shapes, made without TensorFlow."""

import functools
import threading

import keras

from keras_transformer.pipelines.batching import (
    batches_per_epoch,
    check_start,
    epoch_batches,
    plan_few_buckets,
)
from keras_transformer.pipelines.encoded_corpus import EncodedCorpus


class TrainingBatches(keras.utils.PyDataset):
    """Endless shuffled batches of at most six shapes, for `fit` on Keras's JAX backend.

    JAX compiles a training step once for each shape. Each epoch contains every pair
    once, or as often as `corpus.weights` requires. Its last batch is filled with rows
    of padding. The order of an epoch depends on the seed and the epoch's number alone.
    The elements have the same form as in `training_dataset`. Since it is endless, `fit`
    needs `steps_per_epoch`, and `shuffle=False` avoids a warning.

    Args:
        corpus: The `EncodedCorpus`.
        batch_tokens: Maximum number of ids on each side of a batch, padding included
            (25,000 in the paper).
        seed: Seed for shuffling, not negative.
        start_step: Number of batches to skip, for resuming.
        num_replicas: Number of replicas. Batches get rows of padding up to a multiple
            of this number.

    Attributes:
        steps_per_epoch: Number of batches in each epoch.
        shapes: Pairs of the shape of `source_ids` and that of the labels, one pair for
            each shape of batches.

    Raises:
        DataError: If the longest sentence exceeds `batch_tokens`, or if `seed` or
            `start_step` is negative.

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> batches = kt.pipelines.TrainingBatches(corpus, batch_tokens=100)
        >>> batches.steps_per_epoch, batches.shapes
        (1, [((12, 8), (12, 8))])
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        batch_tokens: int,
        seed: int = 1,
        start_step: int = 0,
        num_replicas: int = 1,
    ):
        # Two threads prepare the next batches while a step is computed.
        super().__init__(workers=2)
        check_start(seed, start_step)
        self._corpus, self._seed, self._start_step = corpus, seed, start_step
        self._num_replicas = num_replicas
        self._plan = corpus.plan(batch_tokens, plan_few_buckets)
        self.steps_per_epoch = batches_per_epoch(self._plan[0])
        rows = {
            bucket: -(-bucket.batch_size // num_replicas) * num_replicas
            for bucket in self._plan[0]
        }
        self.shapes = [
            ((count, bucket.source_length), (count, bucket.target_length))
            for bucket, count in rows.items()
        ]
        self._lock = threading.Lock()
        self._batches = functools.lru_cache(2)(self._batches_of)

    @property
    def num_batches(self):
        return None  # endless

    def __getitem__(self, index):
        epoch, number = divmod(self._start_step + index, self.steps_per_epoch)
        with self._lock:  # two threads would both shuffle an epoch
            indices, bucket = self._batches(epoch)[number]
        source_ids, target_ids, labels, *groups = self._corpus.padded_batch(
            indices, self._plan[0][bucket], self._num_replicas, epoch=epoch
        )
        inputs = source_ids, target_ids, *groups
        return dict(zip(self._corpus.input_names, inputs, strict=True)), labels

    def _batches_of(self, epoch):
        order = self._corpus.epoch_order(self._plan, self._seed, epoch)
        return epoch_batches(self._plan[0], *order)
