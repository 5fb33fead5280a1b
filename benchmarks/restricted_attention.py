"""Restricted beside full self-attention: time and memory against the length.

    python benchmarks/restricted_attention.py

one layer of width 64 with one head, forward and backward, each point in a process of
its own. Writes benchmarks/results/restricted_attention.csv, .png, .json and .md.
"""

import argparse
import json
import subprocess
import sys

import growth
import machine
import report
import turns

WINDOW, WIDTH = 128, 64
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
KINDS = {"full": None, f"restricted, r = {WINDOW}": WINDOW}


def point(window, length):
    """Prints milliseconds and MiB of one layer at one length."""
    import scaling
    import tensorflow as tf

    from keras_transformer import layers

    tf.config.threading.set_intra_op_parallelism_threads(turns.THREADS)
    x = tf.random.normal((1, length, WIDTH), seed=1)
    layer = layers.MultiHeadAttention(1, WIDTH)
    if window:
        layer = layers.RestrictedSelfAttention(1, WIDTH, window)
    layer.build(x.shape, x.shape)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, x)))
        return tape.gradient(loss, x)

    step(x[:, : 2 * WINDOW])
    before = turns.peak_mib()
    seconds = scaling.median_seconds(lambda: step(x).numpy())
    print(json.dumps([1000 * seconds, max(turns.peak_mib() - before, 0.1)]))


def measured(window, length):
    command = [sys.executable, __file__, "--point", str(window or 0), str(length)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    parser.add_argument("--point", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        point(*arguments.point)
        return
    times, memory = {}, {}
    for name, window in KINDS.items():
        found = [(length, *measured(window, length)) for length in LENGTHS]
        print(name, found, file=sys.stderr)
        times[name] = [(length, ms) for length, ms, _ in found]
        memory[name] = [(length, mib) for length, _, mib in found]
    panels = {
        "ms, forward and backward": ("length", times),
        "MiB above the start": ("length", memory),
    }
    growth.write(arguments.output, "restricted_attention", panels, "cost", columns=2)
    head = ["length", *(f"{kind}: ms" for kind in KINDS)]
    head += [f"{kind}: MiB" for kind in KINDS]
    rows = [
        [
            f"{length:,}",
            *(f"{times[kind][place][1]:,.1f}" for kind in KINDS),
            *(f"{memory[kind][place][1]:,.0f}" for kind in KINDS),
        ]
        for place, length in enumerate(LENGTHS)
    ]
    half = len(LENGTHS) // 2
    slopes = [
        growth.exponent(*zip(*curves[kind][half:], strict=True))
        for curves in (times, memory)
        for kind in KINDS
    ]
    rows.append(["exponent", *(f"{slope:.2f}" for slope in slopes)])
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "milliseconds": times,
        "mib": memory,
    }
    name = "restricted_attention"
    report.write(arguments.output, name, result, report.table(head, rows))


if __name__ == "__main__":
    main()
