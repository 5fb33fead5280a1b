"""Benchmark system: CTranslate2 with the weights of keras_transformer's model.

decoding.py starts it, and `interleaved` sends it turns. Its inputs are subwords, not
texts. If `at_once` is 1, all threads share every operation. Otherwise, they compute
`at_once` parts of a batch in parallel.
"""

import json
import pathlib
import sys

import ctranslate2
import interleaved
import numpy as np

folder, kind, compute_type, alpha, at_once = sys.argv[1:]
at_once = int(at_once)
translator = ctranslate2.Translator(
    folder,
    device="cpu",
    compute_type=compute_type,
    inter_threads=at_once,
    intra_threads=interleaved.THREADS // at_once,
)
# The vocabulary is read from JSON, because importing keras_transformer would add
# TensorFlow to the measured memory.
PIECES = json.loads((pathlib.Path(folder) / "shared_vocabulary.json").read_text())
CONFIG = json.loads((pathlib.Path(folder) / "config.json").read_text())
END = PIECES.index(CONFIG["eos_token"])
# Same as `LENGTH` in decoding.py.
FIXED_LENGTH = 20


def ids_turn(path, batch):
    rows = [[PIECES[n] for n in row if n not in (0, END)] for row in np.load(path)]
    tokens = 0
    for start in range(0, len(rows), batch):
        results = translator.translate_batch(
            rows[start : start + batch],
            max_batch_size=-(-batch // at_once),
            beam_size=4,
            length_penalty=0,
            disable_unk=True,
            min_decoding_length=FIXED_LENGTH,
            max_decoding_length=FIXED_LENGTH,
        )
        tokens += sum(len(result.hypotheses[0]) for result in results)
    return tokens, {}


def subwords_turn(path, batch):
    lines = json.loads(pathlib.Path(f"{path}.pieces").read_text())
    pieces = [None] * len(lines)
    # Lines are sorted, as in a server that batches by length.
    order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        results = translator.translate_batch(
            [lines[row] for row in rows],
            max_batch_size=-(-batch // at_once),
            beam_size=4,
            length_penalty=float(alpha),
            disable_unk=True,
            min_decoding_length=0,
        )
        for row, result in zip(rows, results, strict=True):
            pieces[row] = result.hypotheses[0]
    return len(lines), {"pieces": pieces}


def turn(path, batch):
    return interleaved.timed(
        {"ids": ids_turn, "text": subwords_turn}[kind], path, batch
    )


interleaved.serve(turn)
