"""The layers in Keras's functional API, compared with the same calls on arrays."""

import keras
import numpy as np
import pytest

from keras_transformer import layers

BATCH, LENGTH, SOURCE_LENGTH, WIDTH = 2, 5, 3, 8
SIZES = {"num_heads": 2, "key_dim": 4, "d_ff": 16}
LAYERS = {
    "attention": lambda: layers.MultiHeadAttention(2, 4, output_dim=6),
    "restricted": lambda: layers.RestrictedSelfAttention(2, 4, window=3),
    "encoder_layer": lambda: layers.EncoderLayer(**SIZES),
    "encoder": lambda: layers.Encoder(2, **SIZES),
    "decoder_layer": lambda: layers.DecoderLayer(**SIZES),
    "decoder": lambda: layers.Decoder(2, **SIZES, normalization="pre"),
}


def vectors(length):
    values = np.random.default_rng(0).normal(size=(BATCH, length, WIDTH))
    return values.astype("float32")


def arguments_of(name):
    """Returns positional arguments: the sequences, then the mask if it comes next."""
    source_mask = np.array([[True] * SOURCE_LENGTH, [True, True, False]])
    mask = np.array([[True] * LENGTH, [True, True, True, False, False]])
    if name.startswith("decoder"):
        return vectors(LENGTH), vectors(SOURCE_LENGTH), source_mask
    if name == "attention":
        return vectors(LENGTH), vectors(SOURCE_LENGTH), -vectors(SOURCE_LENGTH)
    if name == "restricted":
        return vectors(LENGTH), vectors(LENGTH)
    return vectors(LENGTH), mask[:, None] if name == "encoder_layer" else mask


def symbolic(array):
    """Returns an input for such arrays of any batch size and length."""
    if array.dtype == "float32":
        return keras.Input((None, WIDTH))
    axes = array.shape[1:-1]  # `(1,)` for a mask with an axis for queries
    return keras.Input((*axes, None), dtype="bool")


@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_symbolic_call_equals_call_on_arrays(name, with_scores):
    layer, arrays = LAYERS[name](), arguments_of(name)
    options = {"return_attention_scores": True} if with_scores else {}
    inputs = [symbolic(array) for array in arrays]
    outputs = layer(*inputs, **options)
    found = keras.Model(inputs, outputs)(list(arrays))
    expected = layer(*arrays, **options)
    flat = zip(*map(keras.tree.flatten, (outputs, found, expected)), strict=True)
    for spec, ours, array in flat:
        np.testing.assert_allclose(ours, array, rtol=1e-5, atol=1e-6)
        sizes = zip(spec.shape, array.shape, strict=True)
        assert all(known in (None, size) for known, size in sizes)
        assert spec.dtype == "float32"


@pytest.mark.parametrize("name", LAYERS)
def test_compute_output_shape_is_shape_of_output(name):
    layer, arrays = LAYERS[name](), arguments_of(name)
    shapes = [array.shape for array in arrays if array.dtype == "float32"]
    output = layer(*arrays)
    assert layer.compute_output_shape(*shapes) == tuple(output.shape)
    unknown = (None, None, WIDTH)
    assert layer.compute_output_shape(unknown) == (None, None, output.shape[-1])


def test_sequential_model_has_output_shape():
    model = keras.Sequential(
        [layers.TokenEmbedding(20, WIDTH), layers.Encoder(1, **SIZES)]
    )
    assert model.compute_output_shape((None, 7)) == (None, 7, WIDTH)


def test_time_distributed_encoder_encodes_each_sequence():
    encoder = layers.Encoder(1, **SIZES)
    inputs = keras.Input((3, LENGTH, WIDTH))
    model = keras.Model(inputs, keras.layers.TimeDistributed(encoder)(inputs))
    batch = np.stack([vectors(LENGTH), vectors(LENGTH)[::-1], -vectors(LENGTH)], axis=1)
    found = model(batch)
    for index in range(3):
        expected = encoder(batch[:, index])
        np.testing.assert_allclose(found[:, index], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_padding_of_ids_of_any_dtype_is_masked(dtype):
    """The default dtype of `keras.Input` is float32."""
    ids = keras.Input((None,), dtype=dtype)
    x = layers.TokenEmbedding(20, WIDTH)(ids)
    model = keras.Model(ids, layers.Encoder(1, **SIZES)(x))
    padded, short = np.array([[4, 9, 3, 0, 0, 0]]), np.array([[4, 9, 3]])
    expected = model(short.astype(dtype))
    found = model(padded.astype(dtype))[:, :3]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
