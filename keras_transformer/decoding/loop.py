"""Decoding loop of beam search and sampling, which drops finished sentences."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding.cache import COMPACT_INTERVAL, GROWTH, Cache
from keras_transformer.decoding.compiled import is_jax_on_cpu
from keras_transformer.numerics.indexing import gather, shape

# Dropping sentences copies the whole cache. So the loop waits until at most 3/4 of the
# sentences are unfinished, or until the cache is compacted, which copies it anyway.
KEEP_NUMERATOR, KEEP_DENOMINATOR = 3, 4
# Batches of constant size are divided from this size on. A step of fewer sentences
# takes about as long, and XLA compiles it once more.
MIN_DIVIDED = 32


class StepDecoder(NamedTuple):
    """A decoder made of plain functions, for any model and any cache.

    Args:
        step: Function `(ids, cache, context, index) -> (logits, cache)`. `ids` is int32
            `[batch * beam_size, 1]`, the last tokens, and `index` their position, a
            scalar int32. `logits` is `[batch * beam_size, vocabulary]` or `[batch *
            beam_size, 1, vocabulary]`, with a static size of the last axis.
        reorder: Function `(cache, parents) -> cache`. `parents` is int32 `[batch *
            beam_size]`, the old row that each new row continues. If `None`, all tensors
            of the cache are reordered along their first axis.
        compact: Function `cache -> cache` that makes the cache smaller or faster to
            read, or `None`. The search calls it every few steps if `drop_finished` is
            on, and otherwise never.
        grow: Function `cache -> cache` that enlarges the cache of a part of the batch,
            or `None` if a cache has its full size from the start.
        returns_log_probs: Whether `step` returns log-probabilities, which are not
            normalized again. Ids with log-probability minus infinity are never
            generated.
        added_scores: Function `cache -> scores`, or `None`. The scores, float32 `[batch
            * beam_size]`, at most 0, are added to those of hypotheses that end with the
            next token.

    Examples:
        >>> def step(ids, count, context, index):
        ...     return keras.ops.one_hot(ids[:, 0] + 1, 8) * 99, count + 1
        ...
        >>> decoder = kt.decoding.StepDecoder(step)
        >>> ids, search = kt.decoding.SpecialIds(end=6), kt.BeamSearch(beam_size=1)
        >>> count = keras.ops.zeros((1,), "int32")  # the cache
        >>> sequences, scores = kt.decoding.beam_search(
        ...     decoder, count, {}, 1, 9, search, ids
        ... )
        >>> sequences[0, 0].numpy().tolist()
        [3, 4, 5, 6, 0, 0, 0, 0, 0]
    """

    step: Any
    reorder: Any = None
    compact: Any = None
    grow: Any = None
    returns_log_probs: bool = False
    added_scores: Any = None

    @classmethod
    def of(cls, decoder):
        """Wraps a plain step function, and fills in the default of `reorder`."""
        decoder = decoder if hasattr(decoder, "step") else cls(decoder)
        if isinstance(decoder, cls) and decoder.reorder is None:
            decoder = decoder._replace(reorder=take_rows)
        return decoder


class WrappingDecoder:
    """Base of decoders that change the steps of another one, `decoder`.

    Their cache is a dict of its cache, `"inner"`, and of tensors with one row for each
    hypothesis.
    """

    def __init__(self, decoder):
        self._decoder = StepDecoder.of(decoder)

    def reorder(self, cache, parents):
        """Reorders hypotheses (see `StepDecoder`)."""
        own = {name: each for name, each in cache.items() if name != "inner"}
        inner = self._decoder.reorder(cache["inner"], parents)
        return {**take_rows(own, parents), "inner": inner}

    @property
    def compact(self):
        """Function that compacts the cache, or `None` (see `StepDecoder`)."""
        return self._of_inner(self._decoder.compact)

    @property
    def grow(self):
        """Function that enlarges the cache, or `None` (see `StepDecoder`)."""
        return self._of_inner(self._decoder.grow)

    def _of_inner(self, function):
        if function is None:
            return None
        return lambda cache: {**cache, "inner": function(cache["inner"])}


def next_logits(decoder, last_ids, cache, context, index, *attention):
    """Returns logits, float32 `[rows, vocabulary]`, and the cache after a step.

    `last_ids` are the last tokens of all rows, in any shape.
    """
    last_ids = ops.reshape(last_ids, (-1, 1))
    logits, cache = decoder.step(last_ids, cache, context, index, *attention)
    logits = ops.cast(logits, "float32")
    return ops.reshape(logits, (-1, logits.shape[-1])), cache


def decode_loop(step, state, cache, context, num_steps, drop_finished, resize=None):
    """Calls `step` until every sentence is done or `num_steps` steps are taken.

    If `drop_finished` is true, finished sentences leave the batch once they are at
    least a quarter of it, or when the cache is compacted. Otherwise, a large batch of
    constant size goes on with its unfinished half. On a CPU with JAX, it goes on with a
    quarter at a time, once one is left or the cache of `first_capacity` is full.
    Results are the same.

    `resize` is the decoder's `compact` if `drop_finished` is true, and else its `grow`.

    The function `step` maps `(state, cache, context, index)` to a new state and cache.
    It must not change the results of a sentence that is done. `index` is a scalar
    int32, the number of tokens generated so far. `state` is a NamedTuple of tensors
    whose leading axis is batch, with a field `done`, bool `[batch]`. The leading axes
    of `cache` are multiples of batch, and the rows of a sentence are adjacent. With
    `drop_finished`, any other axis of it may grow if its size is 0 at first.

    Returns the state of all sentences, in their original order.
    """
    index = ops.convert_to_tensor(0, dtype="int32")
    if not drop_finished:
        return _run_divided(step, state, cache, context, index, num_steps, resize)

    # `results` is the state of all sentences. `state`, `cache`, and `context` belong to
    # the sentences that are left in the batch, and `rows` contains the indices of these
    # sentences in `results`.
    def condition(index, results, rows, state, cache, context):
        return ops.logical_and(index < num_steps, shape(rows)[0] > 0)

    def body(index, results, rows, state, cache, context):
        stop = num_steps
        if resize is not None:
            stop = ops.minimum(num_steps, index + COMPACT_INTERVAL)
        index, state, cache = _run_steps(
            step, state, cache, context, index, stop, _enough_left
        )
        if resize is not None:
            cache = resize(cache)
        results = _put_rows(results, rows, state)
        return (index, results, *drop_done(rows, state, cache, context))

    def drop_done(rows, state, cache, context):
        keep = ops.nonzero(ops.logical_not(state.done))[0]
        keep = ops.cast(keep, "int32")
        return (
            gather(rows, keep, axis=0),
            take_rows(state, keep),
            # The maximum avoids a division by zero in an empty batch.
            _take_sentences(cache, keep, ops.maximum(shape(rows)[0], 1)),
            take_rows(context, keep),
        )

    # In a loop whose batch shrinks, leading axes must have no static size. Calling
    # `drop_done` before the loop also hides their size from shape inference.
    cache = _hide_zeros(cache)
    rows = ops.arange(shape(state.done)[0], dtype="int32")
    loop = (index, state, *drop_done(rows, state, cache, context))
    return ops.while_loop(condition, body, loop)[1]


def first_capacity(batch_size, num_steps):
    """Returns the capacity of a buffer, in positions, before `grow` is called.

    Most sentences of a batch need few steps, and on a CPU, a small buffer is faster.
    """
    is_small = _is_large(batch_size) and is_jax_on_cpu()
    return -(-num_steps // GROWTH) if is_small else num_steps


def _is_large(batch_size):
    return isinstance(batch_size, int) and batch_size >= MIN_DIVIDED


def _run_divided(step, state, cache, context, index, num_steps, grow):
    """Calls `step` for all sentences, then for parts of those that are left.

    Returns the state of all sentences.
    """
    size = state.done.shape[0]
    if not _is_large(size):
        return _run_steps(step, state, cache, context, index, num_steps, _any_left)[1]
    num_rows = -(-size // (4 if is_jax_on_cpu() else 2))
    stop = num_steps if grow is None else first_capacity(size, num_steps)
    index, state, cache = _run_steps(
        *(step, state, cache, context, index, stop),
        lambda state: _num_left(state) > num_rows,
    )
    order = ops.cast(ops.argsort(ops.cast(state.done, "int32")), "int32")

    def body(first, results):
        # The last part may repeat rows of the one before, with the same results.
        start = ops.minimum(first, size - num_rows)
        rows = ops.slice(order, (start,), (num_rows,))
        part = take_rows(state, rows), _take_sentences(cache, rows, size)
        if stop is not num_steps:
            part = part[0], grow(part[1])
        part = _run_steps(
            *(step, *part, take_rows(context, rows), index, num_steps, _any_left)
        )[1]
        return first + num_rows, _put_rows(results, rows, part)

    first = ops.convert_to_tensor(0, dtype="int32")
    return ops.while_loop(
        lambda first, _: first < _num_left(state), body, (first, state)
    )[1]


def has_dynamic_shapes(drop_finished):
    """Resolves `drop_finished`, which needs dynamic shapes, to a bool."""
    if drop_finished == "auto":
        return keras.config.backend() != "jax"
    return bool(drop_finished)


def take_rows(nest, rows):
    """Takes rows `rows` (int32 `[n]`) of every tensor in `nest`."""
    return keras.tree.map_structure(lambda x: gather(x, rows, axis=0), nest)


def _put_rows(nest, rows, new):
    """Replaces rows `rows` (int32 `[n]`) of every tensor in `nest`."""
    places = rows[:, None]
    return keras.tree.map_structure(
        lambda x, now: ops.scatter_update(x, places, now), nest, new
    )


def _take_sentences(nest, sentences, batch_size):
    """Takes all rows of `sentences` (int32 `[n]`) of every tensor in `nest`."""

    column = sentences[:, None]

    def take(x):
        if isinstance(x, Cache):  # one row per sentence
            return take_rows(x, sentences)
        if keras.tree.is_nested(x):
            return None
        num_rows = shape(x)[0] // batch_size  # per sentence
        rows = column * num_rows + ops.arange(num_rows, dtype="int32")
        return gather(x, ops.reshape(rows, (-1,)), axis=0)

    return keras.tree.traverse(take, nest)


def resolve_lengths(max_length, buffer_length, batch_size):
    """Returns each sentence's maximum length, int32 `[batch]`, and the buffer length.

    The arguments are described in `beam_search`.
    """
    if buffer_length is None and isinstance(max_length, int):
        buffer_length = max_length
    max_lengths = ops.cast(ops.convert_to_tensor(max_length), "int32")
    max_lengths = ops.broadcast_to(max_lengths, (batch_size,))
    if buffer_length is None:
        buffer_length = ops.max(max_lengths)
        if keras.config.backend() != "tensorflow":
            buffer_length = int(buffer_length)
    return ops.minimum(max_lengths, buffer_length), buffer_length


def _run_steps(step, state, cache, context, index, num_steps, enough_left):
    """Calls `step` until `index` is `num_steps` or `enough_left(state)` is false."""

    def condition(index, state, cache):
        return ops.logical_and(index < num_steps, enough_left(state))

    def body(index, state, cache):
        state, cache = step(state, cache, context, index)
        return index + 1, state, cache

    return ops.while_loop(condition, body, (index, state, cache))


def _hide_zeros(nest):
    """Hides axes of size 0 from a graph's shape inference, because they may grow."""
    # Shape inference does not know how many indices `nonzero` returns.
    no_indices = ops.nonzero(ops.zeros((1,)))[0]

    def hide(x):
        for axis, size in enumerate(x.shape):
            if axis > 0 and size == 0:
                x = gather(x, no_indices, axis=axis)
        return x

    return keras.tree.map_structure(hide, nest)


def _num_left(state):
    return ops.sum(ops.cast(ops.logical_not(state.done), "int32"))


def _any_left(state):
    return _num_left(state) > 0


def _enough_left(state):
    size = shape(state.done)[0]
    return _num_left(state) * KEEP_DENOMINATOR > size * KEEP_NUMERATOR
