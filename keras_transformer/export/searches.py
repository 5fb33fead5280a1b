"""How an export's search runs a batch: in parts, or a lone row under XLA.

Before a function first runs, TensorFlow copies those that it calls into it, each as
often as it is called, and optimises the whole in many passes, each of which copies it
again. What is kept apart is copied nowhere.
"""

import contextlib
import functools

import tensorflow as tf

ROWS = tf.TensorSpec([None, None], tf.int32)
# Source ids, and how many of the best are asked for, see `beam_search`.
SEARCHED = [ROWS, tf.TensorSpec([], tf.int32)]
# A lone row is filled up to a multiple of the step: each length is a program, which
# takes seconds to compile. Longer rows are rare, and gain less.
JIT_STEP, JIT_LONGEST = 16, 64


def kept_apart(search, shared=()):
    """A search as a function that is not copied into its callers.

    Args:
        search: function of `SEARCHED` and of what is `shared`.
        shared: nests of `tf.TensorSpec`.
    """
    return tf.function(
        search,
        input_signature=[*SEARCHED, *shared],
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


def joined_search(
    search, parts, shared=tuple, search_row=None, extra_length=0, longest=0
):
    """One search of all batches, each run in the way that is fastest for it.

    In parts, where there are as many rows: an operation on few rows that a second
    thread does not speed up leaves the other part a core. A part takes every so
    many-th row: those of a batch sorted by length are then as many to translate, and
    as long, in each part.

    A lone row as a program that XLA compiles: between the many small operations on the
    few rows of one beam TensorFlow spends longer than within them. Such a program is
    for one shape: a row is filled up with padding, to one of few lengths.

    Args:
        search: `kept_apart`, to `(sequences, scores)`, int32 [batch, n, length +
            extra_length] and float32 [batch, n].
        parts: int, 1 for none.
        shared: function that gives what else `search` takes, once for all parts.
        search_row: function of `SEARCHED` to the same, of shapes that never change on
            the way. None: a lone row is searched as others are.
        extra_length: int.
        longest: int, the longest row that the model takes.

    Returns:
        `tf.function` of `SEARCHED` to the same.
    """
    longest = min(JIT_LONGEST, longest) // JIT_STEP * JIT_STEP
    if search_row is not None:
        # XLA knows the shapes that come, whatever is known of them while tracing.
        compiled = tf.function(
            search_row, input_signature=SEARCHED, autograph=False, jit_compile=True
        )

    def whole(source_ids, n_best):
        return tuple(search(source_ids, n_best, *shared()))

    def in_parts(source_ids, n_best):
        rows = tf.range(tf.shape(source_ids)[0])
        of_part = [rows[part::parts] for part in range(parts)]
        common = shared()
        found = [
            search(tf.gather(source_ids, some), n_best, *common) for some in of_part
        ]
        places = tf.math.invert_permutation(tf.concat(of_part, axis=0))
        return tuple(
            tf.gather(tf.concat(each, axis=0), places)
            for each in zip(*found, strict=True)
        )

    def alone(source_ids, n_best):
        length = tf.shape(source_ids)[1]
        filled = tf.pad(source_ids, [[0, 0], [0, -length % JIT_STEP]])
        sequences, scores = compiled(filled, n_best)
        return sequences[:, :, : length + extra_length], scores

    def search_rows(source_ids, n_best):
        batch, length = tf.unstack(tf.shape(source_ids))
        ways = [(whole, True)]
        if parts > 1:
            ways.append((in_parts, batch >= parts))
        if search_row is not None:
            ways.append((alone, (batch == 1) & (length > 0) & (length <= longest)))
        if len(ways) == 1:
            return whole(source_ids, n_best)
        chosen = tf.constant(0)
        for number, (_, suits) in enumerate(ways[1:], 1):
            chosen = tf.where(suits, number, chosen)
        # One choice of all: each level of functions holds every weight as an argument.
        return tf.switch_case(
            chosen,
            [functools.partial(way, source_ids, n_best) for way, _ in ways],
        )

    return tf.function(search_rows, input_signature=SEARCHED, autograph=False)
