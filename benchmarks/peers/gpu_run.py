"""Benchmark system: trains the model of a run on one GPU, until a BLEU on validation.

gpu.py starts it, and `interleaved` sends it one turn. The argument is a run folder, of
which the recipe, the vocabulary and the encoded text are read. TensorFlow is not
needed.
"""

import pathlib
import sys
import time
import types

import interleaved
import jax
import numpy as np
import sacrebleu
import sentencepiece

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.build import build_training_model

ROWS = 128
folder = pathlib.Path(sys.argv[1])
changes = ["training.parallel_parts=1", "training.mixed_precision=bfloat16"]
recipe = load_recipe(folder / "config.yaml", changes)
settings = recipe.training
(path,) = (folder / "tokenizer").glob("*.model")
vocabulary = sentencepiece.SentencePieceProcessor(model_file=str(path))
sides = {
    "pad_id": 0,
    "vocabulary_size": len(vocabulary),
    "num_outputs": len(vocabulary),
}
tokenizer = types.SimpleNamespace(**sides, target=types.SimpleNamespace(**sides))
train, validation = (
    pipelines.EncodedCorpus.load(folder / "cache" / name)
    for name in ("train", "validation")
)
model = build_training_model(recipe, tokenizer)
search = kt.BeamSearch(1, extra_length=recipe.decoding.extra_length)
translate = compile_for_ids(
    lambda ids: kt.decoding.translate_ids(model.transformer, ids, search)[0][:, 0],
    *(1, model.transformer),
)


def batches(start_step=0):
    budget = settings.batch_tokens
    return pipelines.TrainingBatches(train, budget, settings.seed, start_step)


def texts(rows):
    """Returns the texts of rows of ids, of which those below 4 are special."""
    return [vocabulary.decode([n for n in map(int, row) if n > 3]) for row in rows]


def score(num_pairs):
    """Returns the BLEU of greedy translations of the first pairs."""
    pairs = [validation.pair(n) for n in range(min(num_pairs, validation.num_pairs))]
    pairs.sort(key=lambda pair: len(pair[0]))
    outputs = []
    for first in range(0, len(pairs), ROWS):
        sources = [source for source, _ in pairs[first : first + ROWS]]
        ids = np.zeros((len(sources), max(map(len, sources))), "int32")
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)] = source
        outputs += texts(translate(ids))
    references = texts(target for _, target in pairs)
    return sacrebleu.corpus_bleu(outputs, [references]).score


def run(bleu, minutes, steps, pairs):
    """Trains until a score or a time, and returns the scores every `steps` steps."""
    started, curve = time.perf_counter(), []
    best = seconds = 0
    while best < bleu and seconds < 60 * minutes:
        done = len(curve) * steps
        options = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
        history = model.fit(batches(done), **options).history
        best, seconds = score(pairs), time.perf_counter() - started
        row = {"step": done + steps, "loss": history["loss"][-1], "bleu": best}
        curve.append({"seconds": round(seconds, 1), **row})
    return curve


started = time.perf_counter()
channel = interleaved.Channel()
model.compile_shapes(batches().shapes)
channel.send(seconds=time.perf_counter() - started)
while (arguments := channel.receive()) is not None:
    curve = run(**arguments)
    device = jax.local_devices()[0].device_kind
    channel.send(curve=curve, tokens=model.num_tokens, device=device)
