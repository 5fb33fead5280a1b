"""Benchmark system: this package's SavedModel, called with token ids or with text.

decoding.py starts it, and `interleaved` sends it turns. If `at_once` is 1, all threads
share every operation. Otherwise, they compute `at_once` parts of a batch in parallel.
"""

import sys

import interleaved
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, the tokenizer's operations

folder, kind, at_once = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(
    interleaved.THREADS // int(at_once)
)
tf.config.threading.set_inter_op_parallelism_threads(interleaved.THREADS)
signatures = tf.saved_model.load(folder).signatures


def ids_turn(path, batch):
    rows = np.load(path)
    tokens = 0
    for start in range(0, len(rows), batch):
        source_ids = tf.constant(rows[start : start + batch])
        result = signatures["translate_ids"](source_ids=source_ids)["target_ids"]
        tokens += int(tf.math.count_nonzero(result))
    return tokens, {}


def text_turn(path, batch):
    with open(path, encoding="utf-8", newline="\n") as file:
        lines = [line.removesuffix("\n") for line in file]
    texts = [None] * len(lines)
    # Lines are sorted, as in a server that batches by length.
    order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        inputs = tf.constant([lines[row] for row in rows])
        found = signatures["serving_default"](inputs=inputs)["translations"].numpy()
        for row, text in zip(rows, found, strict=True):
            texts[row] = text.decode()
    return len(lines), {"texts": texts}


def turn(path, batch):
    return interleaved.timed({"ids": ids_turn, "text": text_turn}[kind], path, batch)


interleaved.serve(turn)
