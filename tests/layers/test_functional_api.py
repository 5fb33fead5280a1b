"""The layers in Keras's functional API, compared with the same calls on arrays."""

import keras
import numpy as np
import pytest

from keras_transformer import layers

BATCH, LENGTH, WIDTH = 2, 5, 8
SIZES = {"num_heads": 2, "key_dim": 4, "d_ff": 16}
LAYERS = {
    "attention": (layers.MultiHeadAttention(2, 4, output_dim=6), 2),
    "restricted": (layers.RestrictedSelfAttention(2, 4, window=3), 2),
    "encoder_layer": (layers.EncoderLayer(**SIZES), 1),
    "encoder": (layers.Encoder(2, **SIZES), 1),
    "decoder_layer": (layers.DecoderLayer(**SIZES), 2),
    "decoder": (layers.Decoder(2, **SIZES, normalization="pre"), 2),
}


def vectors(seed=0):
    values = np.random.default_rng(seed).normal(size=(BATCH, LENGTH, WIDTH))
    return values.astype("float32")


@pytest.mark.parametrize("name", LAYERS)
def test_compute_output_shape_is_shape_of_output(name):
    layer, num_inputs = LAYERS[name]
    arrays = [vectors()] * num_inputs
    output = layer(*arrays)
    shapes = [array.shape for array in arrays]
    assert layer.compute_output_shape(*shapes) == tuple(output.shape)
    unknown = (None, None, WIDTH)
    assert layer.compute_output_shape(unknown) == (None, None, output.shape[-1])


def test_time_distributed_encoder_encodes_each_sequence():
    encoder = layers.Encoder(1, **SIZES)
    inputs = keras.Input((3, LENGTH, WIDTH))
    model = keras.Model(inputs, keras.layers.TimeDistributed(encoder)(inputs))
    batch = np.stack([vectors(seed) for seed in range(3)], axis=1)
    found = model(batch)
    for index in range(3):
        expected = encoder(batch[:, index])
        np.testing.assert_allclose(found[:, index], expected, rtol=1e-5, atol=1e-6)
