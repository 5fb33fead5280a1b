"""Compares the peak memory of training with the estimate of `machine`.

    python benchmarks/training_memory.py

Each case runs three training steps on random ids in a new process, on the CPU. The
script prints a table of peaks and estimates, both in MiB.
"""

import argparse
import json
import subprocess
import sys

import interleaved

# Preset, vocabulary size, source (and target) tokens per batch, tokens per sentence.
CASES = (
    ("tiny", 8_000, 4_096, 32),
    ("tiny", 8_000, 16_384, 32),
    ("tiny", 8_000, 4_096, 128),
    ("small", 16_000, 8_192, 32),
    ("base", 37_000, 2_048, 32),
)
STEPS = 3


def measure_peak(size, vocabulary_size, tokens, length):
    """Trains in this process and returns its peak memory in MiB."""
    from types import SimpleNamespace

    import numpy as np
    import tensorflow as tf

    from keras_transformer.runs.build import build_training_model

    recipe = build_recipe(size, vocabulary_size, tokens, length)
    tokenizer = SimpleNamespace(
        vocabulary_size=vocabulary_size, num_outputs=None, pad_id=0
    )
    model = build_training_model(recipe, tokenizer)
    shape = (tokens // length, length)
    ids = np.random.default_rng(0).integers(4, vocabulary_size, shape, np.int32)
    batch = ({"source_ids": ids, "target_ids": ids}, ids)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    model.fit(dataset, steps_per_epoch=STEPS, verbose=0)
    return interleaved.peak_mib()


def build_recipe(size, vocabulary_size, tokens, length):
    """Returns a recipe for a case. Its files are never read."""
    from keras_transformer.recipes import load_recipe

    overrides = (
        "data.train={source: a, target: b}",
        f"data.max_length={length}",
        f"model.size={size}",
        f"tokenizer.vocabulary_size={vocabulary_size}",
        f"training.batch_tokens={tokens}",
        "training.gradient_accumulation_steps=1",
        "training.parallel_parts=1",
    )
    return load_recipe("files", overrides)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    case = parser.parse_args().case
    if case is not None:
        print(measure_peak(*case))
        return
    from keras_transformer.machine import recipe_memory

    print("| size | vocabulary | tokens | length | peak | estimate |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        measured = float(done.stdout.split()[-1])
        estimate = recipe_memory(build_recipe(*case)) / 2**20
        cells = map(str, (*case, round(measured), round(estimate)))
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
