"""Measures the layer types of Table 1 with increasing length n and width d.

    python benchmarks/layer_types.py

The script times a forward and backward pass of one layer. It fits the exponents with
which the time grows to the larger half of the sizes. The table shows them next to the
exponents of Table 1. The results are written to benchmarks/results/layer_types.csv,
.png, .json and .md.
"""

import argparse
import sys

import growth
import interleaved
import machine
import report
import scaling

BATCH, WINDOW, KERNEL, DILATION = 2, 64, 3, 9
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 64, 128, 256, 512, 1024)
# Fixed width while the length varies, and fixed length while the width varies.
WIDTH, LENGTH = 64, 256
SELF, RESTRICTED = "self-attention", f"restricted, r = {WINDOW}"
LSTM, GRU, CONVOLUTION = "LSTM", "GRU", f"convolution, k = {KERNEL}"
SEPARABLE = f"separable convolution, k = {KERNEL}"
DILATED = f"dilated convolution, k = {KERNEL}"
KINDS = (SELF, RESTRICTED, LSTM, GRU, CONVOLUTION, SEPARABLE, DILATED)


def layer_of(kind, width):
    import keras

    from keras_transformer import layers

    heads = max(1, width // 64)
    return {
        SELF: lambda: layers.MultiHeadAttention(heads, width // heads),
        RESTRICTED: lambda: layers.RestrictedSelfAttention(
            heads, width // heads, WINDOW
        ),
        LSTM: lambda: keras.layers.LSTM(width, return_sequences=True),
        GRU: lambda: keras.layers.GRU(width, return_sequences=True),
        CONVOLUTION: lambda: keras.layers.Conv1D(width, KERNEL, padding="same"),
        SEPARABLE: lambda: keras.layers.SeparableConv1D(width, KERNEL, padding="same"),
        DILATED: lambda: keras.layers.Conv1D(
            width, KERNEL, padding="same", dilation_rate=DILATION
        ),
    }[kind]()


def milliseconds(kind, length, width):
    """Returns the time of a forward and backward pass over `BATCH` sequences."""
    import tensorflow as tf

    layer = layer_of(kind, width)
    x = tf.random.normal((BATCH, length, width), seed=1)
    arguments = (x, x) if kind in (SELF, RESTRICTED) else (x,)
    layer(*arguments)

    @tf.function(autograph=False)
    def step(*arguments):
        weights = [weight.value for weight in layer.trainable_weights]
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = tf.reduce_sum(tf.square(layer(*arguments)))
        return tape.gradient(loss, [arguments[0], *weights])

    seconds = scaling.median_seconds(
        lambda: step(*arguments)[0].numpy(), min_seconds=0.2
    )
    return 1000 * seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(interleaved.THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(interleaved.THREADS)
    by_length, by_width = {}, {}
    for kind in KINDS:
        by_length[kind] = [(n, milliseconds(kind, n, WIDTH)) for n in LENGTHS]
        by_width[kind] = [(d, milliseconds(kind, LENGTH, d)) for d in WIDTHS]
        print(kind, by_length[kind], by_width[kind], file=sys.stderr)
    panels = {
        f"against the length, d = {WIDTH}": ("length n", by_length),
        f"against the width, n = {LENGTH}": ("width d", by_width),
    }
    unit = f"ms, forward and backward, batch {BATCH}"
    growth.write(
        arguments.output, "layer_types", panels, unit, columns=2, upper_half=True
    )
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "by_length": by_length,
        "by_width": by_width,
    }
    report.write(arguments.output, "layer_types", result)


if __name__ == "__main__":
    main()
