"""Search functions of an export for whole batches, split batches, and single rows.

Before a function first runs, TensorFlow inlines all calls in it and optimizes the
result in many passes. Each pass copies the graph. A search that is called in several
places would be copied and optimized several times, so searches are marked as not to be
inlined.
"""

import functools

import tensorflow as tf

from keras_transformer.errors import NOT_FINITE

ROWS = tf.TensorSpec([None, None], tf.int32)
# Source ids, and the number of translations to find per row, `n_best`.
SEARCH_INPUTS = [ROWS, tf.TensorSpec([], tf.int32)]
# A single row is padded to a multiple of `JIT_STEP`, because compiling a program for
# another length takes seconds. Rows above `JIT_MAX_LENGTH` are translated without XLA,
# because they are rare and gain less from it.
JIT_STEP, JIT_MAX_LENGTH = 16, 64


def graph_function(function, *inputs, **options):
    """Returns a `tf.function` of inputs with the given `tf.TensorSpec`s."""
    return tf.function(function, input_signature=inputs, autograph=False, **options)


def shared_encoder(model):
    """Returns a model's encoder as one function for all signatures of an export."""
    return graph_function(lambda ids: model.encode(ids, training=False), ROWS)


def dispatch_search(
    search, parts, shared=tuple, search_row=None, extra_length=0, max_length=0, pad_id=0
):
    """Returns a search that runs each batch in the fastest way.

    Batches with enough rows are split, and each part runs on one core, since operations
    on few rows gain nothing from a second thread. Each part takes every n-th row, where
    n is `parts`. So even if a batch is sorted by length, its parts take equally long.

    XLA compiles the search of a single row, because TensorFlow spends more time between
    the many small operations of one beam than in them. Compiled programs have fixed
    shapes, so the row is padded to one of a few lengths.

    All searches return sequences, int32 `[batch, n, length + extra_length]`, and
    scores, float32 `[batch, n]`. `search` is not inlined, and `shared()` is a tuple of
    its further inputs, which all parts of a batch share. `search_row` is for XLA, which
    needs static shapes. If it is `None`, single rows are translated like batches.
    """
    # A padded row must not exceed `max_length`.
    max_length = min(JIT_MAX_LENGTH, max_length) // JIT_STEP * JIT_STEP
    if search_row is not None:
        # XLA reads the shapes at run time, so they need not be static in the trace.
        compiled = graph_function(search_row, *SEARCH_INPUTS, jit_compile=True)

    def search_whole(source_ids, n_best):
        return tuple(search(source_ids, n_best, *shared()))

    def search_split(source_ids, n_best):
        rows = tf.range(tf.shape(source_ids)[0])
        rows_of_part = [rows[part::parts] for part in range(parts)]
        common = shared()
        found = [
            search(tf.gather(source_ids, part_rows), n_best, *common)
            for part_rows in rows_of_part
        ]
        places = tf.math.invert_permutation(tf.concat(rows_of_part, axis=0))
        return tuple(
            tf.gather(tf.concat(each, axis=0), places)
            for each in zip(*found, strict=True)
        )

    def search_single(source_ids, n_best):
        length = tf.shape(source_ids)[1]
        padding = [[0, 0], [0, -length % JIT_STEP]]
        padded = tf.pad(source_ids, padding, constant_values=pad_id)
        sequences, scores = compiled(padded, n_best)
        return sequences[:, :, : length + extra_length], scores

    def dispatch(source_ids, n_best):
        batch, length = tf.unstack(tf.shape(source_ids))
        ways = [(search_whole, True)]
        if parts > 1:
            ways.append((search_split, batch >= parts))
        if search_row is not None:
            is_short = (length > 0) & (length <= max_length)
            ways.append((search_single, (batch == 1) & is_short))
        if len(ways) == 1:
            return search_whole(source_ids, n_best)
        chosen = tf.constant(0)
        for number, (_, is_suitable) in enumerate(ways[1:], 1):
            chosen = tf.where(is_suitable, number, chosen)
        # There is a single switch, because each level of nested conditionals would pass
        # all weights as arguments.
        calls = [functools.partial(way, source_ids, n_best) for way, _ in ways]
        return tf.switch_case(chosen, calls)

    def checked(*inputs):
        sequences, scores = dispatch(*inputs)
        is_finite = tf.debugging.assert_less(scores, float("inf"), NOT_FINITE)
        with tf.control_dependencies([is_finite]):
            return tf.identity(sequences), scores

    return graph_function(checked, *SEARCH_INPUTS)
