"""`IncrementalDecoder`, which decodes token by token, matches the whole decoder."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import small_transformers
from keras import ops
from layer_checks import numpy

from keras_transformer.decoding.incremental import IncrementalDecoder, arrange_weights
from keras_transformer.decoding.loop import decode_loop

VARIANTS = {
    "post-norm": {},
    "pre-norm": {"normalization": "pre"},
    "widths": {"key_dim": 5, "value_dim": 2},
    "dot": {"score_mode": "dot"},
    "additive": {"score_mode": "additive", "normalization": "pre"},
    "learned": {"positions": "learned", "max_length": 7},
    "relative": {"positions": "relative", "max_distance": 2},
    "relative in a window": {
        "positions": "relative",
        "max_distance": 2,
        "attention_window": 4,
    },
    "rotary": {"positions": "rotary"},
    "rotary in a window": {"positions": "rotary", "attention_window": 4},
    "short window": {"attention_window": 3},
    "long window": {"attention_window": 30},
    "window of one": {"attention_window": 1},
    "outputs": {"output_size": 19, "pad_id": 7},
    "variations": {
        "variations": {
            "num_decoder_layers": 1,
            "attention_bias": True,
            "logits_bias": True,
            "embedding_norm": True,
            "first_position": 2,
            "tied_output": False,
            "zero_start_id": 2,
        }
    },
    "bfloat16": {"dtype": "mixed_bfloat16"},
}
# Capacities of the cache in positions. With `None`, the cache grows, which JAX does not
# allow: it requires static shapes.
CAPACITIES = (None, 7, 10) if keras.backend.backend() != "jax" else (7, 10)
# Variants whose computation depends on whether the cache grows.
CACHE_DEPENDENT = {"post-norm", "widths", "dot", "additive", "bfloat16", "relative"}
CACHE_DEPENDENT |= {name for name in VARIANTS if "window" in name}
# Kernels that a decoder uses: those of the layers, those of `arrange_weights`, or the
# latter packed in blocks for XLA.
WEIGHTS = ("layers", "arranged", "packed")
STEPS = 7


# With a few other seeds, the quantized decoder rounds a number to another int8 value
# than its model does.
build_model = functools.partial(small_transformers.build_model, seed=1)
shared_model = functools.partial(small_transformers.shared_model, seed=1)


def sources(model):
    """Returns source ids `[3, 6]`: rows of five tokens, of three, and of none."""
    rows = np.full((3, 6), model.pad_id, "int32")
    rows[0, :5] = [11, 4, 40, 9, 3]
    rows[1, :3] = [23, 8, 3]
    return rows


def decoder_of(model, weights):
    if weights == "layers":
        return IncrementalDecoder(model)
    return IncrementalDecoder(model, arrange_weights(model, weights == "packed"))


def random_ids(generator, shape, model):
    """Returns random tokens without padding."""
    ids = generator.integers(1, 19, shape).astype("int32")
    return np.where(ids == model.pad_id, 1, ids)


def tolerance_of(model):
    return 0.05 if model.dtype_policy.name == "mixed_bfloat16" else 1e-4


def slow_unless(condition, *values):
    """Returns parameters of a case that is slow unless `condition` is true."""
    return pytest.param(*values, marks=() if condition else pytest.mark.slow)


def assert_steps_match(model, decoder, beam_size=3, max_length=None, steps=STEPS):
    """Compares the logits of all steps of each hypothesis with the model's.

    After each step, each hypothesis continues a random one of its sentence. After every
    third step, `compact` makes the cache smaller.
    """
    generator = np.random.default_rng(8)
    source_ids = sources(model)
    num_rows = len(source_ids) * beam_size
    first_rows = np.repeat(np.arange(len(source_ids)) * beam_size, beam_size)
    histories = np.zeros((num_rows, 0), "int32")
    found = np.zeros((num_rows, 0, model.num_outputs), "float32")
    cache, context = decoder.begin(source_ids, beam_size, max_length)
    for index in range(steps):
        ids = random_ids(generator, (num_rows, 1), model)
        histories = np.concatenate([histories, ids], axis=1)
        position = ops.convert_to_tensor(index, "int32")
        logits, cache = decoder.step(ops.array(ids), cache, context, position)
        assert tuple(logits.shape) == (num_rows, model.num_outputs)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        found = np.concatenate([found, numpy(logits)[:, None]], axis=1)
        if index == steps - 1:
            break
        parents = generator.integers(0, beam_size, num_rows) + first_rows
        cache = decoder.reorder(cache, ops.array(parents.astype("int32")))
        histories, found = histories[parents], found[parents]
        if index % 3 == 1:
            cache = decoder.compact(cache)
    inputs = {
        "source_ids": source_ids.repeat(beam_size, axis=0),
        "target_ids": histories,
    }
    expected = numpy(model(inputs))
    scale = np.abs(expected).max(axis=(0, 2), keepdims=True)
    np.testing.assert_allclose(
        found / scale, expected / scale, atol=tolerance_of(model)
    )


@pytest.mark.parametrize(
    ("variant", "max_length"),
    [
        slow_unless(not place or variant in CACHE_DEPENDENT, variant, max_length)
        for place, max_length in enumerate(CAPACITIES[:2])
        for variant in VARIANTS
    ],
)
def test_step_matches_whole_decoder(variant, max_length):
    model = shared_model(**VARIANTS[variant])
    assert_steps_match(model, IncrementalDecoder(model), max_length=max_length)


@pytest.mark.parametrize(
    "max_length", [slow_unless(each == 7, each) for each in CAPACITIES[-2:]]
)
@pytest.mark.parametrize("variant", ["widths", "bfloat16", "variations"])
@pytest.mark.parametrize("weights", ["arranged", "packed"])
def test_step_with_arranged_weights_matches_whole_decoder(weights, variant, max_length):
    model = shared_model(**VARIANTS[variant])
    assert_steps_match(model, decoder_of(model, weights), max_length=max_length)


def test_packed_weights_are_packed():
    """Guards the test above, since matrices of `SIZES` are too small to be packed."""
    model = build_model(d_model=64, d_ff=96, num_heads=2, vocabulary_size=128)
    weights = arrange_weights(model, packed=True)
    for kernel in (*weights.layers[0], weights.output):
        assert isinstance(kernel, tuple)
    decoder = IncrementalDecoder(model, weights)
    assert_steps_match(model, decoder, max_length=CAPACITIES[0], steps=3)


@pytest.mark.parametrize(
    "max_length", [slow_unless(each != 10, each) for each in CAPACITIES]
)
@pytest.mark.parametrize("weights", ["layers", "arranged"])
def test_step_of_one_hypothesis_matches_whole_decoder(weights, max_length):
    model = shared_model(normalization="pre")
    decoder = decoder_of(model, weights)
    assert_steps_match(model, decoder, beam_size=1, max_length=max_length)


_WINDOW = {"attention_window": 5}
_RELATIVE = {"positions": "relative", "max_distance": 6}


@pytest.mark.parametrize(
    ("options", "max_length"),
    [
        ({}, 20),
        (_WINDOW, None),
        ({"positions": "relative", "attention_window": 5, "max_distance": 3}, None),
        (_RELATIVE, 20),
        *(
            slow_unless(False, *each)
            for each in (({}, None), (_WINDOW, 20), (_RELATIVE, None))
        ),
    ],
)
def test_step_late_in_a_sequence_matches_whole_decoder(max_length, options):
    if max_length not in (*CAPACITIES, 20):
        pytest.skip("The cache cannot grow on this backend.")
    model = shared_model(**options)
    decoder = IncrementalDecoder(model)
    assert_steps_match(model, decoder, max_length=max_length, steps=20)


@pytest.mark.parametrize("weights", [slow_unless(False, "arranged"), "packed"])
def test_step_of_a_quantized_decoder_matches_whole_decoder(weights):
    """The layers of a quantized model keep their int8 kernels."""
    model = build_model(num_layers=1)
    model.quantize("int8")
    decoder = decoder_of(model, weights)
    for layer in decoder.weights.layers:
        assert set(layer) == {None}
    # Few steps, since int8 arithmetic is slow in Keras.
    assert_steps_match(model, decoder, max_length=CAPACITIES[0], steps=3)


class ForcedState(NamedTuple):
    """State of a loop over given tokens, which keeps all logits."""

    ids: Any  # int32 [batch, STEPS]
    logits: Any  # float32 [batch, STEPS, num_outputs]
    lengths: Any  # int32 [batch]
    done: Any  # bool [batch]


def compiled(function, *arguments):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Only the number of sentences is unknown while tracing, same as in an export.
        signature = [
            tf.TensorSpec([None, *np.shape(each)[1:]], np.asarray(each).dtype)
            for each in arguments
        ]
        function = tf.function(function, signature, autograph=False)
    if keras.backend.backend() == "jax":
        import jax

        function = jax.jit(function)
    return function(*map(ops.convert_to_tensor, arguments))


# Cases that are not slow tests. The package searches batches with a growing cache. Its
# XLA programs use a fixed cache and packed weights.
LOOPS = {
    (None, "pre-norm", "arranged", True),
    (None, "short window", "arranged", True),
    (7, "pre-norm", "packed", False),
    (None, "relative", "arranged", True),
    (7, "relative", "packed", False),
}


@pytest.mark.parametrize(
    ("max_length", "variant", "weights", "dropped"),
    [
        slow_unless((max_length, *case, dropped) in LOOPS, max_length, *case, dropped)
        for max_length in CAPACITIES[:2]
        # A window changes the cache, and `weights` the matrix products.
        for case in (
            *(("pre-norm", each) for each in WEIGHTS),
            ("short window", "arranged"),
            *(("relative", each) for each in WEIGHTS[1:]),
        )
        for dropped in (True, False)
    ],
)
def test_step_in_a_compiled_loop_matches_whole_decoder(
    max_length, variant, weights, dropped
):
    """Inside a loop's body TensorFlow fuses operations that it does not fuse outside.

    TensorFlow 2.21 with oneDNN fuses the scaling, product, and bias of attention into
    one operation. Its result has the wrong shape (0,) if the batch size is unknown and
    the bias is a loop variable or captured. If `dropped` is true, finished sentences
    leave the batch and the context, which contains the bias, is a loop variable.
    Otherwise, the context is captured.
    """
    if max_length is None and not dropped:
        pytest.skip("Only a batch that shrinks needs a growing cache.")
    if dropped and keras.backend.backend() == "jax":
        pytest.skip("The batch cannot shrink on this backend.")
    model = shared_model(**VARIANTS[variant])
    source_ids = sources(model)
    target_ids = random_ids(np.random.default_rng(8), (3, STEPS), model)
    lengths = np.array([STEPS, 5, 2], "int32")

    def run(source_ids, target_ids, lengths):
        decoder = decoder_of(model, weights)
        cache, context = decoder.begin(source_ids, max_length=max_length)

        def step(state, cache, context, index):
            ids = ops.take(state.ids, index, axis=1)[:, None]
            logits, cache = decoder.step(ids, cache, context, index)
            here = (ops.arange(STEPS) == index)[:, None]
            logits = ops.where(here, logits[:, None], state.logits)
            done = index + 1 >= state.lengths
            return state._replace(logits=logits, done=done), cache

        batch_size = ops.shape(lengths)[0]
        logits = ops.zeros((batch_size, STEPS, model.num_outputs))
        done = ops.zeros((batch_size,), "bool")
        state = ForcedState(target_ids, logits, lengths, done)
        state = decode_loop(
            step, state, cache, context, STEPS, dropped, decoder.compact
        )
        return state.logits

    found = numpy(compiled(run, source_ids, target_ids, lengths))
    expected = numpy(model({"source_ids": source_ids, "target_ids": target_ids}))
    scale = np.abs(expected).max()
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(
            found[row, :length] / scale,
            expected[row, :length] / scale,
            atol=tolerance_of(model),
        )
