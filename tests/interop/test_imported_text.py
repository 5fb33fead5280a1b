"""Text settings of imported models, and SentencePiece models of exports.

The library sentencepiece is the reference for ids.
"""

import json

import pytest
import sentencepiece
import tensorflow as tf
from fairseq_models import write_fairseq
from tiny_export import SENTENCES, open_translator, tiny_model
from toolkit_models import HOSTILE_TEXTS, splitter

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding.text import TextOptions, segment
from keras_transformer.errors import ModelError
from keras_transformer.export import export_translator
from keras_transformer.interop import export_huggingface, export_marian, write_imported
from keras_transformer.interop.from_huggingface import import_huggingface
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.pipelines.tokenizers.normalization import TextSettings, clean
from keras_transformer.saving.info import model_info

INVISIBLE = "\u00ad\u200b\u202b\u2060\u2066\ufeff"
LINES = "Ab cd. Ef ab?\tab  cd\nABCDE FAB"


def sources(tokenizer):
    """Returns the texts of the segments of `LINES` that a model translates."""
    texts = []

    def tokenize(strings):
        texts[:] = strings.numpy()
        return tokenizer.tokenize(strings)

    options = TextOptions.of(tokenizer, kt.BeamSearch())
    segment(tokenize, tf.constant([LINES]), 99, options=options)
    return [text.decode() for text in texts]


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_imports_get_settings_and_keep_ids(marian, huggingface, rule):
    spaces = {"remove_extra_whitespaces": rule != "identity"}
    model = splitter(rule, **spaces)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    for folder, read in ((marian, import_marian), (huggingface, import_huggingface)):
        for side in ("source", "target"):
            (folder / f"{side}.spm").write_bytes(model)
        tokenizer = read(folder).tokenizer
        assert tokenizer.text == TextSettings(
            normalization=True, sentences=True, scripts=["Latin"]
        )
        pieces = {piece: n for n, piece in enumerate(tokenizer.pieces())}
        plain = ["ab cd", "a b cde fed", "e\u0301", "\u0651\u064e", "ﬁ ａｂ", "A B"]
        for text in plain if rule == "identity" else HOSTILE_TEXTS:
            if ">>" not in text and "\0" not in text:
                visible = clean([text]).numpy()[0].decode()
                assert visible == text or text not in plain
                expected = [
                    pieces.get(each, tokenizer.unknown_id)
                    for each in library.encode(visible, out_type=str)
                ]
                assert tokenizer.tokenize([text]).to_list() == [expected], text
        for side in (tokenizer, tokenizer.target):
            spaced = side.tokenize([f"\u00a0a{INVISIBLE}b \t \u3000cd\u2028"]).to_list()
            assert spaced == side.tokenize(["ab cd"]).to_list()
        assert sources(tokenizer) == ["Ab cd.", "Ef ab?", "ab  cd", "ABCDE FAB"]


def test_models_of_many_languages_get_settings(tmp_path):
    tokenizer = import_huggingface(write_fairseq(tmp_path / "m", "nllb")).tokenizer
    assert tokenizer.text.sentences and tokenizer.text.normalization
    assert tokenizer.target.text == tokenizer.text
    odd, plain = tokenizer.tokenize([f"d{INVISIBLE}og", "dog"]).to_list()
    assert odd == plain
    # Settings that change no ids can be edited in an imported model.
    fingerprint = tokenizer.fingerprint()
    tokenizer.text = TextSettings(normalization=True, capitals=True)
    assert tokenizer.fingerprint() == fingerprint
    tokenizer.text = TextSettings()
    assert tokenizer.fingerprint() != fingerprint


@pytest.mark.parametrize("export", [export_huggingface, export_marian])
def test_exports_carry_the_settings(export, tmp_path, export_only):
    text = TextSettings(normalization=True, sentences=True, words=["Hund"])
    tokenizer = pipelines.train_tokenizer("bpe", SENTENCES, 300, text=text)
    variations = {"timescales": "tensor2tensor", "zero_start_id": 2}
    if export is export_huggingface:
        variations = {"layer_norm_epsilon": 1e-5}
    model, _ = tiny_model(1, variations=variations)
    translator = open_translator(model, tokenizer, kt.BeamSearch(2))
    folder = export(translator, tmp_path / "m")
    # Other libraries normalize texts like this package.
    for side in ("source", "target"):
        library = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / f"{side}.spm")
        )
        for plain, odd in {
            "der Hund": " \tder\u00a0\u3000Hu\u00adnd\u200b ",
            "läuft é ế": "la\u0308uft e\u0301 e\u0302\u0301",
            "한": "\u1112\u1161\u11ab",
            "क\u093c ﬁ Ａ": "\u0958 ﬁ Ａ",
        }.items():
            ids = tokenizer.tokenize([odd, plain]).to_list()
            assert ids == [library.encode(odd), library.encode(plain)]
            assert ids[0] == ids[1]
    read = import_huggingface if export is export_huggingface else import_marian
    imported = read(folder)
    assert imported.tokenizer.text == text
    # They follow into all other formats.
    output = write_imported(imported, tmp_path / "imported")
    opened = kt.open_model(output)
    assert opened.tokenizer.text == text
    assert model_info(output)["text"] == {**text.model_dump(), "words": 1}
    # An imported model can be exported and imported again.
    again = read(export(opened, tmp_path / "again"))
    write_imported(again, tmp_path / "twice")
    twice = kt.open_model(tmp_path / "twice")
    assert twice.tokenizer.text == text
    assert twice.translate(SENTENCES) == opened.translate(SENTENCES)
    export_only("serving_default")
    saved = export_translator(opened, tmp_path / "saved")
    assert model_info(saved)["text"]["sentences"]
    exported = kt.open_model(saved)
    for line in ("der  Hund. Die Katze!", "der\tHund\u00a0läuft"):
        assert exported.translate([line]) == opened.translate([line])
    # Without the file, as in the folders of others, they follow from the vocabulary.
    (folder / "text.json").unlink()
    found = read(folder).tokenizer
    assert (found.text.sentences, found.text.normalization) == (True, True)
    for side in (found, found.target):
        odd, plain = side.tokenize([" der\u00a0 Hund", "der Hund"]).to_list()
        assert odd == plain


def test_damaged_settings_are_refused(huggingface):
    path = huggingface / "text.json"
    wrong = {"sentences": "yes"}, {"other": 1}, {"scripts": ["latin"]}
    for content in ("{", *map(json.dumps, wrong)):
        path.write_text(content)
        with pytest.raises(ModelError, match=r"text\.json"):
            import_huggingface(huggingface)
