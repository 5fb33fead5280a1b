"""`RestrictedSelfAttention` against full attention with a band mask.

In restricted self-attention (section 4 of the paper), each position attends to the
`window` positions around it, or to the last `window` positions if attention is causal.
A band mask hides all other positions.
"""

import keras
import numpy as np
import pytest
from layer_checks import numpy, randomize
from small_transformers import built

import keras_transformer as kt
from keras_transformer.layers import MultiHeadAttention, RestrictedSelfAttention

WIDTH = 10
# Lengths below, at, and above multiples of the tested windows.
LENGTHS = (1, 2, 5, 16, 17, 23)


def sequence(length, rows=3):
    generator = np.random.default_rng(length)
    return generator.normal(size=(rows, length, WIDTH)).astype("float32")


def token_mask(length):
    """Returns a mask in which row 1 ends early and row 2 has holes."""
    mask = np.ones((3, length), bool)
    mask[1, length // 2 :] = False
    mask[2, ::3] = False
    return mask


def pair(window, **kwargs):
    """Returns a restricted layer and a full one with the same weights."""
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
    """Returns the band mask `[length, length]`, computed pair by pair."""
    seen = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            if causal:
                seen[i, j] = i - window < j <= i
            else:
                seen[i, j] = i - (window - 1) // 2 <= j <= i + window // 2
    return seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "options"),
    [
        *((window, {}) for window in (1, 2, 3, 8, 40, 2**31 - 1)),
        *((window, {"positions": "relative", "max_distance": 3}) for window in (2, 9)),
        (5, {"positions": "rotary"}),
    ],
)
def test_restricted_attention_matches_full_attention_with_band_mask(
    window, options, causal
):
    restricted, full = pair(window, **options)
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
    keras.backend.backend() != "tensorflow", reason="dynamic lengths by tf.function"
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1100, 2**31 - 1])
def test_restricted_attention_accepts_dynamic_lengths(window, causal):
    """The window 2**31 - 1 would exhaust the memory if blocks were as long."""
    import tensorflow as tf

    # In float32, how threads divide sums over 601 keys changes results by up to 4e-6.
    restricted, full = pair(window, dtype="float64")
    attend = tf.function(
        lambda x: restricted(x, x, use_causal_mask=causal),
        input_signature=[tf.TensorSpec([3, None, WIDTH], "float64")],
    )
    for length in (0, 1, 23, 601):
        x = sequence(length).astype("float64")
        expected = full(x, x, attention_mask=band(length, window, causal)[None])
        np.testing.assert_allclose(
            numpy(attend(x)), numpy(expected), rtol=2e-6, atol=2e-6
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_restricted_attention_scores_match_full_attention(window, causal):
    """Scores outside the band are exactly 0."""
    restricted, full = pair(window)
    x, tokens = sequence(11), token_mask(11)
    mask = band(11, window, causal)[None] & tokens[:, None, :]
    _, expected = full(x, x, attention_mask=mask, return_attention_scores=True)
    _, scores = restricted(
        x, x, value_mask=tokens, use_causal_mask=causal, return_attention_scores=True
    )
    np.testing.assert_allclose(numpy(scores), numpy(expected), atol=1e-6)
    hidden = np.broadcast_to(~mask[:, None], scores.shape)
    assert (numpy(scores)[hidden] == 0).all()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="gradients by GradientTape"
)
@pytest.mark.parametrize("causal", [False, True])
def test_restricted_attention_gradients_match_band_mask(causal):
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


def test_restricted_attention_without_tokens_is_zero():
    restricted, _ = pair(3)
    x = sequence(7)
    mask = np.ones((3, 7), bool)
    mask[1] = False
    output = numpy(restricted(x, x, value_mask=mask))
    assert np.all(output[1] == 0) and np.all(np.isfinite(output))


def test_restricted_attention_accepts_one_value_for_all_keys():
    restricted, full = pair(3)
    x = sequence(7)
    seen = band(7, 3, False)[None]
    mask = np.array([True, False, True])[:, None, None]
    output = restricted(x, x, attention_mask=mask)
    expected = full(x, x, attention_mask=mask & seen)
    np.testing.assert_allclose(numpy(output), numpy(expected), atol=2e-6)


def test_restricted_attention_rejects_invalid_inputs():
    with pytest.raises(ValueError, match=r"`window` must be at least 1\. Received: 0"):
        RestrictedSelfAttention(2, 3, 0)
    restricted, _ = pair(3)
    x = sequence(7)
    with pytest.raises(ValueError, match=r"shape \[batch, 1, length\]"):
        restricted(x, x, attention_mask=np.ones((3, 7, 7), bool))
    with pytest.raises(ValueError, match=r"same sequence\. Received: lengths 7 and"):
        restricted(x, sequence(5))


def test_transformer_with_wide_window_matches_one_without():
    source = np.random.default_rng(6).integers(1, 19, (3, 9)).astype("int32")
    source[1, 5:] = 0
    inputs = {"source_ids": source, "target_ids": source[:, :7].copy()}
    wide, whole, narrow = (
        built(19, 2, d_model=12, d_ff=20, num_heads=2, attention_window=window)
        for window in (30, None, 3)
    )
    assert [w.shape for w in wide.weights] == [w.shape for w in whole.weights]
    np.testing.assert_allclose(numpy(wide(inputs)), numpy(whole(inputs)), atol=2e-6)
    assert np.abs(numpy(narrow(inputs)) - numpy(whole(inputs))).max() > 1e-3
    again = kt.Transformer.from_config(narrow.get_config())
    assert again.encoder.layers[1].self_attention.window == 3
    assert again.decoder.layers[0].cross_attention.__class__ is MultiHeadAttention
