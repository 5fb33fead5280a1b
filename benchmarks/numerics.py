"""Compares the speed of `keras_transformer.numerics` with plain formulas.

    python benchmarks/numerics.py

A function and its plain formula, both compiled by `tf.function`, take turns in one
process. The shapes match the base model: a training batch of 32 sentences of 32
tokens, or a decoding step of 4 hypotheses. The script writes
benchmarks/results/numerics.json and .md.
"""

import argparse
import functools
import statistics
import time

import machine
import report

D_MODEL, D_FF, HEADS, LENGTH, BATCH, BEAM = 512, 2048, 8, 32, 32, 4
TURNS, LEAST_SECONDS = 15, 0.05


def seconds(function):
    """Returns seconds per call, repeating calls for `LEAST_SECONDS`."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < LEAST_SECONDS:
        function()
        count += 1
    return (time.perf_counter() - start) / count


def cases():
    """Yields (name, plain formula, function of this package, their input)."""
    import keras
    import tensorflow as tf
    from keras import ops

    from keras_transformer.numerics.dropout import Dropout
    from keras_transformer.numerics.matrices import Dense
    from keras_transformer.numerics.matrices import pack_kernel
    from keras_transformer.numerics.matrices import packed_matmul
    from keras_transformer.numerics.normalization import LayerNormalization
    from keras_transformer.numerics.softmax import masked_softmax
    from keras_transformer.numerics.softmax import weighted_values

    def trained(function):
        """Returns a function that computes `function` and its gradient."""

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x, y)

        return step

    hidden = tf.random.normal([BATCH, LENGTH, D_MODEL])
    rates = {"rate": 0.1, "seed": 1}
    layers = keras.layers.Dropout(**rates), Dropout(**rates)
    yield (
        "Dropout",
        *(trained(lambda x, f=f: f(x, training=True)) for f in layers),
        hidden,
    )
    plain, ours = keras.layers.LayerNormalization(), LayerNormalization()
    for layer in (plain, ours):
        layer.build(hidden.shape)
    yield "LayerNormalization", plain, ours, hidden
    yield (
        "LayerNormalization, training",
        trained(plain),
        trained(lambda x: ours(x, training=True)),
        hidden,
    )
    mask = tf.sequence_mask([LENGTH] * (BATCH - 1) + [LENGTH // 2])[:, None, None]
    logits = tf.random.normal([BATCH, HEADS, LENGTH, LENGTH])
    yield (
        "masked_softmax, training",
        trained(lambda x: masked_softmax(x, mask)),
        trained(lambda x: masked_softmax(x, mask, training=True)),
        logits,
    )
    step = tf.random.normal([1, HEADS, BEAM, LENGTH])
    values = tf.random.normal([1, HEADS, LENGTH, D_MODEL // HEADS])
    yield (
        "weighted_values",
        lambda x: ops.matmul(ops.softmax(x), values),
        lambda x: weighted_values([x], [values]),
        step,
    )
    rows = tf.random.normal([BEAM, 1, D_MODEL])
    plain, ours = keras.layers.Dense(D_FF), Dense(D_FF)
    for layer in (plain, ours):
        layer.build(rows.shape)
    yield "Dense (apply_flattened)", plain, ours, rows
    kernel = tf.random.normal([D_MODEL, D_FF])
    packed = pack_kernel(kernel)

    def under_xla(function):
        return tf.function(function, autograph=False, jit_compile=True)

    yield (
        "packed_matmul, XLA",
        under_xla(lambda x: ops.matmul(x, kernel)),
        under_xla(lambda x: packed_matmul(x, packed)),
        rows[:, 0],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    import tensorflow as tf

    rows = []
    for name, *functions, x in cases():
        compiled = [tf.function(each, autograph=False) for each in functions]
        calls = [functools.partial(each, x) for each in compiled]
        for call in calls:
            call()
        turns = [[seconds(call) for call in calls] for _ in range(TURNS)]
        plain, ours = (statistics.median(each) for each in zip(*turns, strict=True))
        speedup = statistics.median(one / other for one, other in turns)
        rows.append(
            (name, f"{1e6 * plain:.0f}", f"{1e6 * ours:.0f}", f"{speedup:.2f}x")
        )
        print(*rows[-1], sep="\t", flush=True)
    head = ("function", "plain formula, us", "ours, us", "speedup")
    result = {"machine": machine.description(), "versions": report.versions()}
    result["rows"] = [dict(zip(head, row, strict=True)) for row in rows]
    report.write(arguments.output, "numerics", result)


if __name__ == "__main__":
    main()
