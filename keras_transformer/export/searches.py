"""How an export's search runs a batch: in parts, or a lone row under XLA.

Before a function first runs, TensorFlow copies those that it calls into it, each as
often as it is called, and optimises the whole in many passes, each of which copies it
again. What is kept apart is copied nowhere.
"""

import contextlib

import tensorflow as tf

ROWS = tf.TensorSpec([None, None], tf.int32)
# A lone row is filled up to a multiple of the step: each length is a program, which
# takes seconds to compile. Longer rows are rare, and gain less.
JIT_STEP, JIT_LONGEST = 16, 64


def kept_apart(search):
    """A search as a function that is not copied into its callers.

    Args:
        search: function of int32 [batch, length].
    """
    return tf.function(
        search,
        input_signature=[ROWS],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


@contextlib.contextmanager
def one_encoder(model):
    """Within it, whatever is traced of a model calls one function for its encoder.

    Args:
        model: `Transformer`, which must not train meanwhile.
    """
    plain = model.encode
    traced = tf.function(
        lambda source_ids: plain(source_ids, training=False),
        input_signature=[ROWS],
        autograph=False,
    )
    model.encode = lambda source_ids, training=None: traced(source_ids)
    try:
        yield
    finally:
        del model.encode  # the class's own again


def in_parts(search, parts):
    """A search whose batches are cut into parts, searched side by side.

    An operation on few rows that a second thread does not speed up leaves the other
    part a core. A part takes every so many-th row: those of a batch sorted by length
    are then as many to translate, and as long, in each part.

    Args:
        search: `tf.function` of int32 [batch, length] to a tuple of tensors
            [batch, ...], whose other dimensions depend on `length` alone.
        parts: int. A batch with fewer rows is searched as a whole.
    """
    if parts == 1:
        return search

    def search_parts(source_ids):
        rows = tf.range(tf.shape(source_ids)[0])
        of_part = [rows[part::parts] for part in range(parts)]
        found = [search(tf.gather(source_ids, some)) for some in of_part]
        places = tf.math.invert_permutation(tf.concat(of_part, axis=0))
        return tuple(
            tf.gather(tf.concat(each, axis=0), places)
            for each in zip(*found, strict=True)
        )

    return tf.function(
        lambda source_ids: tf.cond(
            tf.shape(source_ids)[0] < parts,
            lambda: tuple(search(source_ids)),
            lambda: search_parts(source_ids),
        ),
        input_signature=[ROWS],
        autograph=False,
    )


def lone_compiled(search, search_row, extra_length, max_source_length):
    """A search that runs a batch of one row as a program that XLA compiles.

    Between the many small operations on the few rows of one beam TensorFlow spends
    longer than within them. What XLA compiles is for one shape: a row is filled up
    with padding, to one of few lengths.

    Args:
        search: function of int32 [batch, length] to `(sequences, scores)`, int32
            [batch, n, length + extra_length] and float32 [batch, n].
        search_row: the same, of shapes that never change on the way.
        extra_length: int.
        max_source_length: int, the longest row that the model takes.
    """
    longest = min(JIT_LONGEST, max_source_length) // JIT_STEP * JIT_STEP
    # XLA knows the shapes that come, whatever is known of them while tracing.
    compiled = tf.function(
        search_row, input_signature=[ROWS], autograph=False, jit_compile=True
    )

    def search_alone(source_ids):
        length = tf.shape(source_ids)[1]
        filled = tf.pad(source_ids, [[0, 0], [0, -length % JIT_STEP]])
        sequences, scores = compiled(filled)
        return sequences[:, :, : length + extra_length], scores

    def search_rows(source_ids):
        batch, length = tf.unstack(tf.shape(source_ids))
        return tf.cond(
            (batch == 1) & (length > 0) & (length <= longest),
            lambda: search_alone(source_ids),
            lambda: tuple(search(source_ids)),
        )

    return tf.function(search_rows, input_signature=[ROWS], autograph=False)
