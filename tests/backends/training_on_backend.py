"""Trains with the options of `TrainingModel` on the backend of KERAS_BACKEND.

test_model_on_backends.py runs this script on JAX, and `results` in its own process, on
TensorFlow. The argument is the path of a JSON file to write.
"""

import json
import pathlib
import sys
import tempfile
import types

import keras
import numpy as np

from keras_transformer import training
from keras_transformer.interop.peft import apply_adapters, write_adapters
from keras_transformer.layers.adapters import add_adapters
from keras_transformer.training.projected_loss import projected_loss
from keras_transformer.training.replicas import jax_devices
from keras_transformer.training.step_ops import compute_gradients
from keras_transformer.transformer import Transformer

VOCABULARY, ROWS = 31, 7
# Only the gradient of the first batch is larger.
MAX_NORM = 1.0
# Dropout is off, because backends draw different random numbers.
CASES = {
    "plain": {},
    "parts": {
        "gradient_accumulation_steps": 2,
        "parallel_parts": 2,
        "global_clipnorm": 0.5,
        "skip_above_gradient_norm": MAX_NORM,
        "guided_alignment": training.GuidedAlignment(
            training.next_words(
                np.arange(VOCABULARY) % 2 == 0, np.arange(VOCABULARY) % 3 == 0
            )
        ),
    },
    "rdrop": {"consistency": training.Consistency("rdrop")},
    "simcut": {"consistency": training.Consistency("simcut", cutoff=0.0)},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "float16": {"dtype": "mixed_float16"},
    "lora": {"lora": {"rank": 2, "alpha": 4.0, "layers": ["query", "outer"]}},
}


def batches():
    """Returns batches, of which the third has an infinite weight."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(4):
        source_ids, labels = rng.integers(3, VOCABULARY, (2, ROWS, 6)).astype("int32")
        source_ids[:2, 4:] = labels[:3, 3:] = 0
        starts = np.full((ROWS, 1), 2, "int32")
        target_ids = np.concatenate([starts, labels[:, :-1]], axis=1)
        weights = rng.uniform(0, 2, labels.shape).astype("float32")
        if number == 2:
            weights[4, 0] = np.inf
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        found.append((inputs, labels, weights))
    return found


def pad_rows(batch):
    """Adds rows of padding, so that all devices have the same number of rows."""
    missing = -ROWS % len(keras.distribution.list_devices())
    return keras.tree.map_structure(
        lambda array: np.pad(array, [[0, missing], [0, 0]]), batch
    )


def build(dtype="float32", lora=None, **options):
    """Returns a compiled `TrainingModel` whose weights come from NumPy."""
    model = Transformer(
        *(VOCABULARY, 1, 16, 32, 2), dropout=options.pop("dropout", 0.0), dtype=dtype
    )
    model = training.TrainingModel(model, **options)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    rng = np.random.default_rng(0)
    for weight in model.transformer.trainable_weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    if lora is not None:
        add_adapters(model.transformer, **lora)
        for weight in model.trainable_weights:
            weight.assign(0.3 * rng.normal(size=weight.shape))
    # Unlike Adam's updates, SGD's grow with the gradients.
    optimizer = keras.optimizers.SGD(0.2, use_ema=True, ema_momentum=0.5)
    if dtype == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 64.0)
    is_tensorflow = keras.config.backend() == "tensorflow"
    model.compile(optimizer, run_eagerly=is_tensorflow)
    return model


def results(name):
    """Returns the metrics and faults of each step, and the state after the last one."""
    model = build(**CASES[name])
    steps = []
    for batch in map(pad_rows, batches()):
        metrics = [float(value) for value in model.train_on_batch(*batch)]
        steps.append([*metrics, int(model.last_fault)])
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    validation = model.test_on_batch(*pad_rows(batches()[0])) if name == "plain" else []
    return {
        "steps": steps,
        "validation": [*map(float, validation)],
        "tokens": model.num_tokens,
        "updates": int(optimizer.iterations),
        "scale": float(getattr(model.optimizer, "dynamic_scale", 0.0)),
        "weights": [np.array(each).tolist() for each in model.trainable_weights],
        "averages": [
            np.array(each).tolist()
            for each in optimizer.variables
            if each.path.endswith("average")
        ],
    }


def projected_losses():
    """Returns the sums and gradients of `projected_loss` for one and two passes."""
    rng = np.random.default_rng(5)
    shapes = (29, 7), (29, 7), (53, 7)
    variables = [
        keras.Variable(rng.normal(size=each), dtype="float32") for each in shapes
    ]
    labels = rng.integers(0, 53, 29).astype("int32")
    weights = rng.choice([0.0, 1.0, 2.5], 29).astype("float32")
    found = []
    for loss_weights in (None, training.Consistency("rdrop").loss_weights):

        def loss(loss_weights=loss_weights):
            *passes, matrix = (variable.value for variable in variables)
            passes = passes[: 1 if loss_weights is None else 2]
            options = labels, weights, 0.1, loss_weights, 8
            sums = projected_loss(passes, matrix, *options)
            return sums[0], sums

        model = types.SimpleNamespace(
            trainable_variables=variables, non_trainable_variables=[]
        )
        gradients, sums = compute_gradients(loss, model)
        found.append([np.array(each).tolist() for each in (sums, *gradients)])
    return found


def check_random_factors():
    """Checks that each step draws other dropout and token dropout."""
    model = build(dropout=0.3, token_dropout=0.3, gradient_accumulation_steps=3)
    model.optimizer.learning_rate = 0.0
    losses = {float(model.train_on_batch(*batches()[0])[0]) for _ in range(3)}
    assert len(losses) == 3, losses


def check_added_losses():
    """Checks that losses which a layer adds are refused, not ignored."""
    model = build()
    layer = model.transformer.encoder.layers[0]
    call = layer.call

    def call_with_loss(x, *args, **kwargs):
        layer.add_loss(keras.ops.sum(x))
        return call(x, *args, **kwargs)

    layer.call = call_with_loss
    try:
        model.train_on_batch(*batches()[0])
    except ValueError as error:
        assert "does not support regularizers or `add_loss`" in str(error), error
    else:
        raise AssertionError("the loss was ignored")


def check_adapters():
    """Checks that adapters learn, their base stays, and their files can be merged."""
    model, plain = build(**CASES["lora"]), build().transformer
    model.optimizer.learning_rate = 3.0
    inputs, labels, _ = batches()[0]
    losses = [float(model.train_on_batch(inputs, labels)[0]) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0], losses
    with tempfile.TemporaryDirectory() as folder:
        write_adapters(model.transformer, pathlib.Path(folder) / "adapters", "m")
        base = {each.path.split("/", 2)[2]: np.array(each) for each in plain.weights}
        apply_adapters(plain, [pathlib.Path(folder) / "adapters"])
    unmerged, merged = (np.array(each(inputs)) for each in (model, plain))
    np.testing.assert_allclose(unmerged, merged, atol=1e-5)
    frozen = [each for each in model.transformer.weights if not each.trainable]
    assert len(frozen) == len(base)
    for weight in frozen:
        np.testing.assert_array_equal(weight, base[weight.path.split("/", 2)[2]])


class Endless(keras.utils.PyDataset):
    """Batch number i has i + 1 rows."""

    num_batches = None

    def __getitem__(self, index):
        inputs, labels, _ = batches()[0]
        rows = slice(index + 1)
        return {name: ids[rows] for name, ids in inputs.items()}, labels[rows]


def check_first_batch():
    """Checks that `fit` trains with the first batch of an endless dataset."""
    model = training.TrainingModel(Transformer(VOCABULARY, 1, 16, 32, 2))
    model.compile("sgd")
    model.fit(Endless(), steps_per_epoch=1, shuffle=False, verbose=0)
    assert model.num_tokens == np.count_nonzero(batches()[0][1][0])


if __name__ == "__main__":
    with jax_devices() as devices:
        found = {name: results(name) for name in CASES}
        found["projected losses"] = projected_losses()
    if devices.num_replicas == 1:
        check_random_factors()
        check_added_losses()
        check_adapters()
        check_first_batch()
    assert "tensorflow" not in sys.modules
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
