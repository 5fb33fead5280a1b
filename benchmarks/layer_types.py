"""Table 1, measured: kinds of layers against length n and width d.

    python benchmarks/layer_types.py

times a forward and backward pass of one layer, fits exponents to the larger half of the
sizes and lays them beside the table's complexities. Writes
benchmarks/results/layer_types.csv, .png, .json and .md.
"""

import argparse
import sys

import growth
import machine
import report
import scaling
import turns

BATCH, WINDOW, KERNEL = 2, 64, 3
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 64, 128, 256, 512, 1024)
# Width where n grows, length where d grows.
WIDTH, LENGTH = 64, 256
SELF, RESTRICTED = "self-attention", f"restricted, r = {WINDOW}"
LSTM, GRU, CONVOLUTION = "LSTM", "GRU", f"convolution, k = {KERNEL}"
# Complexity, exponents of n and d, sequential operations, path length. The attentions'
# projections, n d^2, are no part of the paper's figure, and are part of the layer.
TABLE_1 = {
    SELF: ("n^2 d", 2, 1, "1", "1"),
    RESTRICTED: ("r n d", 1, 1, "1", "n / r"),
    LSTM: ("n d^2", 1, 2, "n", "n"),
    GRU: ("n d^2", 1, 2, "n", "n"),
    CONVOLUTION: ("k n d^2", 1, 2, "1", "log_k n"),
}


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
    }[kind]()


def milliseconds(kind, length, width):
    """Of a forward and backward pass over `BATCH` sequences."""
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

    return 1000 * scaling.median_seconds(lambda: step(*arguments)[0].numpy(), least=0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(turns.THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(turns.THREADS)
    by_length, by_width = {}, {}
    for kind in TABLE_1:
        by_length[kind] = [(n, milliseconds(kind, n, WIDTH)) for n in LENGTHS]
        by_width[kind] = [(d, milliseconds(kind, LENGTH, d)) for d in WIDTHS]
        print(kind, by_length[kind], by_width[kind], file=sys.stderr)
    panels = {
        f"against the length, d = {WIDTH}": ("length n", by_length),
        f"against the width, n = {LENGTH}": ("width d", by_width),
    }
    unit = f"ms, forward and backward, batch {BATCH}"
    growth.write(arguments.output, "layer_types", panels, unit, columns=2)
    rows = []
    for kind, (complexity, of_n, of_d, sequential, path) in TABLE_1.items():
        fitted = [
            growth.exponent(*zip(*points[len(points) // 2 :], strict=True))
            for points in (by_length[kind], by_width[kind])
        ]
        rows.append(
            [
                *(kind, complexity, sequential, path),
                *(f"{fitted[0]:.2f} ({of_n})", f"{fitted[1]:.2f} ({of_d})"),
                *(f"{by_length[kind][-1][1]:.1f}", f"{by_width[kind][-1][1]:.1f}"),
            ]
        )
    head = ["layer", "complexity", "sequential operations", "longest path"]
    head += ["exponent of n (Table 1)", "exponent of d (Table 1)"]
    head += [f"ms at n = {LENGTHS[-1]:,}", f"ms at d = {WIDTHS[-1]:,}"]
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "by_length": by_length,
        "by_width": by_width,
    }
    report.write(arguments.output, "layer_types", result, report.table(head, rows))


if __name__ == "__main__":
    main()
