"""A model of ours, trained and exported, in Marian 1.12 and in transformers' converter.

pip install pymarian==1.12.42               # its command: PYMARIAN
pip install transformers==4.47.1 torch      # in a separate environment
                                            # its Python: CONVERT_MARIAN_PYTHON
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from layer_checks import numpy

import keras_transformer as kt
from keras_transformer.conversion.marian import import_marian
from keras_transformer.decoding.batches import pad_rows
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.decoding.search import translate_ids
from keras_transformer.experiments.corpora import load_pairs
from keras_transformer.experiments.train import train
from keras_transformer.export import export_marian
from keras_transformer.recipes import load_recipe

pytestmark = pytest.mark.slow

SETTINGS = (
    *("model.normalization=post", "model.activation=swish", "model.num_layers=6"),
    *("model.variations.num_decoder_layers=2", "model.dropout=0.1"),
    *("model.start=zeros", "model.position_rates=tensor2tensor"),
    *("data.size=6000", "data.held_out=300", "training.steps=1200"),
    *("training.learning_rate=0.002", "training.validation_bleu=false"),
)
# Marian prints five digits.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The trained translator, the folder for Marian, and pairs of held-out text."""
    folder = tmp_path_factory.mktemp("marian")
    recipe = load_recipe("phrases", SETTINGS)
    train(recipe, folder / "run", progress=False)
    translator = kt.open_model(folder / "run")
    pairs = list(load_pairs(recipe)["validation"])
    return translator, export_marian(translator, folder / "exported"), pairs


@pytest.fixture(scope="module")
def pymarian():
    """Function that runs a command of pymarian and returns its output's lines."""
    program = os.environ.get("PYMARIAN") or shutil.which("pymarian")
    if not program and importlib.util.find_spec("pymarian"):
        program = pathlib.Path(sys.executable).with_name("pymarian")
    if not program:
        pytest.skip("pymarian is missing: install pymarian==1.12.42 or set PYMARIAN")

    def run(*words, text=None):
        command = [program, *map(str, words), "--cpu-threads", "1", "--quiet"]
        result = subprocess.run(command, input=text, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.removesuffix("\n").split("\n")

    return run


def rows_of(pieces, ids):
    """Returns ids as a line of subwords."""
    return " ".join(pieces[number] for number in ids)


def label_log_probs(model, start, source, labels, kept=slice(None)):
    """Log-probabilities of `labels` among the ids `kept`."""
    target = [start, *labels[:-1]]
    found = model({"source_ids": np.array([source]), "target_ids": np.array([target])})
    logits = numpy(found)[0].astype("float64")
    total = np.log(np.exp(logits[:, kept]).sum(axis=1))
    return logits[np.arange(len(labels)), labels] - total


def kept_ids(tokenizer):
    """Our ids in Marian's order: the end, unknown, and no padding and start."""
    return [3, 1, *range(4, tokenizer.vocabulary_size)]


def test_word_scores_are_marians(exported, pymarian, tmp_path):
    translator, folder, pairs = exported
    imported = import_marian(folder)
    pieces = imported.tokenizer.pieces()
    sides = [
        imported.tokenizer.tokenize([pair[side] for pair in pairs[:80]]).to_list()
        for side in (0, 1)
    ]
    for name, rows in zip(("source", "target"), sides, strict=True):
        lines = "".join(f"{rows_of(pieces, row)}\n" for row in rows)
        (tmp_path / name).write_text(lines, encoding="utf-8")
    vocabularies = [folder / "vocab.yml"] * 2
    scores = pymarian(
        *("score", "-m", folder / "model.npz", "-v", *vocabularies, "--word-scores"),
        *("-t", tmp_path / "source", tmp_path / "target"),
    )
    ours = translator.tokenizer
    kept = kept_ids(ours)
    compared = 0
    for source, target, line in zip(*sides, scores, strict=True):
        words = line.partition("WordScores= ")[2]
        expected = np.array(words.split(), float)
        found = label_log_probs(
            imported.model, imported.tokenizer.start_id, [*source, 0], [*target, 0]
        )
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        old = [[kept[n] for n in (*row, 0)] for row in (source, target)]
        found = label_log_probs(translator.model, ours.start_id, *old, kept)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        compared += len(found)
    assert compared > 800


@pytest.mark.parametrize(("beam_size", "normalize"), [(1, 0.0), (4, 0.0), (4, 1.0)])
def test_search_finds_marians_ids(exported, pymarian, beam_size, normalize):
    translator, folder, pairs = exported
    model, ours = translator.model, translator.tokenizer
    rows = [
        [*row, ours.end_id]
        for row in ours.tokenize([source for source, _ in pairs]).to_list()
    ]
    search = kt.BeamSearch(beam_size, normalize, "power")
    padded = pad_rows(rows, ours.pad_id)
    found, _ = translate_ids(model, padded, search, SpecialIds.of(ours))
    printed = pymarian(
        *("decode", "--config", folder / "decoder.yml", "--beam-size", beam_size),
        *("--normalize", normalize, "--mini-batch", 16),
        text="".join(f"{rows_of(ours.pieces(), row[:-1])}\n" for row in rows),
    )
    kept = kept_ids(ours)
    numbers = {ours.pieces()[number]: number for number in kept}
    differences = 0
    for source, ids, line in zip(
        rows, numpy(found)[:, 0].tolist(), printed, strict=True
    ):
        labels = [
            ids[: ids.index(ours.end_id) + 1],
            [*(numbers[piece] for piece in line.split(" ")), ours.end_id],
        ]
        if labels[0] == labels[1]:
            continue
        differences += 1
        # Marian's beam narrows with each hypothesis that ends, so it finds less.
        scores = [
            label_log_probs(model, ours.start_id, source, each, kept).sum()
            / len(each) ** normalize
            for each in labels
        ]
        assert scores[0] > scores[1], (line, scores)
    assert differences <= (0 if beam_size == 1 else len(pairs) / 20)


def test_converter_of_transformers_computes_the_same(exported, tmp_path):
    python = os.environ.get("CONVERT_MARIAN_PYTHON")
    if not python:
        pytest.skip("set CONVERT_MARIAN_PYTHON to a Python with transformers 4.47.1")
    _, folder, pairs = exported
    imported = import_marian(folder, "huggingface")
    tokenizer = imported.tokenizer
    # The converter limits positions to the width of the model.
    limit = imported.model.d_model
    rows = [tokenizer.tokenize(list(pair)).to_list() for pair in pairs[:40]]
    rows = [row for row in rows if max(map(len, row)) < limit]
    assert len(rows) > 20
    source = pad_rows([[*row, 0] for row, _ in rows], -1)
    target = pad_rows([row for _, row in rows], -1)
    np.savez(tmp_path / "ids", source=source, target=target)
    copied = shutil.copytree(folder, tmp_path / "model")
    script = pathlib.Path(__file__).with_name("convert_marian.py")
    command = [python, script, copied, tmp_path / "ids.npz", tmp_path / "logits.npz"]
    # transformers would import TensorFlow.
    environment = {**os.environ, "USE_TF": "0", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    theirs = np.load(tmp_path / "logits.npz")
    for number, (source, target) in enumerate(rows):
        ids = [tokenizer.start_id, *target]
        ours = imported.model(
            {"source_ids": np.array([[*source, 0]]), "target_ids": np.array([ids])}
        )
        # Its last output is padding.
        found = theirs[str(number)][:, :-1]
        np.testing.assert_allclose(found, numpy(ours)[0], atol=1e-4)
