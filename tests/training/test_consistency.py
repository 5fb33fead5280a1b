"""Consistency training (R-Drop and SimCut) and token dropout.

Two passes over a batch learn to make the same predictions.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import training_samples

import keras_transformer as kt
from keras_transformer.training.consistency import Consistency, draw_token_factors


def test_consistency_rejects_unknown_settings():
    for settings in ({"kind": "drop"}, {"weight": -1.0}, {"cutoff": 1.0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Consistency(**settings)


def model_and_batch(**options):
    """Returns a compiled `TrainingModel` with random weights, inputs and labels."""
    keras.utils.set_random_seed(3)
    dropout = options.pop("dropout", 0.0)
    transformer = kt.Transformer(
        23, num_layers=1, d_model=8, d_ff=8, num_heads=2, dropout=dropout
    )
    model = kt.training.TrainingModel(transformer, **options)
    inputs, labels = training_samples.batch(2)
    model.compile(kt.training.FusedAdam(1e-3))
    model.build({name: ids.shape for name, ids in inputs.items()})
    rng = np.random.default_rng(1)
    model.transformer.set_weights(
        [rng.normal(0, 0.3, x.shape) for x in transformer.get_weights()]
    )
    return model, inputs, labels


def floats(metrics):
    return {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_consistency_adds_the_divergence_of_both_passes(kind):
    plain, *batch = model_and_batch()
    expected = floats(plain.train_step(batch))
    # Without dropout and cutoff, both passes agree and the divergence is 0.
    twice, *_ = model_and_batch(consistency=Consistency(kind, 3.0, cutoff=0.0))
    found = floats(twice.train_step(batch))
    assert found == pytest.approx(expected, rel=1e-5)
    # Both models have the same seed, so they draw the same dropout masks.
    weak, *_ = model_and_batch(dropout=0.3, consistency=Consistency(kind, 0.0))
    strong, *_ = model_and_batch(dropout=0.3, consistency=Consistency(kind, 5.0))
    found, expected = (floats(each.train_step(batch)) for each in (strong, weak))
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert found["loss"] > expected["loss"] * 1.001
    # Validation has one pass.
    plain, *_ = model_and_batch()
    twice, *_ = model_and_batch(consistency=Consistency(kind, 3.0, 0.5))
    expected = floats(plain.test_step(batch))
    assert floats(twice.test_step(batch)) == pytest.approx(expected, rel=1e-6)


SIMCUT = Consistency("simcut", cutoff=0.5)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"token_dropout": 0.5}, [{0, 2}]),
        ({"consistency": SIMCUT}, [{1}, {0, 1}]),
        ({"consistency": SIMCUT, "token_dropout": 0.5}, [{0, 2}, {0, 2}]),
        ({"consistency": Consistency("rdrop")}, []),
    ],
)
def test_token_factors_differ_between_passes(options, factors):
    """`factors` contains the factors of each pass. Validation has no factors."""
    model, *batch = model_and_batch(**options)
    decoder_output, received = model.transformer.decoder_output, []

    def spy(inputs, **arguments):
        received.append(arguments)
        return decoder_output(inputs, **arguments)

    model.transformer.decoder_output = spy
    model.test_step(batch)
    model.train_step(batch)
    validation, training = received
    for side in ("source_factors", "target_factors"):
        assert side not in validation
        passes = np.split(training[side], len(factors)) if factors else []
        assert [set(np.unique(each)) for each in passes] == factors
        assert (training[side] is None) == (not factors)


def test_token_factors_drop_whole_tokens_at_its_rate():
    ids = tf.ones([200, 300], tf.int32)
    generator = keras.random.SeedGenerator(3)
    factors = draw_token_factors(ids, 0.2, generator, kept_factor=1.25).numpy()
    assert set(np.unique(factors)) == {0.0, 1.25}
    assert abs(np.mean(factors == 0) - 0.2) < 0.01


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


@pytest.mark.parametrize("options", [{"token_dropout": 0.1}, {"consistency": SIMCUT}])
def test_options_that_need_new_state_are_refused_on_a_built_model(options):
    model, *batch = model_and_batch()
    with pytest.raises(ValueError, match="must not become positive"):
        model.change_options(label_smoothing=0.2, **options)
    assert model.options.label_smoothing == 0.1
    # Rates may change if they were once positive, also to 0 and back.
    model, *batch = model_and_batch(**options)
    for changes in ({"token_dropout": 0.0, "consistency": None}, options):
        model.change_options(label_smoothing=0.2, **changes)
        assert np.isfinite(model.train_step(batch)["loss"])
