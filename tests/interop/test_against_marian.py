"""Imports a model that Marian trained and compares it with Marian's programs."""

import os
import shutil

import pytest
from benchmark_scripts import load_script

from keras_transformer.interop.from_marian import import_marian
from keras_transformer.interop.vocabularies import read_vocabulary
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.corpora import load_pairs

pytestmark = pytest.mark.slow

PROGRAM = os.environ.get("PYMARIAN") or shutil.which("pymarian")
SIZE = {"enc-depth": 1, "dim-emb": 64, "transformer-dim-ffn": 128}
STAGE = {"mini-batch-words": 600, "learn-rate": 0.002, "after": "600u"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Triple of a module, a trained `Marian`, and 100 test pairs.

    The module is `benchmarks/marian_agreement.py`, which makes the comparisons.
    """
    if PROGRAM is None:
        pytest.skip("pymarian is missing: install pymarian==1.12.42 or set PYMARIAN")
    agreement, programs = map(load_script, ("marian_agreement", "marian_programs"))
    marian = programs.Marian(PROGRAM, tmp_path_factory.mktemp("marian"))
    splits = load_pairs(load_recipe("phrases", ["data.size=6000"]))
    sources, targets = map(list, zip(*splits["train"], strict=True))
    marian.prepare(sources, targets, vocabulary_size=500)
    marian.train([STAGE], **SIZE, **{"lr-warmup": 100})
    return agreement, marian, list(splits["test"])[:100]


@pytest.fixture(scope="module")
def pieces(trained):
    """The test pairs' sources and targets, each split into pieces by Marian."""
    _, marian, pairs = trained
    sources, targets = zip(*pairs, strict=True)
    return marian.split(list(sources), "source"), marian.split(list(targets), "target")


@pytest.fixture(scope="module")
def numbers(trained):
    """Mapping of Marian's pieces (subwords) to ids."""
    pieces = read_vocabulary(trained[1].folder / "vocab.yml")
    return {piece: number for number, piece in enumerate(pieces)}


def model_of(trained, engine=None):
    return trained[0].Imported(import_marian(trained[1].folder, engine))


def test_word_scores_match_marians_scorer(trained, pieces, numbers):
    agreement, marian, _ = trained
    found = agreement.compare_scores(model_of(trained), marian, numbers, *pieces)
    assert found["words"] > 500
    assert found["largest"] < 2e-5
    # Guards the line above: with Hugging Face's positional encoding, scores differ.
    other = model_of(trained, "huggingface")
    found = agreement.compare_scores(other, marian, numbers, *pieces)
    assert found["largest"] > 1e-3


def test_translations_match_marians_decoder(trained, pieces, numbers):
    agreement, marian, _ = trained
    model = model_of(trained)
    for search in agreement.compare_searches(model, marian, numbers, pieces[0]):
        # Translations may differ where a length limit applies, where two scores are
        # equal, or, in a beam, where Marian's search rule finds Marian's translation.
        reasons = {each["reason"] for each in search["differences"]}
        allowed = {"limit", "tie", *(["rule"] if search["beam_size"] > 1 else [])}
        assert reasons <= allowed, search
        assert len(search["differences"]) < len(pieces[0]) / 4


def test_imported_tokenizer_matches_marians_splitter(trained, pieces, numbers):
    agreement, marian, pairs = trained
    tokenizer = import_marian(marian.folder).tokenizer
    ids = model_of(trained).ids
    for side, texts in zip(
        (tokenizer, tokenizer.target), zip(*pairs, strict=True), strict=True
    ):
        split = pieces[side is tokenizer.target]
        expected = [agreement.encode(each, numbers, ids)[:-1] for each in split]
        assert side.tokenize(list(texts)).to_list() == expected
