"""`open_model` on a SavedModel export, against the `Translator` of the same model."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_export import TEXTS
from toolkit_models import random_arrays, write_marian

import keras_transformer as kt
from keras_transformer import visualization
from keras_transformer.decoding.warnings import EMPTY, TRUNCATED
from keras_transformer.errors import ModelError
from keras_transformer.export.exported_translator import ExportedTranslator
from keras_transformer.export.load import ExportLimits
from keras_transformer.export.signatures import Signatures
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.opening import open_model
from keras_transformer.saving.load import load_model

pytestmark = pytest.mark.usefixtures("exports_load_once")
TARGETS = ["läuft der Hund", "Katze", "noch ein Hund 😀 x", "", "漢 und ein 😀!"]


@pytest.fixture(scope="module")
def warnings():
    """List of (index, text) pairs, one per warning of `exported`."""
    return []


@pytest.fixture(scope="module")
def exported(tiny_export, warnings):
    return open_model(tiny_export, warn=lambda *warning: warnings.append(warning))


@pytest.fixture(scope="module")
def translator(tiny_translator):
    return tiny_translator


def test_n_best_matches_the_translator(exported, translator, monkeypatch):
    monkeypatch.setattr(exported, "batch_size", 2)
    assert exported.n_best(TEXTS, 2) == [row[:2] for row in exported.n_best(TEXTS, 4)]
    for n in (None, 1):
        found, expected = exported.n_best(TEXTS, n), translator.n_best(TEXTS, n)
        for ranked, others in zip(found, expected, strict=True):
            assert [each.text for each in ranked] == [each.text for each in others]
            np.testing.assert_allclose(
                [each.score for each in ranked],
                [each.score for each in others],
                atol=1e-4,
            )
    with pytest.raises(
        ModelError, match=r"n-best list of 5, because .* beam size of 4"
    ):
        exported.n_best(TEXTS, 5)
    for n in (0, -1):
        for each in (exported, translator):
            with pytest.raises(ValueError, match=rf"`n(_best)?` must be .*={n}\."):
                each.n_best(TEXTS, n)
    with pytest.raises(ValueError, match=r"Pass \[text\] instead"):
        exported.n_best("Hund")
    assert exported.n_best([]) == exported.translate([]) == []


def test_unlikely_translations_have_warnings(exported, translator, monkeypatch):
    assert exported.characters == translator.characters
    assert exported.unknown_characters == translator.unknown_characters
    for each in (exported, translator):
        monkeypatch.setattr(each, "low_score", 0.0)
    found, expected = (
        [
            [text for text in best.warnings if "per subword" in text]
            for best, *_ in each.n_best([*TEXTS, "", "ab\ncd"], 2)
        ]
        for each in (exported, translator)
    )
    assert found == expected and len([*filter(None, found)]) > 3


def test_scores_match_the_translator(exported, translator):
    found, expected = (each.score(TEXTS, TARGETS) for each in (exported, translator))
    for one, other in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5, abs=1e-5)
        assert one.num_tokens == other.num_tokens
    assert exported.score([], []) == []


def test_alignments_match_the_translator(exported, translator):
    # Every source is aligned with every target. Some characters are encoded as bytes.
    sources, targets = TEXTS * len(TARGETS), np.repeat(TARGETS, len(TEXTS)).tolist()
    aligned = exported.align(sources, targets)
    assert aligned == translator.align(sources, targets)
    assert len({pair for pairs in aligned for pair in pairs}) > 5


def test_long_pairs_are_reported(exported, warnings):
    warnings.clear()
    sources, targets = ["Hund", "Hund " * 50], ["läuft"] * 2
    exported.score(sources, targets)
    assert warnings == [(1, "too long for the export. Only its beginning was scored.")]
    warnings.clear()
    assert exported.align(sources, targets)[1] == []
    assert warnings == [(1, "too long for the export. It was not aligned.")]
    warnings.clear()
    # A word that is too long is truncated.
    ((best,),) = exported.n_best(["Hund" * 50], 1)
    # The untrained model generates nothing for it.
    assert best.text == "" and best.warnings == (TRUNCATED, EMPTY)
    assert warnings == [(0, TRUNCATED), (0, EMPTY)]


def test_attention_matches_the_mean_of_the_model(exported, tiny_model):
    source, target = "ein Hund 😀 x", "läuft ä猫"
    found = visualization.compute_export_attention(exported, source, target)
    whole = visualization.compute_attention(*tiny_model, source, target)
    assert found.source == whole.source[:-1]
    assert found.decoder_outputs == whole.decoder_outputs[:-1]
    assert "".join(found.source) == source and "😀" in "".join(found.source[-4:])
    # An export has only the mean over layers and heads, without the end ids.
    expected = whole.scores["cross"].mean(axis=(0, 1))[:-1, :-1]
    np.testing.assert_allclose(found.scores["cross"][0, 0], expected, atol=1e-5)
    assert found.select("cross")[0][:2] == (1, 1)
    for options in ({"kind": "encoder"}, {"kind": "cross", "layer": 1}):
        with pytest.raises(ModelError, match="a SavedModel has only the mean"):
            found.select(**options)
    with pytest.raises(ModelError, match=r"exceeds the export.s limits"):
        visualization.compute_export_attention(exported, source * 9, target)


def test_messages_about_a_saved_model_name_it(tiny_export):
    for path in (tiny_export, tiny_export.parent):
        with pytest.raises(ModelError, match="is a SavedModel, whose weights cannot"):
            load_model(path)
    with pytest.raises(ModelError, match="is a SavedModel, whose weights cannot"):
        open_model(tiny_export, ensemble=[tiny_export])


@pytest.mark.parametrize("has_signature", [False, True])
def test_saved_model_of_another_program_is_rejected(tmp_path, has_signature):
    module = tf.Module()
    if has_signature:  # TensorFlow names the signature of a single function
        module.double = tf.function(lambda x: x + x, [tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path / "1"))
    with pytest.raises(ModelError, match=r"1: not an export of this package, because"):
        open_model(tmp_path)


def translator_of(signatures):
    """Returns an `ExportedTranslator` of functions that no SavedModel contains."""
    limits = ExportLimits(max_batch_size=64, max_source_length=256, end_id=3)
    return ExportedTranslator.of_signatures(signatures, "export", 64, limits)


def test_attend_keeps_empty_pieces_within_a_row():
    """An unknown subword may have no bytes. Its attention belongs to no other one."""
    attention = np.arange(16, dtype="float32").reshape(1, 4, 4)
    outputs = {
        "source_pieces": tf.constant([["a", "", " b", ""]]),
        "target_pieces": tf.constant([["", "c", "", ""]]),
        "attention": tf.constant(attention),
        "truncated": tf.constant([False]),
    }
    translator = translator_of({"attend": lambda **inputs: outputs})
    ((source, target, found),) = translator.attend(["a? b"], ["?c"])
    assert (source, target) == (["a", "", " b"], ["", "c"])
    np.testing.assert_array_equal(found, attention[0, :2, :3])


def test_align_ignores_subwords_before_the_text(monkeypatch):
    """Exports of models with a target language put a prefix before each text."""
    pairs = {
        ("", ""): ([">>fra<<"], [], np.zeros((0, 1))),
        ("", "d"): ([">>fra<<"], ["d"], np.ones((1, 1))),
        # "d" attends to "b" and "ef" to "ac", apart from the prefix.
        ("ac b", "d ef"): (
            [">>fra<<", " a", "c", " b"],
            ["d", " e", "f"],
            np.array([[0.6, 0.1, 0.0, 0.3], [0.8, 0.1, 0.1, 0], [0.7, 0.1, 0.0, 0.2]]),
        ),
    }
    translator = translator_of({})
    monkeypatch.setattr(
        translator,
        "attend",
        lambda *texts: [pairs[pair] for pair in zip(*texts, strict=True)],
    )
    assert translator.align(["ac b", ""], ["d ef", "d"]) == [[(1, 0), (0, 1)], []]
    assert translator.align([], []) == []


@pytest.fixture
def run_eagerly():
    """Lets functions run without a graph, which takes long to trace."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("run_eagerly")
def test_alignments_with_a_target_language_match_the_translator(tmp_path):
    folder = write_marian(tmp_path / "marian", random_arrays())
    vocabulary = folder / "vocab.yml"
    vocabulary.write_text(vocabulary.read_text().replace('"f"', '">>deu<<"'))
    imported = import_marian(folder, language="fra")
    model, tokenizer = imported.model, imported.tokenizer
    search = kt.BeamSearch(beam_size=2, extra_length=7)
    translator = kt.Translator(model, tokenizer, search=search)
    functions = Signatures(model, tokenizer, search)
    signatures = {"serving_default": functions.translate, "attend": functions.attend}
    exported = translator_of(signatures)
    # The tokenizer has no piece for the ideograph, so the space before it is separate.
    sources = ["a b a", "a 日 b", "", " ", ">>fra<< a", "b"]
    targets = ["b a", "b 日 a", "a", "b", "a a b", ""]
    aligned = exported.align(sources, targets)
    assert aligned == translator.align(sources, targets)
    for source, target, pairs in zip(sources, targets, aligned, strict=True):
        num_words = len(source.split())
        expected = range(len(target.split()) if num_words else 0)
        assert [number for _, number in pairs] == list(expected)
        assert all(0 <= number < num_words for number, _ in pairs)
    # A language prefix in the text replaces the default and is a word.
    plain = import_marian(folder).tokenizer
    sources, targets = [">>deu<< a b", ">>fra<< a b"], ["b a c", "b a c"]
    assert exported.align(sources, targets) == translator.align(sources, targets)
    ids = tokenizer.tokenize(sources).to_list()
    assert ids == plain.tokenize(sources).to_list() and ids[0] != ids[1]
    texts = [sources[0], f"{sources[0]}\na"]
    assert exported.translate(texts) == translator.translate(texts)
