"""Consistency training (R-Drop and SimCut) and token dropout.

Two passes over a batch learn to make the same predictions. The loss and its gradients
are compared with PyTorch's automatic differentiation.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.training.consistency import (
    Consistency,
    TokenDropout,
    consistency_loss,
)

TOKENS, D_MODEL, VOCABULARY = 29, 7, 53


@pytest.fixture(scope="module")
def batch():
    """Decoder outputs of two passes, the output matrix, labels and token weights."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(2, TOKENS, D_MODEL)).astype("float32")
    matrix = rng.normal(size=(VOCABULARY, D_MODEL)).astype("float32")
    labels = rng.integers(0, VOCABULARY, TOKENS).astype("int32")
    labels[:3] = labels[3]  # several tokens share a row of the matrix
    weights = rng.choice([0.0, 1.0, 2.5], TOKENS).astype("float32")
    return *vectors, matrix, labels, weights


def torch_loss_and_gradients(batch, kind, weight, smoothing):
    """Returns the loss and its gradients, computed by PyTorch.

    The formula is from the paper of R-Drop or SimCut. R-Drop's loss is halved, because
    `Consistency` averages the losses of both passes.
    """
    import torch

    first, second, matrix, labels, weights = map(torch.tensor, batch)
    factors = [first, second, matrix]
    for each in factors:
        each.requires_grad_()
    logits = [each @ matrix.T for each in (first, second)]
    entropies = [
        torch.nn.functional.cross_entropy(
            each, labels.long(), label_smoothing=smoothing, reduction="none"
        )
        for each in logits
    ]
    p, q = (torch.log_softmax(each, -1) for each in logits)

    def divergence(one, other):
        return torch.nn.functional.kl_div(
            other, one, reduction="none", log_target=True
        ).sum(-1)

    if kind == "simcut":
        loss = entropies[0] + weight * divergence(p, q)
    else:
        both = weight / 2 * (divergence(p, q) + divergence(q, p))
        loss = (entropies[0] + entropies[1] + both) / 2
    total = (loss * weights).sum()
    total.backward()
    return total.item(), [each.grad.numpy() for each in factors]


@pytest.mark.backends
@pytest.mark.parametrize(
    # 29 tokens make several chunks of 8, or a single one of 64.
    ("smoothing", "chunk_tokens"),
    [
        (0.13, 8),
        (0.0, 64),
        pytest.param(0.13, 64, marks=pytest.mark.slow),
        pytest.param(0.0, 8, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_consistency_loss_matches_pytorch(batch, kind, smoothing, chunk_tokens):
    expected, expected_gradients = torch_loss_and_gradients(batch, kind, 3.0, smoothing)
    first, second, matrix, labels, weights = map(tf.constant, batch)
    loss_weights = Consistency(kind, 3.0).loss_weights

    @tf.function
    def value_and_gradients():
        with tf.GradientTape() as tape:
            tape.watch([first, second, matrix])
            value = consistency_loss(
                *(first, second, matrix, labels, weights),
                *(loss_weights, smoothing, chunk_tokens),
            )[0]
        return value, tape.gradient(value, [first, second, matrix])

    value, gradients = value_and_gradients()
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, right, rtol=1e-4, atol=1e-5)


def test_consistency_rejects_unknown_settings():
    for settings in ({"kind": "drop"}, {"weight": -1.0}, {"cutoff": 1.0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Consistency(**settings)


def model_and_batch(**options):
    """Returns a compiled `TrainingModel` with random weights, inputs and labels."""
    keras.utils.set_random_seed(3)
    dropout = options.pop("dropout", 0.0)
    transformer = kt.Transformer(
        19, num_layers=1, d_model=8, d_ff=8, num_heads=2, dropout=dropout
    )
    model = kt.training.TrainingModel(transformer, **options)
    rng = np.random.default_rng(2)
    ids = rng.integers(4, 19, (5, 7)).astype("int32")
    ids[2:, 5:] = 0
    labels = rng.integers(4, 19, (5, 6)).astype("int32")
    labels[3:, 4:] = 0
    targets = np.concatenate([np.full((5, 1), 2, "int32"), labels[:, :-1]], 1)
    model.compile(kt.training.FusedAdam(1e-3))
    model.build({"source_ids": (5, 7), "target_ids": (5, 6)})
    rng = np.random.default_rng(1)
    model.transformer.set_weights(
        [rng.normal(0, 0.3, x.shape) for x in transformer.get_weights()]
    )
    return model, {"source_ids": ids, "target_ids": targets}, labels


@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_equal_passes_have_the_loss_of_one_pass(kind):
    # Without dropout and cutoff, both passes agree and the divergence is 0.
    plain, *batch = model_and_batch()
    twice, *_ = model_and_batch(consistency=Consistency(kind, 3.0, cutoff=0.0))
    expected = plain.train_step(batch)
    found = twice.train_step(batch)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["perplexity"], expected["perplexity"], rtol=1e-5)


@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_consistency_raises_the_loss_of_different_passes(kind):
    weak, *batch = model_and_batch(dropout=0.3, consistency=Consistency(kind, 0.0))
    strong, *_ = model_and_batch(dropout=0.3, consistency=Consistency(kind, 5.0))
    found, expected = strong.train_step(batch), weak.train_step(batch)
    # Both models have the same seed, so they draw the same dropout masks.
    np.testing.assert_allclose(found["perplexity"], expected["perplexity"], rtol=1e-6)
    assert found["loss"] > expected["loss"] * 1.001


def test_consistency_is_off_in_validation():
    plain, *batch = model_and_batch()
    twice, *_ = model_and_batch(consistency=Consistency("simcut", 3.0, 0.5))
    expected = plain.test_step(batch)
    found = twice.test_step(batch)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)


SIMCUT = Consistency("simcut", cutoff=0.5)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"word_dropout": 0.5}, [{0, 2}]),
        ({"consistency": SIMCUT}, [{1}, {0, 1}]),
        ({"consistency": SIMCUT, "word_dropout": 0.5}, [{0, 2}, {0, 2}]),
        ({"consistency": Consistency("rdrop")}, []),
    ],
)
def test_token_factors_differ_between_passes(options, factors):
    """`factors` contains the factors of each pass. Validation has no factors."""
    model, *batch = model_and_batch(**options)
    decoder_output, received = model.transformer.decoder_output, []

    def spy(inputs, **arguments):
        received.append(inputs)
        return decoder_output(inputs, **arguments)

    model.transformer.decoder_output = spy
    model.test_step(batch)
    model.train_step(batch)
    validation, training = received
    assert set(validation) == {"source_ids", "target_ids"}
    for side in ("source", "target"):
        assert (f"{side}_factors" in training) == bool(factors)
        if factors:
            passes = np.split(training[f"{side}_factors"], len(factors))
            assert [set(np.unique(each)) for each in passes] == factors


def test_token_dropout_drops_whole_tokens_at_its_rate():
    ids = tf.ones([200, 300], tf.int32)
    scaled = TokenDropout(0.2)(ids).numpy()
    # Kept tokens have the factor 1 / (1 - 0.2).
    assert set(np.unique(scaled)) == {0.0, np.float32(1.25)}
    assert abs(np.mean(scaled == 0) - 0.2) < 0.01
    cut = TokenDropout(0.05, is_scaled=False)(ids).numpy()
    assert set(np.unique(cut)) == {0.0, 1.0}


@pytest.mark.parametrize("side", ["source", "target"])
def test_token_factors_scale_vectors_before_positions(side):
    transformer = kt.Transformer(19, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    ids = np.array([[5, 6, 7]], "int32")
    transformer({"source_ids": ids, "target_ids": ids})
    embed = getattr(transformer, f"embed_{side}")
    x = embed(ids, token_factors=np.array([[1.0, 0.0, 2.0]]))
    rows = transformer.token_embedding.embeddings.numpy()[ids[0]] * 8**0.5
    positions = embed(ids)[0] - rows
    expected = rows * np.array([[1.0], [0.0], [2.0]]) + positions
    np.testing.assert_allclose(x[0], expected, atol=1e-6)


@pytest.mark.parametrize("options", [{"word_dropout": 0.1}, {"consistency": SIMCUT}])
def test_regularization_that_needs_new_state_is_refused_on_a_built_model(options):
    model, *batch = model_and_batch()
    with pytest.raises(ValueError, match="must not become positive"):
        model.set_regularization(0.2, **options)
    assert model.label_smoothing == 0.1
    # Rates may change if they were once positive, also to 0 and back.
    model, *batch = model_and_batch(**options)
    for changes in ({}, options):
        model.set_regularization(0.2, **changes)
        assert np.isfinite(model.train_step(batch)["loss"])
