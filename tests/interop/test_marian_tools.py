"""A trained and exported model, run by Marian and converted by transformers.

Tests of Marian need pymarian 1.12.42 on the `PATH`, or its path in `PYMARIAN`. The test
of the converter needs `CONVERT_MARIAN_PYTHON`, the path of a Python interpreter with
transformers 4.47.1 and torch.
"""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from benchmark_scripts import load_script
from layer_checks import numpy

import keras_transformer as kt
from keras_transformer.decoding.batches import pad_rows
from keras_transformer.interop import export_marian
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.interop.vocabularies import read_vocabulary
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.corpora import load_pairs
from keras_transformer.runs.train import train

pytestmark = pytest.mark.slow

PROGRAM = os.environ.get("PYMARIAN") or shutil.which("pymarian")
SETTINGS = (
    *("model.normalization=post", "model.activation=swish", "model.num_layers=6"),
    *("model.variations.num_decoder_layers=2", "model.dropout=0.1"),
    *("model.start=zeros", "model.timescales=tensor2tensor"),
    *("data.size=6000", "data.held_out=300", "training.steps=1200"),
    *("training.learning_rate=0.002", "training.validation_bleu=false"),
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The trained translator, the folder for Marian, and pairs of held-out text."""
    folder = tmp_path_factory.mktemp("marian")
    recipe = load_recipe("phrases", SETTINGS)
    train(recipe, folder / "run", progress=False)
    translator = kt.open_model(folder / "run")
    pairs = list(load_pairs(recipe.data)["validation"])
    return translator, export_marian(translator, folder / "exported"), pairs


@pytest.fixture(scope="module")
def agreement():
    return load_script("marian_agreement")


@pytest.fixture(scope="module")
def imported(exported, agreement):
    """The exported model, imported again."""
    return agreement.Imported(import_marian(exported[1]))


@pytest.fixture(scope="module")
def marian(exported, tmp_path_factory):
    """Marian's programs for the exported model, and the held-out pairs as pieces."""
    if PROGRAM is None:
        pytest.skip("pymarian is missing: install pymarian==1.12.42 or set PYMARIAN")
    folder = tmp_path_factory.mktemp("programs") / "exported"
    programs = load_script("marian_programs")
    marian = programs.Marian(PROGRAM, shutil.copytree(exported[1], folder))
    sources, targets = map(list, zip(*exported[2], strict=True))
    return marian, marian.split(sources, "source"), marian.split(targets, "target")


@pytest.fixture(scope="module")
def numbers(exported):
    """Mapping of Marian's pieces to ids."""
    pieces = read_vocabulary(exported[1] / "vocab.yml")
    return {piece: number for number, piece in enumerate(pieces)}


def test_word_scores_match_marians_scorer(imported, agreement, marian, numbers):
    found = agreement.compare_scores(imported, marian[0], numbers, *marian[1:])
    assert found["words"] > 2000
    assert found["largest"] < 2e-5


def test_translations_match_marians_decoder(imported, agreement, marian, numbers):
    for found in agreement.compare_searches(imported, *marian[:1], numbers, marian[1]):
        reasons = {each["reason"] for each in found["differences"]}
        # In a "tie", both hypotheses have equal scores. A "rule" difference disappears
        # if our beam shrinks with each finished hypothesis, as Marian's does.
        assert reasons <= {"tie", *(["rule"] if found["beam_size"] > 1 else [])}, found
        assert len(found["differences"]) < found["lines"] / 20


def test_converter_of_transformers_gives_the_same_logits(exported, tmp_path):
    python = os.environ.get("CONVERT_MARIAN_PYTHON")
    if not python:
        pytest.skip("set CONVERT_MARIAN_PYTHON to a Python with transformers 4.47.1")
    _, folder, pairs = exported
    imported = import_marian(folder, "huggingface")
    tokenizer = imported.tokenizer
    # The converter limits positions to the width of the model.
    limit = imported.model.d_model
    rows = [tokenizer.tokenize(list(pair)).to_list() for pair in pairs[:12]]
    rows = [row for row in rows if max(map(len, row)) < limit]
    assert len(rows) > 8
    source = pad_rows([[*row, 0] for row, _ in rows], -1)
    target = pad_rows([row for _, row in rows], -1)
    np.savez(tmp_path / "ids", source=source, target=target)
    # The converter writes into the folder, so it gets a copy.
    copied = shutil.copytree(folder, tmp_path / "model")
    script = pathlib.Path(__file__).with_name("convert_marian.py")
    command = [python, script, copied, tmp_path / "ids.npz", tmp_path / "logits.npz"]
    # Keep transformers from importing TensorFlow and from downloading.
    environment = {**os.environ, "USE_TF": "0", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    theirs = np.load(tmp_path / "logits.npz")
    for number, (source, target) in enumerate(rows):
        ids = [tokenizer.start_id, *target]
        ours = imported.model(
            {"source_ids": np.array([[*source, 0]]), "target_ids": np.array([ids])}
        )
        # The last output of the converted model is padding.
        found = theirs[str(number)][:, :-1]
        np.testing.assert_allclose(found, numpy(ours)[0], atol=1e-4)
