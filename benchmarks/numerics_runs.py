"""Measures what each entry of `keras_transformer.numerics` gains in a whole run.

    python benchmarks/numerics_runs.py

Runs are training steps of the tiny model and beam searches of the base model. In each
variant, a plain formula replaces one entry. The package and its variants take turns in
one process. Batches are random ids and weights are untrained, so every search has its
maximum length. The script writes benchmarks/results/numerics_runs.json and .md.
"""

import argparse
import contextlib
import statistics
import time
from unittest import mock

import keras
import machine
import numpy as np
import report
import tensorflow as tf
import workload
from keras import ops

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer import training
from keras_transformer.decoding import incremental
from keras_transformer.decoding.search import translate_ids
from keras_transformer.export.packed_weights import PackedWeights
from keras_transformer.export.searches import shared_encoder
from keras_transformer.layers import multi_head_attention
from keras_transformer.layers import token_embedding
from keras_transformer.numerics import dropout
from keras_transformer.numerics import matrices
from keras_transformer.numerics import normalization
from keras_transformer.numerics import softmax

ROUNDS = 15
# Steps per turn of training.
STEPS = 4
# 4,096 target tokens, as in `workload`, of which a quarter is padding.
TRAINING_ROWS, TRAINING_LENGTH = 170, 32
SOURCE_LENGTH, EXTRA_LENGTH = 16, 16


def replace(*objects_and_functions):
    """Returns a context that replaces attributes, given as (object, name, value)."""
    stack = contextlib.ExitStack()
    for replacement in objects_and_functions:
        stack.enter_context(mock.patch.object(*replacement))
    return stack


def plain_dropout():
    return replace((dropout.Dropout, "call", keras.layers.Dropout.call))


def plain_normalization():
    def call(layer, inputs, training=False):
        return keras.layers.LayerNormalization.call(layer, inputs)

    return replace((normalization.LayerNormalization, "call", call))


def plain_masked_softmax():
    def plain(attention_logits, attention_mask=None, training=False):
        return softmax.masked_softmax(attention_logits, attention_mask)

    return replace((multi_head_attention, "masked_softmax", plain))


def plain_dense():
    def apply(function, x):
        return function(x)

    return replace(
        (matrices.Dense, "call", keras.layers.Dense.call),
        (token_embedding, "apply_flattened", apply),
    )


def plain_weighted_values():
    def plain(logits, values):
        scores = ops.softmax(ops.concatenate(logits, axis=-1))
        return ops.matmul(scores, ops.concatenate(values, axis=-2))

    return replace((incremental, "weighted_values", plain))


def unpacked_kernels():
    return replace((incremental, "pack_kernel", lambda kernel: kernel))


def training_run():
    """Returns a function that runs `STEPS` training steps of a new model."""
    transformer = kt.Transformer(workload.VOCABULARY, **workload.settings("tiny"))
    model = training.TrainingModel(transformer, workload.LABEL_SMOOTHING)
    schedule = training.PaperSchedule(transformer.d_model)
    model.compile(training.FusedAdam(schedule, 0.9, 0.98, 1e-9), jit_compile=False)
    rng = np.random.default_rng(1)
    shape = TRAINING_ROWS, TRAINING_LENGTH
    ids = rng.integers(4, workload.VOCABULARY, shape, np.int32)
    lengths = rng.integers(TRAINING_LENGTH // 2, TRAINING_LENGTH + 1, len(ids))
    ids[np.arange(TRAINING_LENGTH) >= lengths[:, None]] = transformer.pad_id
    inputs = {"source_ids": ids, "target_ids": ids}
    batches = tf.data.Dataset.from_tensors((inputs, ids)).repeat(STEPS)
    return lambda: model.fit(batches, shuffle=False, verbose=0)


def search_run(batch, jit_compile=False):
    """Returns a function that searches a batch with a new model."""
    model = kt.Transformer(workload.VOCABULARY, **workload.settings("base"))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    kernels = PackedWeights(model) if jit_compile else None
    encode = shared_encoder(model)
    settings = decoding.BeamSearch(beam_size=4, extra_length=EXTRA_LENGTH)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def search(source_ids):
        weights = kernels.packed() if kernels else incremental.arrange_weights(model)
        decoder = incremental.IncrementalDecoder(model, weights, encode)
        return translate_ids(
            model, source_ids, settings, drop_finished=False, decoder=decoder
        )

    rng = np.random.default_rng(1)
    shape = batch, SOURCE_LENGTH
    ids = tf.constant(rng.integers(4, workload.VOCABULARY, shape, np.int32))
    return lambda: search(ids)


# Run: function that creates it, and the contexts of its variants by entry.
RUNS = {
    "training, tiny": (
        training_run,
        {
            "`Dropout`": plain_dropout,
            "`LayerNormalization`": plain_normalization,
            "`masked_softmax`, gradient": plain_masked_softmax,
            "`Dense`, `apply_flattened`": plain_dense,
        },
    ),
    "decoding, base, batch 1": (
        lambda: search_run(1),
        {
            "`weighted_values`": plain_weighted_values,
            "`Dense`, `apply_flattened`": plain_dense,
            "`LayerNormalization`": plain_normalization,
        },
    ),
    "decoding, base, batch 32": (
        lambda: search_run(32),
        {
            "`weighted_values`": plain_weighted_values,
            "`Dense`, `apply_flattened`": plain_dense,
            "`LayerNormalization`": plain_normalization,
        },
    ),
    "decoding, base, batch 1, XLA": (
        lambda: search_run(1, jit_compile=True),
        {"`pack_kernel`, `packed_matmul`": unpacked_kernels},
    ),
}


def measure(create, variants, rounds):
    """Yields (entry, seconds with the entry, seconds without it, median ratio)."""
    contexts = {None: contextlib.nullcontext, **variants}
    runs = {}
    for entry, context in contexts.items():
        with context():
            runs[entry] = create()
            # Two warm-up calls: the first one traces the variant's functions.
            runs[entry](), runs[entry]()
    seconds = {entry: [] for entry in contexts}
    for _ in range(rounds):
        for entry, context in contexts.items():
            with context():
                start = time.perf_counter()
                runs[entry]()
                seconds[entry].append(time.perf_counter() - start)
    ours = seconds.pop(None)
    for entry, plain in seconds.items():
        ratios = [one / other for one, other in zip(plain, ours, strict=True)]
        medians = map(statistics.median, (ours, plain, ratios))
        yield entry, *medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    head = "run", "entry", "seconds", "seconds without", "speedup"
    rows = []
    for run, (create, variants) in RUNS.items():
        for entry, ours, plain, ratio in measure(create, variants, arguments.rounds):
            row = run, entry, f"{ours:.3f}", f"{plain:.3f}", f"{ratio:.2f}x"
            rows.append(dict(zip(head, row, strict=True)))
            print(*row, sep="\t", flush=True)
        keras.backend.clear_session()
    result = {"machine": machine.description(), "versions": report.versions()}
    report.write(arguments.output, "numerics_runs", {**result, "rows": rows})


if __name__ == "__main__":
    main()
