"""Checks the model, losses, and files on the backend that KERAS_BACKEND names.

test_model_on_backends.py runs this script. Its last two arguments are the path of a
`.keras` file written on another backend, and the path of an `.npz` file with inputs of
that model and its logits on that backend.
"""

import sys

import keras
import numpy as np
import paper_in_numpy
from keras import ops
from layer_checks import check_saving, numpy, randomize

from keras_transformer.decoding import BeamSearch, Sampling, sample_ids, translate_ids
from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.decoding.incremental import IncrementalDecoder
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.schedules import NoamSchedule
from keras_transformer.transformer import Transformer

SIZES = {"vocabulary_size": 41, "num_layers": 2, "d_model": 12, "d_ff": 17}
WIDTHS = {"num_heads": 3, "key_dim": 5, "value_dim": 2}
VARIANTS = (
    {},
    {"normalization": "pre"},
    {"positions": "learned", "max_length": 13},
    {"positions": "relative", "max_distance": 2},
    {"positions": "rotary", "key_dim": 4},
)
SOURCE_IDS = np.array([[11, 4, 40, 9, 3], [23, 8, 3, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 17, 4, 0], [2, 30, 30, 5]], "int32")
LABELS = np.array([[17, 4, 3, 0], [30, 30, 5, 3]], "int32")
SOURCE_LENGTHS, TARGET_LENGTHS = (5, 3), (3, 4)  # without padding
INPUTS = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}


def build_model(**options):
    """Returns a `Transformer` with `SIZES`, `WIDTHS`, and `options`, random weights."""
    model = Transformer(**{**SIZES, **WIDTHS, **options})
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    randomize(model)
    return model


def check_attention():
    """Checks that a masked key has no effect.

    The output of a query whose keys are all masked must be 0.
    """
    generator = np.random.default_rng(1)
    query = generator.normal(size=(2, 3, 7)).astype("float32")
    value = generator.normal(size=(2, 5, 11)).astype("float32")
    mask = np.ones((2, 3, 5), bool)
    mask[0, :, 1] = False
    mask[1, 2] = False
    layer = MultiHeadAttention(3, 5, 2)
    output = numpy(layer(query, value, attention_mask=mask))
    assert (output[1, 2] == 0).all() and (output[1, :2] != 0).any()
    value[0, 1] = 1e3
    np.testing.assert_array_equal(
        numpy(layer(query, value, attention_mask=mask)), output
    )


def check_forward(model):
    """Compares the logits with a NumPy implementation of the paper's formulas."""
    logits = numpy(model(INPUTS))
    for i in range(2):
        expected = paper_in_numpy.transformer(
            model,
            SOURCE_IDS[i, : SOURCE_LENGTHS[i]],
            TARGET_IDS[i, : TARGET_LENGTHS[i]],
        )
        given = logits[i, : TARGET_LENGTHS[i]]
        np.testing.assert_allclose(given, expected, rtol=1e-3, atol=1e-3)


def check_cache(model, max_length, steps):
    """Compares the logits of a decoder with KV cache and of the whole model.

    Args:
        model: `Transformer`.
        max_length: Capacity of the cache in positions. If `None`, the cache grows.
        steps: Number of tokens to decode.
    """
    # Only the second target has no padding.
    expected = numpy(model(INPUTS))[1]
    twice = TARGET_IDS.repeat(2, axis=0)
    decoder = IncrementalDecoder(model)
    cache, context = decoder.begin(SOURCE_IDS, 2, max_length)
    for index in range(steps):
        ids = twice[:, index : index + 1]
        logits, cache = decoder.step(ids, cache, context, index)
        # Rows 2 and 3 are the two hypotheses of the second sentence.
        for row in numpy(logits)[2:]:
            np.testing.assert_allclose(row, expected[index], rtol=1e-3, atol=1e-3)
        # The two hypotheses of each sentence swap places. They have the same tokens, so
        # the logits must not change.
        cache = decoder.reorder(cache, ops.array([1, 0, 3, 2], "int32"))
        cache = decoder.compact(cache)


def check_losses(model):
    """Compares loss, metrics, and schedule with their formulas in float64.

    The expected loss is the cross-entropy with smoothed targets: 0.1 is spread evenly
    over the 41 ids, and the label gets the other 0.9.
    """
    logits = numpy(model(INPUTS)).astype("float64")
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    log_probs = np.log(powers / powers.sum(-1, keepdims=True))
    smooth = 0.9 * np.eye(41)[LABELS] + 0.1 / 41
    real = LABELS != 0
    expected = -(smooth * log_probs).sum(-1)[real].mean()
    loss = SmoothedCrossEntropy(0.1)(LABELS, ops.convert_to_tensor(logits, "float32"))
    np.testing.assert_allclose(numpy(loss), expected, rtol=1e-4)
    picked = np.take_along_axis(log_probs, LABELS[..., None], -1)[..., 0][real]
    perplexity = Perplexity()
    perplexity.update_state(LABELS, ops.convert_to_tensor(logits, "float32"))
    np.testing.assert_allclose(
        numpy(perplexity.result()), np.exp(-picked.mean()), rtol=1e-3
    )
    accuracy = TokenAccuracy()
    accuracy.update_state(LABELS, ops.convert_to_tensor(logits, "float32"))
    expected = (logits.argmax(-1) == LABELS)[real].mean()
    np.testing.assert_allclose(numpy(accuracy.result()), expected, rtol=1e-6)
    # Keras counts steps from 0, the paper from 1.
    rate = numpy(NoamSchedule(512)(4))
    np.testing.assert_allclose(rate, 512**-0.5 * 5 * 4000**-1.5, rtol=1e-5)


def check_fit(model):
    before = [numpy(weight) for weight in model.weights]
    model.compile(
        keras.optimizers.Adam(NoamSchedule(12, warmup_steps=3)),
        SmoothedCrossEntropy(0.1),
        metrics=[Perplexity(), TokenAccuracy()],
    )
    history = model.fit(INPUTS, LABELS, batch_size=2, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    for weight, old in zip(model.weights, before, strict=True):
        assert (numpy(weight) != old).any(), weight.path


def check_file_from_another_backend(path, numbers):
    model = keras.saving.load_model(path)
    stored = np.load(numbers)
    ids = {name: stored[name] for name in ("source_ids", "target_ids")}
    np.testing.assert_allclose(
        numpy(model(ids)), stored["logits"], rtol=1e-3, atol=1e-3
    )


def check_search():
    """Compares greedy search with samples that contain only the most likely ids."""
    model = Transformer(**SIZES, **WIDTHS)
    best, _ = translate_ids(model, SOURCE_IDS, BeamSearch(1, length_penalty=0.0))
    sampled, _ = sample_ids(model, SOURCE_IDS, Sampling(2, top_k=1, seed=1))
    np.testing.assert_array_equal(numpy(sampled), numpy(best).repeat(2, axis=1))
    # PyTorch would keep the intermediate values of all steps for gradients.
    keeps_values = []

    def encode(ids):
        output = model.encode(ids)
        keeps_values.append(getattr(output, "requires_grad", False))
        return output

    # On JAX, the compiled function pads ids to a length of 16.
    encoded = numpy(compile_for_ids(encode, 1)(SOURCE_IDS))[:, : SOURCE_IDS.shape[1]]
    np.testing.assert_allclose(encoded, numpy(model.encode(SOURCE_IDS)), atol=1e-5)
    assert keeps_values == [False]


check_attention()
check_search()
for variant in VARIANTS:
    model = build_model(**variant)
    check_forward(model)
    check_saving(model, INPUTS)
# JAX compiles every step of a growing cache, so only two steps are checked.
check_cache(build_model(normalization="pre"), None, steps=2)
check_cache(build_model(normalization="pre"), 6, steps=4)
check_cache(build_model(**VARIANTS[-2]), 6, steps=4)
check_saving(build_model(dtype="mixed_bfloat16"), INPUTS)
check_losses(build_model())
check_fit(build_model(dropout=0.0, num_layers=1))
check_file_from_another_backend(*sys.argv[-2:])
print(f"checked on {keras.backend.backend()}")
