"""Tests of `Transformer` against the paper in NumPy, and of files and options."""

import json

import keras
import numpy as np
import paper_in_numpy
import pytest
from keras import ops
from layer_checks import check_saving, numpy, shapes
from small_transformers import (
    SIZES,
    SOURCES,
    TARGETS,
    build_model,
    inputs,
    padded,
    shared_model,
)

import keras_transformer as kt

OPTIONS = {
    "defaults": {},
    "widths": {"num_heads": 5, "key_dim": 4, "value_dim": 2},  # 5 does not divide 12
    "one width": {"value_dim": 7},
    "pre-norm": {"normalization": "pre"},
    "learned": {"positions": "learned", "max_length": 13},
    "relative": {"positions": "relative", "max_distance": 2, "value_dim": 3},
    "rotary": {"positions": "rotary"},
    "activation": {"activation": "gelu"},
    "dropouts": {"dropout": 0.3, "attention_dropout": 0.2},
    "padding": {"pad_id": 7},
    "outputs": {"output_size": 19},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "float16": {"dtype": "mixed_float16", "normalization": "pre"},
}


def real_logits(logits):
    """Returns the logits without padding: one array `[length, vocabulary]` per row."""
    rows = zip(numpy(logits), TARGETS, strict=True)
    return [row[: len(ids)] for row, ids in rows]


def assert_close(logits, others, tolerance=1e-4):
    for one, other in zip(logits, others, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance)


@pytest.mark.parametrize(
    "option",
    ["defaults", "widths", "one width", "pre-norm", "learned", "relative", "rotary"],
)
def test_transformer_matches_the_paper_in_numpy(option):
    model = shared_model(**OPTIONS[option])
    logits = real_logits(model(inputs()))
    for row, source_ids, target_ids in zip(logits, SOURCES, TARGETS, strict=True):
        expected = paper_in_numpy.transformer(model, source_ids, target_ids)
        assert_close([row], [expected])


@pytest.mark.parametrize(
    ("source_extra", "target_extra", "pad_id"), [(4, 0, 0), (0, 3, 0), (2, 1, 7)]
)
def test_transformer_logits_are_independent_of_padding(
    source_extra, target_extra, pad_id
):
    model = shared_model(pad_id=pad_id)
    expected = real_logits(model(inputs(pad_id=pad_id)))
    more = model(inputs(source_extra, target_extra, pad_id))
    assert more.shape[1] == 7 + target_extra
    assert_close(real_logits(more), expected, 1e-5)
    # The logits are also independent of the other sentences in the batch.
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = {"source_ids": np.array([source]), "target_ids": np.array([target])}
        assert_close([numpy(model(alone))[0]], [expected[i]], 1e-5)


@pytest.mark.parametrize("changed", [1, 4, 6])
def test_transformer_ignores_later_target_tokens(changed):
    model = shared_model()
    expected = numpy(model(inputs()))[1]
    other = inputs()
    other["target_ids"][1, changed] = 20
    output = numpy(model(other))[1]
    np.testing.assert_array_equal(output[:changed], expected[:changed])
    assert (output[changed:] != expected[changed:]).any(axis=-1).all()


@pytest.mark.parametrize("option", OPTIONS)
def test_saved_transformer_gives_the_same_logits(option):
    model = shared_model(**OPTIONS[option])
    pad_id = OPTIONS[option].get("pad_id", 0)
    reloaded = check_saving(model, inputs(1, 1, pad_id))
    config = model.get_config()
    assert reloaded.get_config() == config == json.loads(json.dumps(config))
    assert reloaded.dtype_policy.name == model.dtype_policy.name
    assert shapes(reloaded) == shapes(model)
    fresh = kt.Transformer.from_config(config)
    assert fresh.get_config() == config
    for name, value in {**SIZES, **OPTIONS[option]}.items():
        assert name == "dtype" or config[name] == value


@pytest.mark.parametrize("option", ["bfloat16", "float16"])
def test_transformer_computes_in_mixed_precision(option):
    options = dict(OPTIONS[option])
    model = shared_model(**options)
    policy = options.pop("dtype")
    for layer in model._flatten_layers():
        assert layer.dtype_policy.name == policy, layer.path
    assert {weight.dtype for weight in model.weights} == {"float32"}
    logits = model(inputs())
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    compute_dtype = policy.removeprefix("mixed_")
    encoded = model.encode(padded(SOURCES))
    assert keras.backend.standardize_dtype(encoded.dtype) == compute_dtype
    exact = build_model(**options)
    exact.set_weights(model.get_weights())
    # Rounding in each layer changes the logits by less than 5% of their spread.
    close, expected = numpy(logits)[1], numpy(exact(inputs()))[1]
    assert 0 < np.std(close - expected) < 0.05 * np.std(expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.encode(padded(SOURCES)),
        lambda model: model.decode(padded(TARGETS), np.ones((2, 5, 12), "float32")),
        lambda model: model.attention_scores(inputs()),
        lambda model: model.build(dict.fromkeys(inputs(), (None, None))),
    ],
    ids=["encode", "decode", "attention_scores", "build"],
)
def test_model_can_be_called_after_its_other_methods(use):
    model = kt.Transformer(**SIZES)
    use(model)
    logits = model(inputs())
    assert shapes(model) == shapes(build_model())
    model.build(dict.fromkeys(inputs(), (None, None)))
    np.testing.assert_array_equal(numpy(model(inputs())), numpy(logits))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_large_float_ids_are_exact_under_mixed_precision(policy):
    """Keras exports a signature with float ids. 16 bits would round 4097."""
    model = build_model(vocabulary_size=5000, dtype=policy)
    ids = {name: np.array([[4097, 4095, 3]]) for name in inputs()}
    floats = {name: each.astype("float32") for name, each in ids.items()}
    np.testing.assert_array_equal(numpy(model(floats)), numpy(model(ids)))


def test_transformer_accepts_symbolic_inputs():
    symbolic = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    model = build_model()
    logits = model(symbolic)
    assert (logits.shape, logits.dtype) == ((None, None, 41), "float32")
    functional = keras.Model(symbolic, logits)
    np.testing.assert_array_equal(numpy(functional(inputs())), numpy(model(inputs())))


def test_fit_step_changes_every_weight():
    """Runs one compiled step on labels that are padded like the targets."""
    model = build_model(**OPTIONS["learned"])
    before = [numpy(weight) for weight in model.weights]
    labels = np.roll(padded(TARGETS), -1, axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.fit(inputs(), labels, batch_size=2, verbose=0)
    assert len(model.trainable_weights) == len(before)
    for weight, old in zip(model.weights, before, strict=True):
        assert np.isfinite(numpy(weight)).all(), weight.path
        assert (numpy(weight) != old).any(), weight.path


def test_encode_and_decode_match_call():
    model = shared_model(pad_id=7)
    expected = numpy(model(inputs(pad_id=7)))
    source_ids, target_ids = inputs(pad_id=7).values()
    encoder_output = model.encode(source_ids)
    logits = model.decode(target_ids, encoder_output, source_ids != 7)
    np.testing.assert_array_equal(numpy(logits), expected)
    # A new tensor lacks Keras's mask, so padding of the source changes the logits.
    bare = ops.convert_to_tensor(ops.convert_to_numpy(encoder_output))
    assert (numpy(model.decode(target_ids, bare))[1] != expected[1]).any()
    vectors = numpy(model.decoder_output(inputs(pad_id=7)))
    embeddings = numpy(model.token_embedding.embeddings)
    assert_close(vectors @ embeddings.T, expected, 1e-5)


def test_dropout_applies_in_training_only():
    model = shared_model(**OPTIONS["dropouts"])
    still = [numpy(model(inputs(), training=False)) for _ in range(2)]
    np.testing.assert_array_equal(*still)
    np.testing.assert_array_equal(numpy(model(inputs())), still[0])
    drawn = [numpy(model(inputs(), training=True)) for _ in range(2)]
    assert (drawn[0] != drawn[1]).any() and (drawn[0] != still[0]).any()
    # One seed variable for the sums of embeddings and positions, 3 per encoder layer
    # and 5 per decoder layer: one per sublayer and one per attention.
    assert len(model.variables) - len(model.weights) == 1 + 2 * 3 + 2 * 5
    none = shared_model(dropout=0.0)
    np.testing.assert_array_equal(
        numpy(none(inputs(), training=True)), numpy(none(inputs()))
    )
    assert len(none.variables) == len(none.weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "`num_heads` must divide .* num_heads=5, d_model=12"),
        ({"num_heads": 0}, "`num_heads` must divide .* num_heads=0, d_model=12"),
        ({"key_dim": 0}, "`key_dim` must be at least 1. Received: 0"),
        ({"value_dim": -1}, "`value_dim` must be at least 1. Received: -1"),
        ({"num_layers": 0}, "`num_layers` must be at least 1. Received: 0"),
        ({"d_ff": 0}, "`d_ff` must be at least 1. Received: 0"),
        ({"d_model": 0}, "`d_model` must be at least 1. Received: 0"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be at least 1. Received: 0"),
        ({"positions": "none"}, "`positions` must be .* Received: 'none'"),
        ({"positions": "learned"}, "`max_length` of at least 1. Received: None"),
        (
            {"positions": "relative", "score_mode": "additive"},
            "Relative positions need `score_mode` .* Received: 'additive'",
        ),
        ({"positions": "rotary", "key_dim": 3}, "even `key_dim`. Received: 3"),
        ({"max_distance": 0}, "`max_distance` must be at least 1. Received: 0"),
        ({"normalization": "none"}, "`normalization` must be .* Received: 'none'"),
        ({"activation": "none"}, "activation function .*none"),
        ({"score_mode": "none"}, "`score_mode` must be .* Received: 'none'"),
        ({"dropout": -0.1}, "between 0 and 1.*-0.1"),
        ({"dropout": 1.1}, "between 0 and 1.*1.1"),
        ({"attention_dropout": 1.5}, "Received: 1.5"),
        ({"output_size": 99}, "`output_size` must be .* Received: 99 of"),
    ],
)
def test_transformer_rejects_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        kt.Transformer(**{**SIZES, **options})


def test_output_size_limits_logits():
    whole, part = shared_model(), build_model(output_size=19)
    part.set_weights(whole.get_weights())
    logits, fewer = numpy(whole(inputs())), numpy(part(inputs()))
    assert fewer.shape == (2, 7, 19)
    np.testing.assert_allclose(fewer, logits[..., :19], rtol=1e-5, atol=1e-5)


def test_inputs_must_be_a_dict():
    with pytest.raises(ValueError, match=r'a dict {"source_ids": .*Received: list\.$'):
        shared_model()(list(inputs().values()))


def test_jit_compile_of_a_file_suits_the_backend(tmp_path):
    """The file is like one that was written on JAX, where "auto" means true."""
    model = build_model(num_layers=1)
    model.compile("adam", "mse", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    automatic = build_model(num_layers=1)
    automatic.compile("adam", "mse")
    assert reloaded.jit_compile == automatic.jit_compile
    assert isinstance(reloaded.optimizer, keras.optimizers.Adam)
