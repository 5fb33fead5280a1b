"""Compares time and memory of restricted and full self-attention by length.

    python benchmarks/restricted_attention.py

The script runs a forward and backward pass of one layer of width 64 with one head. Each
kind of attention and each length runs in its own process. The script writes
benchmarks/results/restricted_attention.csv, .png, .json and .md.
"""

import argparse
import json
import subprocess
import sys

import growth
import interleaved
import machine
import report

WINDOW, WIDTH = 128, 64
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
KINDS = {"full": None, f"restricted, r = {WINDOW}": WINDOW}


def measure_here(window, length):
    """Prints the milliseconds of a step and its peak MiB above a step of 256 tokens.

    A `window` of 0 means full attention.
    """
    import scaling
    import tensorflow as tf

    from keras_transformer import layers

    tf.config.threading.set_intra_op_parallelism_threads(interleaved.THREADS)
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

    # A step on a short input triggers one-time allocations before the measurement.
    step(x[:, :256])
    before = interleaved.peak_mib()
    seconds = scaling.median_seconds(lambda: step(x).numpy())
    print(json.dumps([1000 * seconds, max(interleaved.peak_mib() - before, 0.1)]))


def measure(window, length):
    """Returns the milliseconds and MiB of a step, measured in a new process."""
    command = [sys.executable, __file__, "--point", str(window or 0), str(length)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", default=str(report.RESULTS))
    parser.add_argument("--point", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        measure_here(*arguments.point)
        return
    times, memory = {}, {}
    for name, window in KINDS.items():
        found = [(length, *measure(window, length)) for length in LENGTHS]
        print(name, found, file=sys.stderr)
        times[name] = [(length, ms) for length, ms, _ in found]
        memory[name] = [(length, mib) for length, _, mib in found]
    panels = {
        "time, forward and backward": ("length", times),
        "memory, forward and backward": ("length", memory),
    }
    units = dict(zip(panels, ("ms", "MiB above a step of 256 tokens"), strict=True))
    growth.write(
        arguments.output,
        "restricted_attention",
        panels,
        units,
        columns=2,
        upper_half=True,
    )
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "milliseconds": times,
        "mib": memory,
    }
    name = "restricted_attention"
    report.write(arguments.output, name, result)


if __name__ == "__main__":
    main()
