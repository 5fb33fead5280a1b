"""`TokenEmbedding` against NumPy: lookup, projection to logits, and mask."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy, randomize

from keras_transformer.layers import TokenEmbedding

IDS = np.array([[5, 2, 10], [3, 0, 0]], "int32")


def build_layer(**kwargs):
    layer = TokenEmbedding(11, 7, **kwargs)
    layer.build()
    return layer


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_embedding_scales_rows_by_root_of_width(dtype):
    layer = build_layer()
    expected = numpy(layer.embeddings)[IDS] * 7**0.5
    output = numpy(layer(ops.convert_to_tensor(IDS, dtype)))
    np.testing.assert_allclose(output, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [None, 4])
def test_embedding_projects_with_the_same_matrix(size):
    """Logits are products with the rows: no scale and no bias."""
    layer = build_layer(output_size=size)
    vectors = np.random.default_rng(1).normal(size=(2, 3, 7)).astype("float32")
    expected = vectors @ numpy(layer.embeddings)[:size].T
    output = layer(vectors, reverse=True)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=1e-5)
    assert [weight.shape for weight in layer.weights] == [(11, 7)]
    symbolic = layer(keras.Input((None, 7)), reverse=True)
    assert symbolic.shape == (None, None, size or 11)
    for size in (0, 12):
        with pytest.raises(ValueError, match=f"`output_size` .* Received: {size} of"):
            build_layer(output_size=size)


def test_embedding_vectors_start_with_unit_variance():
    layer = TokenEmbedding(503, 101)
    vectors = numpy(layer(np.arange(503)[None]))
    np.testing.assert_allclose(vectors.std(), 1, rtol=0.02)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_embedding_logits_are_float32_under_mixed_precision(policy):
    """The matrix is not rounded either: logits are exact products."""
    layer = build_layer(dtype=policy)
    compute_dtype = policy.removeprefix("mixed_")
    vectors = np.random.default_rng(1).normal(size=(2, 3, 7)).astype("float32")
    vectors = ops.cast(vectors, compute_dtype)
    logits = layer(vectors, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = numpy(vectors) @ numpy(layer.embeddings).T
    np.testing.assert_allclose(numpy(logits), expected, rtol=1e-5, atol=1e-6)
    symbolic = layer(keras.Input((None, 7), dtype=compute_dtype), reverse=True)
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 11), "float32")
    embedded = layer(IDS)
    assert keras.backend.standardize_dtype(embedded.dtype) == compute_dtype


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_embedding_keeps_large_ids_exact_under_mixed_precision(dtype):
    """bfloat16 has 8 significant bits and would round 4097 to 4096."""
    layer = TokenEmbedding(65_537, 1, dtype="mixed_bfloat16")
    layer.build()
    layer.embeddings.assign((np.arange(65_537) % 2).astype("float32")[:, None])
    output = layer(np.array([[4096, 4097, 65_534, 65_535]], dtype))
    np.testing.assert_array_equal(numpy(output)[0, :, 0], [0, 1, 0, 1])


@pytest.mark.parametrize("length", [3, 7])
def test_float_ids_get_the_mask_of_integers(length):
    """`keras.Input` is float32 by default. The width of an embedding is 7."""
    inputs = keras.Input((length,))
    masks = keras.Model(inputs, MaskOf()(build_layer(pad_id=1)(inputs)))
    ids = np.array([[2, 1, 1, 5, 1, 0, 1][:length]])
    np.testing.assert_array_equal(numpy(masks(ids.astype("float32"))), ids != 1)


class MaskOf(keras.layers.Layer):
    """Returns the Keras mask of its input."""

    supports_masking = True

    def call(self, inputs, mask=None):
        return ops.cast(mask, "float32")


@pytest.mark.parametrize("policy", ["bfloat16", "float16", "float64", "mixed_float16"])
def test_embedding_logits_with_bias_are_float32(policy):
    layer = build_layer(use_bias=True, dtype=policy)
    layer.bias.assign(np.arange(11))
    vectors = np.ones((2, 7), "float32")
    logits = layer(vectors, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = numpy(layer.embeddings).sum(1) + np.arange(11)
    np.testing.assert_allclose(numpy(logits), np.stack([expected] * 2), rtol=1e-4)
    left, right = map(numpy, layer.loss_operands(ops.convert_to_tensor(vectors)))
    np.testing.assert_allclose(left @ right.T, numpy(logits), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"tied": False, "use_bias": True}])
def test_lora_trains_two_small_matrices(options, tmp_path):
    layer = build_layer(**options)
    before, matrix = numpy(layer(IDS)), numpy(layer.embeddings)
    layer.enable_lora(2, lora_alpha=6)
    np.testing.assert_array_equal(numpy(layer(IDS)), before)
    names = [weight.name for weight in layer.trainable_weights]
    tied = {"lora_embeddings_a", "lora_embeddings_b"}
    assert set(names) == (tied if layer.tied else tied | {"output_matrix", "bias"})
    randomize(layer)
    a, b = layer.lora_embeddings_a, layer.lora_embeddings_b
    base = numpy(layer._embeddings)
    assert (base != matrix).any()
    merged = base + 6 / 2 * numpy(a) @ numpy(b)
    width = merged.shape[1]
    np.testing.assert_allclose(numpy(layer(IDS)), merged[IDS] * width**0.5, atol=1e-5)
    vectors = np.random.default_rng(3).normal(size=(2, 3, width)).astype("float32")
    logits = numpy(layer(vectors, reverse=True))
    if layer.tied:
        np.testing.assert_allclose(logits, vectors @ merged.T, rtol=1e-4, atol=1e-4)
    # As in Keras, a file has the sum of both.
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    np.testing.assert_allclose(numpy(again.embeddings), merged, atol=1e-6)
    np.testing.assert_allclose(numpy(again(vectors, reverse=True)), logits, atol=1e-5)
