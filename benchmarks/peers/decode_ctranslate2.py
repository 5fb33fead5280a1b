"""Contestant: CTranslate2 with the same weights; its sub-words are ready made."""

import json
import pathlib
import sys

import ctranslate2
import numpy as np
import turns

folder, what, compute_type, alpha = sys.argv[1:]
translator = ctranslate2.Translator(
    folder,
    device="cpu",
    compute_type=compute_type,
    inter_threads=1,
    intra_threads=turns.THREADS,
)
# Without the package, which would bring TensorFlow's memory with it.
PIECES = json.loads((pathlib.Path(folder) / "shared_vocabulary.json").read_text())
CONFIG = json.loads((pathlib.Path(folder) / "config.json").read_text())
END = PIECES.index(CONFIG["eos_token"])
FIXED_LENGTH = 20


def ids_turn(path, batch):
    rows = [[PIECES[n] for n in row if n not in (0, END)] for row in np.load(path)]
    tokens = 0
    for start in range(0, len(rows), batch):
        results = translator.translate_batch(
            rows[start : start + batch],
            beam_size=4,
            length_penalty=0,
            disable_unk=True,
            min_decoding_length=FIXED_LENGTH,
            max_decoding_length=FIXED_LENGTH,
        )
        tokens += sum(len(result.hypotheses[0]) for result in results)
    return tokens, {}


def text_turn(path, batch):
    lines = json.loads(pathlib.Path(f"{path}.pieces").read_text())
    results = translator.translate_batch(
        lines,
        max_batch_size=batch,
        beam_size=4,
        length_penalty=float(alpha),
        disable_unk=True,
    )
    return len(lines), {"pieces": [result.hypotheses[0] for result in results]}


def turn(path, batch):
    return turns.timed({"ids": ids_turn, "text": text_turn}[what], path, batch)


turns.serve(turn)
