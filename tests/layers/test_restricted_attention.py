"""Restricted self-attention against full attention under the same band of a mask."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer
from layer_checks import numpy
from layer_checks import randomize

import keras_transformer as kt
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers import RestrictedSelfAttention
from keras_transformer.layers import decoding_cache

GENERATOR = np.random.default_rng(6)
WIDTH = 10
# As many lengths as tokens: row 1 ends early, row 2 has holes.
LENGTHS = (1, 2, 5, 16, 17, 23)


def sequence(length, rows=3):
    return GENERATOR.normal(size=(rows, length, WIDTH)).astype("float32")


def token_mask(length):
    mask = np.ones((3, length), bool)
    mask[1, length // 2 :] = False
    mask[2, ::3] = False
    return mask


def pair(window, **kwargs):
    """A restricted layer and a full one with its weights."""
    arguments = {"num_heads": 3, "key_dim": 4, "value_dim": 5, **kwargs}
    layers = (
        RestrictedSelfAttention(window=window, **arguments),
        MultiHeadAttention(**arguments),
    )
    for layer in layers:
        layer.build((None, None, WIDTH), (None, None, WIDTH))
    randomize(layers[0])
    layers[1].set_weights(layers[0].get_weights())
    return layers


def band(length, window, causal):
    """Pair by pair, as section 4 and the layer's documentation say."""
    seen = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            if causal:
                seen[i, j] = i - window < j <= i
            else:
                seen[i, j] = i - (window - 1) // 2 <= j <= i + window // 2
    return seen


@pytest.mark.parametrize(
    ("kwargs", "inputs"),
    [
        ({"window": 3, "dropout": 0.2}, {}),
        ({"window": 4, "value_dim": 2}, {"attention_mask": np.ones((2, 1, 7), bool)}),
    ],
)
def test_every_layers_checks(kwargs, inputs):
    x = sequence(7, rows=2)
    kwargs = {"num_heads": 3, "key_dim": 5, "dropout": 0.1, **kwargs}
    inputs = {"query": x, "value": x[::-1].copy(), **inputs}
    check_layer(RestrictedSelfAttention, kwargs, inputs, (2, 7, WIDTH), 4, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 8, 40])
def test_equals_full_attention_under_the_band(window, causal):
    restricted, full = pair(window)
    for length in LENGTHS:
        x, tokens = sequence(length), token_mask(length)
        seen = band(length, window, causal)[None]
        for masked in (False, True):
            output = restricted(
                x,
                x,
                value_mask=tokens if masked else None,
                use_causal_mask=causal,
            )
            mask = seen & tokens[:, None, :] if masked else seen
            expected = full(x, x, attention_mask=mask)
            np.testing.assert_allclose(numpy(output), numpy(expected), atol=2e-6)
            if masked:
                again = restricted(
                    x, x, attention_mask=tokens[:, None, :], use_causal_mask=causal
                )
                np.testing.assert_array_equal(numpy(again), numpy(output))


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="gradients by GradientTape"
)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_those_under_the_band(causal):
    import tensorflow as tf

    restricted, full = pair(5)
    x, tokens = tf.constant(sequence(17)), token_mask(17)
    mask = band(17, 5, causal)[None] & tokens[:, None, :]

    def gradients(call, layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(call()))
        found = tape.gradient(loss, [x, *(w.value for w in layer.trainable_weights)])
        return [gradient.numpy() for gradient in found]

    found = gradients(
        lambda: restricted(x, x, value_mask=tokens, use_causal_mask=causal), restricted
    )
    expected = gradients(lambda: full(x, x, attention_mask=mask), full)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("window", [1, 4, 40])
@pytest.mark.parametrize("max_length", [None, 11])
def test_cached_equals_uncached(window, max_length):
    restricted, _ = pair(window)
    x = sequence(11)
    expected = numpy(restricted(x, x, use_causal_mask=True))
    cache = restricted.init_cache(3, max_length)
    for index in range(11):
        output, cache = restricted.call_with_cache(
            x[:, index : index + 1], cache, index
        )
        np.testing.assert_allclose(numpy(output)[:, 0], expected[:, index], atol=2e-6)
        for key, value in decoding_cache.parts(cache):
            assert key.shape[2] <= window and value.shape[2] <= window


def test_several_positions_at_once_in_a_growing_cache():
    restricted, _ = pair(4)
    x = sequence(11)
    expected = numpy(restricted(x, x, use_causal_mask=True))
    cache = restricted.init_cache(3)
    for start, end in ((0, 6), (6, 7), (7, 11)):
        output, cache = restricted.call_with_cache(x[:, start:end], cache, start)
        np.testing.assert_allclose(numpy(output), expected[:, start:end], atol=2e-6)
    with pytest.raises(ValueError, match="one position at a time"):
        restricted.call_with_cache(x[:, :2], restricted.init_cache(3, 11), 0)


def test_a_row_without_any_token_gives_zeros():
    restricted, _ = pair(3)
    x = sequence(7)
    mask = np.ones((3, 7), bool)
    mask[1] = False
    output = numpy(restricted(x, x, value_mask=mask))
    assert np.all(output[1] == 0) and np.all(np.isfinite(output))


def test_mistakes():
    with pytest.raises(ValueError, match=r"`window` must be at least 1\. Received: 0"):
        RestrictedSelfAttention(2, 3, 0)
    restricted, _ = pair(3)
    x = sequence(7)
    with pytest.raises(ValueError, match=r"shape \[batch, 1, length\]"):
        restricted(x, x, attention_mask=np.ones((3, 7, 7), bool))
    with pytest.raises(ValueError, match=r"same sequence\. Received: lengths 7 and"):
        restricted(x, sequence(5))


@pytest.mark.parametrize("window", [1, 4, 30])
def test_projected_keys_are_seen_within_the_window_only(window):
    restricted, full = pair(window)
    x = sequence(9)
    output = restricted.call_with_key_value(x, restricted.project_key_value(x))
    near = np.broadcast_to(band(9, window, causal=False), (3, 9, 9))
    np.testing.assert_allclose(
        numpy(output), numpy(full(x, x, attention_mask=near)), atol=1e-5
    )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="traces a graph")
def test_a_buffer_of_a_size_known_later():
    import tensorflow as tf

    restricted, _ = pair(4)

    @tf.function
    def sizes(length):
        cache = restricted.init_cache(2, length)
        return [tf.shape(each) for each in tf.nest.flatten(cache)]

    for length in (3, 4, 9):
        expected = [
            each.shape for each in tf.nest.flatten(restricted.init_cache(2, length))
        ]
        found = [tuple(each.numpy()) for each in sizes(tf.constant(length))]
        assert found == [tuple(shape) for shape in expected]


def transformer(window):
    keras.utils.set_random_seed(3)
    model = kt.Transformer(
        19, 2, d_model=12, d_ff=20, num_heads=2, attention_window=window
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def test_a_transformer_with_a_wide_window_is_one_without():
    source = GENERATOR.integers(1, 19, (3, 9)).astype("int32")
    source[1, 5:] = 0
    inputs = {"source_ids": source, "target_ids": source[:, :7].copy()}
    wide, whole, narrow = transformer(30), transformer(None), transformer(3)
    assert [w.shape for w in wide.weights] == [w.shape for w in whole.weights]
    np.testing.assert_allclose(numpy(wide(inputs)), numpy(whole(inputs)), atol=2e-6)
    assert np.abs(numpy(narrow(inputs)) - numpy(whole(inputs))).max() > 1e-3
    again = kt.Transformer.from_config(narrow.get_config())
    assert again.encoder.layers[1].self_attention.window == 3
    assert again.decoder.layers[0].cross_attention.__class__ is MultiHeadAttention


@pytest.mark.parametrize("max_length", [None, 6])
def test_a_transformer_decodes_step_by_step(max_length):
    model = transformer(3)
    source = GENERATOR.integers(1, 19, (2, 9)).astype("int32")
    target = GENERATOR.integers(1, 19, (2, 6)).astype("int32")
    expected = numpy(model({"source_ids": source, "target_ids": target}))
    cache, context = model.init_cache(source, max_length)
    for index in range(6):
        ids = ops.convert_to_tensor(target[:, index : index + 1])
        logits, cache = model.decode_with_cache(ids, cache, context, index)
        np.testing.assert_allclose(numpy(logits)[:, 0], expected[:, index], atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the search as a tf.function"
)
def test_beam_search_with_a_window():
    """The search's score of its best is the sum of `call`'s log-probabilities."""
    import tensorflow as tf

    from keras_transformer.decoding import translate_ids

    model = transformer(3)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * GENERATOR.normal(size=weight.shape))
    source = GENERATOR.integers(4, 19, (4, 9)).astype("int32")
    search = tf.function(
        lambda ids: translate_ids(
            model, ids, beam_size=3, length_penalty=0.0, extra_length=4
        ),
        autograph=False,
    )
    sequences, scores = (result[:, 0].numpy() for result in search(source))
    start = np.full((4, 1), 2, "int32")
    targets = np.concatenate([start, sequences[:, :-1]], axis=1)
    logits = model({"source_ids": source, "target_ids": targets})
    log_probs = numpy(ops.log_softmax(logits))
    chosen = np.take_along_axis(log_probs, sequences[..., None], axis=2)[..., 0]
    expected = np.sum(chosen * (sequences != 0), axis=1)
    assert np.any(np.sum(sequences != 0, axis=1) > 3)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
