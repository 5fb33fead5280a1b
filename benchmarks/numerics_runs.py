"""Measures how much optimized entries of `keras_transformer.numerics` speed up runs.

    KERAS_TRANSFORMER_DATA=... python benchmarks/numerics_runs.py

A run is a training step or the beam search for one sentence. It takes turns with a
variant in which plain formulas replace the entries. In a search, the ids are random and
the weights untrained, so the output reaches its maximum length. The script writes
benchmarks/results/numerics_runs.json and .md.
"""

import argparse
import tempfile
import time
from unittest import mock

import interleaved
import keras
import machine
import numpy as np
import report
import tensorflow as tf
import workload
from keras import ops

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.decoding import incremental
from keras_transformer.decoding.search import translate_ids
from keras_transformer.export.packed_weights import PackedWeights
from keras_transformer.export.searches import shared_encoder

ROUNDS = 15
# Searches and training steps per turn.
CALLS, STEPS = 4, 18
SOURCE_LENGTH, EXTRA_LENGTH = 16, 16


def search_run(size, jit_compile=False):
    """Returns a function that runs beam search on one sentence with a new model."""
    model = kt.Transformer(workload.VOCABULARY, **workload.settings(size))
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
    shape = 1, SOURCE_LENGTH
    ids = tf.constant(rng.integers(4, workload.VOCABULARY, shape, np.int32))
    return lambda: search(ids)


def unpacked(kernel):
    return kernel


def plain_transposition(x):
    return ops.transpose(x, (0, 2, 1, 3))


TRAINING = "training step, tiny", "`Dropout`, `LayerNormalization`"
# Search: arguments of `search_run`, its entry, the entry's attribute in
# `decoding.incremental`, and the plain function that replaces it.
SEARCHES = {
    "beam search, one sentence, base, XLA": (
        ("base", True),
        "`pack_kernel`, `packed_matmul`",
        "pack_kernel",
        unpacked,
    ),
    "beam search, one sentence, tiny": (
        ("tiny",),
        "`swap_middle_axes`",
        "swap_middle_axes",
        plain_transposition,
    ),
}


def measure_training(rounds):
    """Returns the seconds of our and of the plain training step in each turn."""
    with tempfile.TemporaryDirectory() as folder:
        workload.corpus(folder)
        script = "peers/train_ours.py", "tiny", folder
        systems = [
            interleaved.System("ours", *script),
            interleaved.System("plain layers", *script, "plain layers"),
        ]
        # The rate that is shown is in steps per second.
        turn = {"steps": STEPS, "tokens": STEPS}
        interleaved.take_turns(systems, rounds, lambda number: turn)
        for system in systems:
            system.close()
    return [[each["seconds"] / STEPS for each in one.turns] for one in systems]


def measure_search(arguments, name, plain, rounds):
    """Returns the seconds of our and of the plain search in each turn."""
    searches = []
    for function in (getattr(incremental, name), plain):
        with mock.patch.object(incremental, name, function):
            search = search_run(*arguments)
            # Two warm-up calls: the first one traces the search.
            search(), search()
        searches.append(search)
    times = [], []
    for number in range(rounds):
        # Each round starts with the other search.
        for index in (number % 2, 1 - number % 2):
            times[index].append(seconds(searches[index]))
    return times


def seconds(function):
    """Returns the mean seconds of a few calls."""
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) / CALLS


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    rows = []

    def add(run, entry, ours, plain):
        ratios = [theirs / each for each, theirs in zip(ours, plain, strict=True)]
        row = {
            "run": run,
            "entry": entry,
            "seconds": interleaved.summary(ours),
            "seconds_without": interleaved.summary(plain),
            "speedup": interleaved.summary(ratios),
        }
        rows.append(row)
        print(run, entry, row["speedup"], sep="\t", flush=True)

    add(*TRAINING, *measure_training(arguments.rounds))
    for run, (options, entry, name, plain) in SEARCHES.items():
        add(run, entry, *measure_search(options, name, plain, arguments.rounds))
        keras.backend.clear_session()
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "rounds": arguments.rounds,
        "rows": rows,
    }
    report.write(arguments.output, "numerics_runs", result)


if __name__ == "__main__":
    main()
