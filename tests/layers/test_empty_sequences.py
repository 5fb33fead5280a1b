"""Sequences of length 0 and batches without rows keep their other axes."""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import built

import keras_transformer as kt

OPTIONS = {"num_heads": 2, "key_dim": 4}
STACK = {**OPTIONS, "d_ff": 12}
LAYERS = {
    "attention": lambda: kt.layers.MultiHeadAttention(**OPTIONS),
    "additive": lambda: kt.layers.MultiHeadAttention(**OPTIONS, score_mode="additive"),
    "restricted": lambda: kt.layers.RestrictedSelfAttention(**OPTIONS, window=3),
    "wide_window": lambda: kt.layers.RestrictedSelfAttention(**OPTIONS, window=2000),
    "feed_forward": lambda: kt.layers.FeedForward(12),
    "encoder": lambda: kt.layers.Encoder(1, **STACK),
    "decoder": lambda: kt.layers.Decoder(1, **STACK),
}


def compiled(function, **shapes):
    """Compiles a function of a dict of tensors for unknown sizes, on TensorFlow only.

    Other backends do not support unknown sizes: on them, `function` is returned.

    Args:
        function: The function.
        shapes: For each key of the dict, the tensor's shape, of which only the rank is
            used, and its dtype.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    specs = {
        name: tf.TensorSpec([None] * len(shape), dtype)
        for name, (shape, dtype) in shapes.items()
    }
    traced = tf.function(lambda **inputs: function(inputs), autograph=False)
    concrete = traced.get_concrete_function(**specs)
    return lambda inputs: concrete(
        **{name: tf.constant(each) for name, each in inputs.items()}
    )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 3), (0, 0)])
def test_layer_keeps_the_axes_of_empty_sequences(name, batch, length):
    layer = LAYERS[name]()
    x = np.zeros((batch, length, 8), "float32")
    memory = np.zeros((batch, 3, 8), "float32")
    inputs = {"decoder": (x, memory), "attention": (x, memory), "additive": (x, memory)}
    is_restricted = name in ("restricted", "wide_window")
    inputs = inputs.get(name, (x, x) if is_restricted else (x,))
    layer.build(*[(None, None, 8) for _ in inputs])
    assert ops.shape(layer(*map(ops.array, inputs))) == (batch, length, 8)

    symbolic = [keras.Input((length, 8)) for _ in inputs]
    if len(inputs) == 2 and not is_restricted:
        symbolic[1] = keras.Input((3, 8))
    assert layer(*symbolic).shape == (None, length, 8)


@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 3), (0, 0)])
def test_transformer_keeps_the_axes_of_empty_targets(batch, length):
    model = built(11, num_layers=1, d_model=8, d_ff=12, num_heads=2)
    inputs = {
        "source_ids": np.full((batch, 4), 5, "int32"),
        "target_ids": np.zeros((batch, length), "int32"),
    }
    shapes = dict.fromkeys(inputs, ((None, None), "int32"))
    calls = (
        lambda inputs: model({k: ops.array(v) for k, v in inputs.items()}),
        compiled(model, **shapes),
    )
    for call in calls:
        assert tuple(call(inputs).shape) == (batch, length, 11)
    sources = {"source_ids": inputs["target_ids"], "target_ids": inputs["source_ids"]}
    for call in calls:
        assert tuple(call(sources).shape) == (batch, 4, 11)
