"""Measures how the time per token grows in training and in decoding.

    python benchmarks/scaling.py

The script varies batch size, sentence length, vocabulary, model size, beam size and the
decoded position. Ids are random, rows have equal lengths, and no input pipeline runs.
It writes benchmarks/results/scaling.csv, .png, .json and .md, and the same files for
scaling_position.
"""

import argparse
import functools
import statistics
import sys
import time

import growth
import interleaved
import machine
import report
from workload import SIZES, VOCABULARY

TINY, BASE = SIZES["tiny"], SIZES["base"]
SMALL = {"num_layers": 4, "d_model": 256, "d_ff": 1024, "num_heads": 4}
MODELS = (TINY, SMALL, BASE)
LENGTH, ROWS, BEAM = 20, 32, 4


def median_seconds(function, repeats=3, min_seconds=0.3):
    """Returns the median time of a call. Short calls are repeated for `min_seconds`."""
    function()
    start = time.perf_counter()
    function()
    calls = max(1, int(min_seconds / (time.perf_counter() - start)))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def transformer(vocabulary, settings):
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(1)
    model = kt.Transformer(vocabulary, **settings, dropout=0.1)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


class Training:
    """Measures a training step, in milliseconds per target token."""

    def __init__(self, vocabulary=VOCABULARY, settings=TINY):
        from keras_transformer import training

        self.model = training.TrainingModel(transformer(vocabulary, settings), 0.1)
        self.model.compile(training.FusedAdam(1e-4), jit_compile=False)
        self.model.build({"source_ids": (None, None), "target_ids": (None, None)})
        self.step = self.model.make_train_function() or self.model.train_function
        self.vocabulary = vocabulary

    def __call__(self, rows=4096 // LENGTH, length=LENGTH):
        import tensorflow as tf

        shape = (rows, length)
        ids = tf.random.uniform(shape, 4, self.vocabulary, tf.int32, seed=1)
        batch = {"source_ids": ids, "target_ids": ids}, ids
        seconds = median_seconds(lambda: self.step(iter([batch])))
        return 1000 * seconds / (rows * length)


class Decoding:
    """Measures a beam search with translations of equal length, in seconds."""

    def __init__(self, vocabulary=VOCABULARY, settings=TINY):
        import numpy as np
        import tensorflow as tf

        from keras_transformer.decoding import BeamSearch, beam_search
        from keras_transformer.decoding.incremental import (
            IncrementalDecoder,
            arrange_weights,
        )

        self.model = transformer(vocabulary, settings)
        embeddings = self.model.token_embedding.embeddings
        rows = embeddings.numpy()
        # A zero embedding gives the end token (id 3) the logit 0, which is never among
        # the best of thousands of normally distributed logits. So no search ends early.
        rows[3] = 0
        embeddings.assign(rows)
        self.vocabulary = vocabulary
        self.random = np.random.default_rng(1)

        @tf.function(reduce_retracing=True, autograph=False)
        def search(ids, beam_size, length):
            decoder = IncrementalDecoder(self.model, arrange_weights(self.model))
            start = decoder.begin(ids, beam_size)
            return beam_search(
                decoder, *start, tf.shape(ids)[0], length, BeamSearch(beam_size)
            )

        self.search = search

    def __call__(
        self, rows=ROWS, beam_size=BEAM, length=LENGTH, source_length=LENGTH, **timing
    ):
        import tensorflow as tf

        shape = (rows, source_length)
        ids = tf.constant(self.random.integers(4, self.vocabulary, shape), tf.int32)
        # A length passed as a tensor avoids retracing for each length.
        length = tf.constant(length)
        found = self.search(ids, beam_size, length)[0]
        assert int(tf.math.count_nonzero(found)) == rows * int(length)
        return median_seconds(
            lambda: self.search(ids, beam_size, length)[0].numpy(), **timing
        )

    def per_token(self, rows=ROWS, length=LENGTH, **arguments):
        """Returns the milliseconds per target token."""
        seconds = self(rows, length=length, **arguments)
        return 1000 * seconds / (rows * length)

    def at_position(self, position, rows):
        """Returns the mean time of a step around a position, in milliseconds per batch.

        The mean is the difference between the times of a longer and a shorter
        translation, divided by the difference between their lengths.
        """
        reach = position // 2
        short, long = (
            self(
                rows, length=position + side, source_length=16, repeats=1, min_seconds=1
            )
            for side in (-reach, reach)
        )
        return 1000 * (long - short) / (2 * reach)


LENGTHS = (8, 16, 32, 64, 128, 256)
VOCABULARIES = (4000, 8000, 16000, 37000)
POSITIONS = (10, 50, 200)


def training_sizes():
    for settings in MODELS:
        measure = Training(settings=settings)
        yield measure.model.transformer.count_params(), measure(rows=64)


def decoding_sizes():
    for settings in MODELS:
        decoding = Decoding(settings=settings)
        yield decoding.model.count_params(), decoding.per_token()


def positions(settings, rows, repeats=7):
    """Yields each position and the median time of a step there, in milliseconds.

    Measurements alternate between positions, so that a change in the machine's speed
    affects all positions.
    """
    decoding = Decoding(settings=settings)
    times = {position: [] for position in POSITIONS}
    for _ in range(repeats):
        for position in POSITIONS:
            times[position].append(decoding.at_position(position, rows))
    for position, measured in times.items():
        yield position, statistics.median(measured)


def measure_each(measure, sizes):
    """Returns a function without arguments that measures every size."""
    return lambda: [(size, measure(size)) for size in sizes]


def panels():
    """Yields (title, axis label, curve name, function that measures the points)."""
    training, decoding = Training(), Decoding()
    batch = measure_each(
        lambda size: training(size // 16, 16), [2**n for n in range(8, 14)]
    )
    yield "training: batch", "target tokens per batch", "tiny", batch
    length = measure_each(lambda length: training(4096 // length, length), LENGTHS)
    yield (
        "training: length",
        "tokens per sentence",
        "tiny, 4,096 tokens per batch",
        length,
    )
    vocabulary = measure_each(lambda size: Training(size)(), VOCABULARIES)
    yield "training: vocabulary", "subwords", "tiny", vocabulary
    yield "training: model", "parameters", "tiny, small, base", training_sizes
    batch = measure_each(decoding.per_token, (1, 4, 16, 64, 128))
    yield "decoding: batch", "sentences per batch", "tiny, beam 4", batch
    length = measure_each(
        lambda length: decoding.per_token(length=length), LENGTHS[:-1]
    )
    yield "decoding: length", "tokens per translation", "tiny, beam 4, batch 32", length
    beam = measure_each(
        lambda size: decoding.per_token(beam_size=size), (1, 2, 4, 8, 16)
    )
    yield "decoding: beam", "beam size", "tiny, batch 32", beam
    vocabulary = measure_each(lambda size: Decoding(size).per_token(), VOCABULARIES)
    yield "decoding: vocabulary", "subwords", "tiny, beam 4, batch 32", vocabulary
    yield "decoding: model", "parameters", "tiny, small, base", decoding_sizes


def position_panels():
    """Yields the same as `panels`, with one curve per model size."""
    for name, settings in (("tiny", TINY), ("base", BASE)):
        measure = functools.partial(positions, settings, 1)
        yield "decoding: position", "position", f"{name}, beam 4, batch 1", measure


# Per name of the result files: the panels and the unit of their costs.
FILES = {
    "scaling": (panels, "ms per target token"),
    "scaling_position": (position_panels, "ms per step of the batch"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    parser.add_argument("--only", choices=FILES, help="measure one of the two results")
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(interleaved.THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(interleaved.THREADS)
    for name in [arguments.only] if arguments.only else FILES:
        found = {}
        measured_panels, unit = FILES[name]
        for title, label, curve, measure in measured_panels():
            points = list(measure())
            print(title, curve, points, file=sys.stderr)
            found.setdefault(title, (label, {}))[1][curve] = points
        write(arguments.output, name, found, unit)


def write(folder, name, panels, unit):
    """Writes the plot, the CSV, JSON and Markdown files of the given panels."""
    growth.write(folder, name, panels, unit)
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "panels": {title: curves for title, (_, curves) in panels.items()},
    }
    if name == "scaling_position":
        ((_, curves),) = panels.values()
        result["step_at_200_over_step_at_10"] = {
            curve: dict(points)[200] / dict(points)[10]
            for curve, points in curves.items()
        }
    report.write(folder, name, result)


if __name__ == "__main__":
    main()
