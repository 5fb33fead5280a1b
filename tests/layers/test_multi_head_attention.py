"""`MultiHeadAttention` against the paper's equation 1, Keras, and PyTorch."""

import math
import re

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import Case, numpy, randomize

from keras_transformer.layers import MultiHeadAttention

GENERATOR = np.random.default_rng(4)
QUERY = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
VALUE = GENERATOR.normal(size=(2, 3, 11)).astype("float32")
KEY = GENERATOR.normal(size=(2, 3, 13)).astype("float32")
# Row 0 attends to keys 0 and 2; row 1 to all, except that queries 1 and 3 skip key 0.
MASK = np.ones((2, 5, 3), bool)
MASK[0, :, 1] = False
MASK[1, [1, 3], 0] = False


def build_layer(*args, query=QUERY, value=VALUE, key=None, **kwargs):
    layer = MultiHeadAttention(*args, **kwargs)
    key_shape = None if key is None else key.shape
    layer.build(query.shape, value.shape, key_shape)
    randomize(layer)
    return layer


def test_attention_with_one_head_matches_hand_calculation():
    """With key_dim 4, logits are halved, so q.k = 2 ln 3 gives odds of 3 to 1."""
    layer = MultiHeadAttention(1, 4)
    query = np.array([[[2 * math.log(3), 0, 0, 0]]], "float32")
    value = np.eye(4, dtype="float32")[None, :3]
    layer.build(query.shape, value.shape)
    identity = np.eye(4, dtype="float32")
    layer.set_weights([identity, identity, identity, np.diag([1.0, 2.0, 4.0, 8.0])])
    # The exponentials of the logits are 3, 1 and 1, so the weights are 0.6, 0.2, 0.2.
    # The output projection multiplies the axes by 1, 2, 4 and 8.
    output = numpy(layer(query, value))
    np.testing.assert_allclose(output, [[[0.6, 0.4, 0.8, 0]]], rtol=1e-6)
    output = numpy(layer(query, value, attention_mask=[[[True, False, True]]]))
    np.testing.assert_allclose(output, [[[0.75, 0, 1, 0]]], rtol=1e-6)


def test_attention_ignores_masked_keys():
    """Outputs are bit-identical, even if the masked vectors are large."""
    layer = build_layer(3, 5, 2, key=KEY)
    expected = numpy(layer(QUERY, VALUE, KEY, attention_mask=MASK))
    for factor in (-7, 1e3, 1e12):
        value, key = VALUE.copy(), KEY.copy()
        value[0, 1] *= factor
        key[0, 1] *= factor
        output = numpy(layer(QUERY, value, key, attention_mask=MASK))
        np.testing.assert_array_equal(output[0], expected[0])
    value, key = VALUE.copy(), KEY.copy()
    value[1, 0] += 3
    key[1, 0] -= 3
    output = numpy(layer(QUERY, value, key, attention_mask=MASK))
    np.testing.assert_array_equal(output[1, [1, 3]], expected[1, [1, 3]])
    assert (output[1, [0, 2, 4]] != expected[1, [0, 2, 4]]).all()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("source_length", [1, 3])
def test_attention_is_zero_if_all_keys_are_masked(dtype, source_length):
    value = VALUE[:, :source_length]
    layer = build_layer(3, 5, 2, value=value, dtype=dtype)
    mask = np.ones((2, 5, source_length), bool)
    mask[0, 4] = False
    mask[1] = False
    output = numpy(layer(QUERY, value, attention_mask=mask))
    np.testing.assert_array_equal(output[0, 4], np.zeros(7))
    np.testing.assert_array_equal(output[1], np.zeros((5, 7)))
    assert (output[0, :4] != 0).all()


def test_attention_without_allowed_keys_has_finite_gradients():
    mask = MASK.copy()
    mask[0] = False
    inputs = {"query": QUERY, "value": VALUE, "attention_mask": mask}
    case = Case(MultiHeadAttention, {"num_heads": 3, "key_dim": 5}, inputs)
    layer = case.layer()
    model = case.model(layer)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(inputs, QUERY)
    for weight in layer.weights:
        assert np.isfinite(numpy(weight)).all()


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("value_dim", [2, 5])
def test_attention_matches_keras(value_dim, use_bias):
    if value_dim == 2 and keras.backend.backend() == "jax":
        pytest.skip("Keras's own layer needs equal widths on JAX")
    layer = build_layer(3, 5, value_dim, key=KEY, use_bias=use_bias)
    reference = keras.layers.MultiHeadAttention(
        3, 5, value_dim=value_dim, use_bias=use_bias
    )
    reference.build(QUERY.shape, VALUE.shape, KEY.shape)
    for name in ("query", "key", "value", "output"):
        dense = getattr(layer, f"{name}_dense")
        target = getattr(reference, f"_{name}_dense")
        for weight, other in zip(dense.weights, target.weights, strict=True):
            other.assign(ops.reshape(weight, other.shape))
    np.testing.assert_allclose(
        numpy(layer(QUERY, VALUE, KEY, attention_mask=MASK)),
        numpy(reference(QUERY, VALUE, KEY, attention_mask=MASK)),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.backends
def test_attention_matches_torch(use_bias):
    import torch

    query = GENERATOR.normal(size=(2, 5, 12)).astype("float32")
    layer = build_layer(3, 4, query=query, key=KEY, use_bias=use_bias)
    reference = torch.nn.MultiheadAttention(
        12, 3, bias=use_bias, kdim=13, vdim=11, batch_first=True
    )
    projections = [layer.query_dense, layer.key_dense, layer.value_dense]

    def tensor(array):
        return torch.tensor(np.asarray(array))

    state = {
        f"{name}_proj_weight": tensor(numpy(dense.kernel).T)
        for name, dense in zip("qkv", projections, strict=True)
    }
    state["out_proj.weight"] = tensor(numpy(layer.output_dense.kernel).T)
    if use_bias:
        biases = [numpy(dense.bias) for dense in projections]
        state["in_proj_bias"] = tensor(np.concatenate(biases))
        state["out_proj.bias"] = tensor(numpy(layer.output_dense.bias))
    reference.load_state_dict(state)
    ignored = ~MASK[:, :1].repeat(5, axis=1)
    # PyTorch needs a mask for each head of each row.
    expected, _ = reference(
        tensor(query),
        tensor(KEY),
        tensor(VALUE),
        attn_mask=tensor(ignored.repeat(3, axis=0)),
    )
    np.testing.assert_allclose(
        numpy(layer(query, VALUE, KEY, attention_mask=~ignored)),
        expected.detach().cpu().numpy(),
        rtol=1e-3,
        atol=1e-5,
    )


def test_attention_implicit_masks_hide_keys_only():
    """Masks that earlier Keras layers set are combined with the explicit one."""
    ids = np.array([[5, 2, 0, 0], [1, 4, 3, 0]])
    vectors = keras.layers.Embedding(6, 11, mask_zero=True)(ids)
    layer = build_layer(3, 5, value=vectors)
    explicit = (ids != 0)[:, None, :]
    bare = ops.convert_to_tensor(ops.convert_to_numpy(vectors))
    np.testing.assert_array_equal(
        numpy(layer(QUERY, vectors)),
        numpy(layer(QUERY, bare, attention_mask=explicit)),
    )
    mask = np.ones((2, 1, 4), bool)
    mask[:, :, 0] = False
    np.testing.assert_array_equal(
        numpy(layer(QUERY, vectors, attention_mask=mask)),
        numpy(layer(QUERY, bare, attention_mask=explicit & mask)),
    )
    # A mask on the keys has the same effect as one on the values.
    layer = build_layer(3, 5, value=bare)
    np.testing.assert_array_equal(
        numpy(layer(QUERY, bare, vectors)),
        numpy(layer(QUERY, bare, attention_mask=explicit)),
    )
    # A mask on the queries has no effect here: later layers mask their outputs.
    layer = build_layer(3, 5, query=vectors)
    np.testing.assert_array_equal(
        numpy(layer(vectors, VALUE)), numpy(layer(bare, VALUE))
    )


def test_attention_scores_are_taken_before_dropout():
    layer = build_layer(3, 5, dropout=0.5)
    (output, scores), (expected_output, expected) = (
        layer(QUERY, VALUE, return_attention_scores=True, training=training)
        for training in (True, False)
    )
    np.testing.assert_array_equal(numpy(scores), numpy(expected))
    assert (numpy(output) != numpy(expected_output)).any()


def test_attention_kernels_start_with_glorot_deviation():
    layer = MultiHeadAttention(8, 16)
    layer.build((None, None, 96), (None, None, 96))
    # The kernels map 96 units to 8 x 16 = 128, or 128 to 96.
    for kernel in layer.weights:
        deviation = math.sqrt(2 / (96 + 128))
        np.testing.assert_allclose(numpy(kernel).std(), deviation, rtol=0.05)


@pytest.mark.parametrize("score_mode", ["dot", "additive"])
def test_attention_with_other_score_modes_matches_their_formulas(score_mode):
    """Section 3.2.1 names these functions. The test applies them pair by pair."""
    layer = build_layer(3, 5, score_mode=score_mode)
    _, scores = layer(QUERY, VALUE, attention_mask=MASK, return_attention_scores=True)
    found = numpy(scores)
    q = (QUERY @ numpy(layer.query_dense.kernel)).reshape(2, 5, 3, 5)
    k = (VALUE @ numpy(layer.key_dense.kernel)).reshape(2, 3, 3, 5)
    if score_mode == "additive":
        w = numpy(layer.score_weights)
    for row in range(2):
        for head in range(3):
            for i in range(5):
                logits = np.full(3, -np.inf)
                for j in np.flatnonzero(MASK[row, i]):
                    one, other = q[row, i, head], k[row, j, head]
                    logits[j] = (
                        one @ other
                        if score_mode == "dot"
                        else w[head] @ np.tanh(one + other)
                    )
                expected = np.exp(logits - logits.max())
                expected /= expected.sum()
                np.testing.assert_allclose(
                    found[row, head, i], expected, rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize("name", ["query", "value", "key", "attention_mask"])
def test_attention_rejects_arrays_without_three_axes(name):
    layer = MultiHeadAttention(3, 5)
    arrays = {"query": QUERY, "value": VALUE, "key": VALUE, "attention_mask": MASK}
    arrays[name] = arrays[name][:, None]
    shape = re.escape(str(arrays[name].shape))
    with pytest.raises(ValueError, match=rf"`{name}` must have .*: shape {shape}\."):
        layer(**arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be at least 1. Received: 0"),
        ({"output_dim": 0}, "`output_dim` must be at least 1. Received: 0"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\)"),
        ({"dropout": -0.1}, r"`dropout` must be in \[0, 1\)"),
        ({"score_mode": "cosine"}, r"scaled_dot, dot, additive.*'cosine'"),
    ],
)
def test_attention_rejects_invalid_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"num_heads": 3, "key_dim": 5, **changes})
