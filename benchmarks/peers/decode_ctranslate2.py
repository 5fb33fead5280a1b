"""Contestant: CTranslate2 with the same weights."""

import sys

import ctranslate2
import numpy as np
import sentencepiece
import turns

folder, what, compute_type, alpha = sys.argv[1:]
translator = ctranslate2.Translator(
    folder,
    device="cpu",
    compute_type=compute_type,
    inter_threads=1,
    intra_threads=turns.THREADS,
)
processor = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
END = processor.eos_id()
FIXED_LENGTH = 20


def ids_turn(path, batch):
    rows = [
        [processor.id_to_piece(int(n)) for n in row if n not in (0, END)]
        for row in np.load(path)
    ]
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
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    results = translator.translate_batch(
        processor.encode(lines, out_type=str),
        max_batch_size=batch,
        beam_size=4,
        length_penalty=float(alpha),
        disable_unk=True,
    )
    texts = [processor.decode(result.hypotheses[0]) for result in results]
    return len(lines), {"texts": texts}


def turn(path, batch):
    return turns.timed({"ids": ids_turn, "text": text_turn}[what], path, batch)


turns.serve(turn)
