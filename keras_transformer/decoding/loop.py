"""The loop that beam search and sampling share: steps, and sentences that leave."""

import keras
from keras import ops

from keras_transformer.layers.decoding_cache import SETTLE_STEPS

# A gather of the whole cache costs about as much as the beam reordering of one step,
# so it pays as soon as a sizeable part of the rows does nothing but wait.
KEEP_NUMERATOR, KEEP_DENOMINATOR = 3, 4


def decode_loop(
    step, state, cache, context, num_steps, compaction="auto", settle_cache=None
):
    """Call `step` until every sentence is done or `num_steps` steps are taken.

    With compaction, sentences that are done leave the batch whenever a quarter of it
    is done, so that the steps left to take cost only what the other sentences need.
    Results are the same with and without.

    Args:
        step: function `(state, cache, context, index) -> (state, cache)`; `index` is
            a scalar int32, the number of tokens generated so far. It must leave the
            fields of a sentence that is done as they are (or see to it that what it
            changes does not matter).
        state: NamedTuple of tensors whose leading axis is batch; its field `done` is
            bool [batch].
        cache: nest of tensors whose leading axes are multiples of batch, so many rows
            of each sentence following each other. With compaction other axes may
            grow from step to step, if they begin at 0.
        context: nest of tensors whose leading axis is batch.
        num_steps: scalar integer.
        compaction: True, False or "auto" (on where the backend has dynamic shapes:
            not on JAX; pass False for XLA).
        settle_cache: function `cache -> cache`, called with compaction every
            `SETTLE_STEPS` steps at least.

    Returns:
        The state of all sentences, in the order that came in.
    """
    index = ops.convert_to_tensor(0, dtype="int32")
    if not has_dynamic_shapes(compaction):
        _, state, _ = _run(step, state, cache, context, index, num_steps, _any_left)
        return state

    def condition(index, results, rows, state, cache, context):
        return ops.logical_and(index < num_steps, ops.shape(rows)[0] > 0)

    def body(index, results, rows, state, cache, context):
        stop = num_steps
        if settle_cache is not None:
            stop = ops.minimum(num_steps, index + SETTLE_STEPS)
        index, state, cache = _run(
            step, state, cache, context, index, stop, _enough_left
        )
        if settle_cache is not None:
            cache = settle_cache(cache)
        results = keras.tree.map_structure(
            lambda result, now: ops.scatter_update(result, rows[:, None], now),
            results,
            state,
        )
        return (index, results, *leave(rows, state, cache, context))

    def leave(rows, state, cache, context):
        keep = ops.nonzero(ops.logical_not(state.done))[0]
        keep = ops.cast(keep, "int32")
        return (
            ops.take(rows, keep, axis=0),
            take_rows(state, keep),
            _take_sentences(cache, keep, ops.shape(rows)[0]),
            take_rows(context, keep),
        )

    # Leaving once before the loop also hides the size of the leading axes from the
    # graph's shape inference, as a loop whose batch shrinks needs it.
    cache = keras.tree.map_structure(_hide_zeros, cache)
    rows = ops.arange(ops.shape(state.done)[0], dtype="int32")
    loop = (index, state, *leave(rows, state, cache, context))
    return ops.while_loop(condition, body, loop)[1]


def has_dynamic_shapes(compaction):
    """Whether `compaction` (True, False or "auto") comes to True on this backend."""
    if compaction == "auto":
        return keras.backend.backend() != "jax"
    return bool(compaction)


def take_rows(nest, rows):
    """Rows `rows` (int32 [n]) of every tensor in `nest`."""
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), nest)


def _take_sentences(nest, sentences, batch_size):
    """All rows of `sentences` (int32 [n]) of every tensor in `nest`."""

    def take(x):
        # An empty batch has no rows to count.
        count = ops.shape(x)[0] // ops.maximum(batch_size, 1)
        rows = ops.arange(count, dtype="int32")
        rows = sentences[:, None] * ops.shape(rows)[0] + rows
        return ops.take(x, ops.reshape(rows, (-1,)), axis=0)

    return keras.tree.map_structure(take, nest)


def known_vocabulary_size(logits):
    """The last axis of `logits` as an int.

    Raises:
        ValueError: if its size is not known.
    """
    if logits.shape[-1] is None:
        raise ValueError(
            "The step function's logits must have a last axis of known size. "
            f"Received: logits of shape {tuple(logits.shape)}."
        )
    return logits.shape[-1]


def resolve_lengths(max_length, buffer_length, batch_size):
    """The limit of each sentence, int32 [batch], and the length of the buffers."""
    if buffer_length is None and isinstance(max_length, int):
        buffer_length = max_length
    max_lengths = ops.cast(ops.convert_to_tensor(max_length), "int32")
    max_lengths = ops.broadcast_to(max_lengths, (batch_size,))
    if buffer_length is None:
        buffer_length = ops.max(max_lengths)
        if keras.backend.backend() != "tensorflow":
            buffer_length = int(buffer_length)
    return ops.minimum(max_lengths, buffer_length), buffer_length


def check_ids(start_id, end_id, pad_id, forbidden_ids):
    """All ids that are never generated, as a tuple.

    Raises:
        ValueError: if the end id is among them.
    """
    forbidden_ids = tuple(dict.fromkeys((pad_id, start_id, *forbidden_ids)))
    if end_id in forbidden_ids:
        raise ValueError(
            "`end_id` must differ from `pad_id`, `start_id` and `forbidden_ids`. "
            f"Received: end_id={end_id}, others {forbidden_ids}."
        )
    return forbidden_ids


def _run(step, state, cache, context, index, num_steps, enough_left):
    def condition(index, state, cache):
        return ops.logical_and(index < num_steps, enough_left(state))

    def body(index, state, cache):
        state, cache = step(state, cache, context, index)
        return index + 1, state, cache

    return ops.while_loop(condition, body, (index, state, cache))


def _hide_zeros(x):
    """`x` with its axes of size 0 unknown to a graph's shape inference."""
    for axis, size in enumerate(x.shape):
        if axis > 0 and size == 0:
            nothing = ops.nonzero(ops.zeros((1,)))[0]
            x = ops.take(x, nothing, axis=axis)
    return x


def _num_left(state):
    return ops.sum(ops.cast(ops.logical_not(state.done), "int32"))


def _any_left(state):
    return _num_left(state) > 0


def _enough_left(state):
    size = ops.shape(state.done)[0]
    return _num_left(state) * KEEP_DENOMINATOR > size * KEEP_NUMERATOR
