"""Exports for CTranslate2, whose scores and translations match the Keras model's."""

import functools
import importlib.util
import json

import numpy as np
import pytest
from tiny_export import add_noise, open_translator, separate_tokenizers, tiny_model
from toolkit_models import splitter

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding import SpecialIds, translate_ids
from keras_transformer.decoding.batches import pad_rows
from keras_transformer.decoding.scoring import score_ids
from keras_transformer.errors import ExportError
from keras_transformer.interop import export_ctranslate2, export_marian
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer
from keras_transformer.pipelines.tokenizers.model_check import sentencepiece_pieces

# ctranslate2 is imported inside the tests: it takes memory, and every pytest worker
# imports this file.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="no ctranslate2"
)
SENTENCES = [
    "der Hund läuft",
    "ein Hund und noch ein Hund",
    "die Katze schläft",
    "läuft 😀 der",
    "Hund " * 11,
]
# Arguments of `Transformer` for each test case.
VARIANTS = {
    "post": {},
    "pre": {"activation": "gelu", "normalization": "pre"},
    "learned": {"positions": "learned", "max_length": 40, "activation": "silu"},
    "relative": {"positions": "relative", "max_distance": 3},
    "rotary": {"positions": "rotary", "key_dim": 4, "value_dim": 4},
    "narrow heads": {"key_dim": 4, "value_dim": 4, "activation": "quick_gelu"},
    "variations": {
        "variations": {
            "num_decoder_layers": 1,
            "attention_bias": True,
            "logits_bias": True,
            "layer_norm_epsilon": 1e-5,
            "timescales": "tensor2tensor",
            "first_position": 1,
            "zero_start_id": 2,
            "embedding_norm": True,
            "source_vocabulary_size": 300,
            "tied_output": False,
        },
    },
    "wide heads": {"key_dim": 14, "value_dim": 14, "normalization": "pre"},
}


make_model = functools.partial(tiny_model, noise=0.2)


@pytest.fixture(scope="module")
def plain():
    """A model of one layer and its tokenizer, which tests must not change."""
    return make_model(num_layers=1)


def split(tokenizer, texts):
    """Returns each text as a list of pieces (subwords), the format of CTranslate2."""
    pieces = tokenizer.pieces()
    return [[pieces[n] for n in row] for row in tokenizer.tokenize(texts).to_list()]


def open_ctranslate2(folder, compute_type="default"):
    import ctranslate2

    return ctranslate2.Translator(
        str(folder), device="cpu", inter_threads=1, compute_type=compute_type
    )


def ids_of(tokenizer, rows):
    """Returns the ids of rows of pieces, without an end id."""
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces())}
    return [[ids[piece] for piece in row] for row in rows]


def source_ids_of(tokenizer, rows):
    ids = [[*row, tokenizer.end_id] for row in ids_of(tokenizer, rows)]
    return pad_rows(ids, tokenizer.pad_id)


def assert_same_scores(folder, model, tokenizer, sources, targets, **tolerance):
    """Compares log-probabilities of rows of pieces, given rows of pieces."""
    results = open_ctranslate2(folder).score_batch(sources, targets)
    target = tokenizer.target
    ids = ids_of(target, targets)
    expected = score_ids(
        model,
        source_ids_of(tokenizer, sources),
        pad_rows([[target.start_id, *row] for row in ids], target.pad_id),
        source_ids_of(target, targets),
        target.pad_id,
        target.unknown_id,
    )
    found = [sum(result.log_probs) for result in results]
    tolerance = tolerance or {"rtol": 2e-5}
    np.testing.assert_allclose(found, expected, **tolerance)


def assert_same_scores_of_texts(folder, model, tokenizer, texts=SENTENCES, **options):
    """Compares log-probabilities of the texts in reverse order, given the texts."""
    rows = split(tokenizer, texts), split(tokenizer.target, texts[::-1])
    assert_same_scores(folder, model, tokenizer, *rows, **options)


@pytest.mark.parametrize("name", VARIANTS)
def test_ctranslate2_matches_log_probabilities(tmp_path, name):
    num_layers = 2 if name == "post" else 1
    model, tokenizer = make_model(num_layers=num_layers, **VARIANTS[name])
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    assert_same_scores_of_texts(folder, model, tokenizer)


def test_ctranslate2_supports_separate_vocabularies(tmp_path):
    tokenizer = separate_tokenizers(290, 300)
    variations = {"source_vocabulary_size": 290}
    model, _ = make_model(num_layers=1, variations=variations)
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    for side, size in ("source", 290), ("target", 300):
        assert len(json.loads((folder / f"{side}_vocabulary.json").read_text())) == size
    assert_same_scores_of_texts(folder, model, tokenizer)
    loaded = pipelines.load_tokenizer(folder)
    assert loaded.fingerprint() == tokenizer.fingerprint()


def test_ctranslate2_supports_vocabularies_with_the_names_of_special_ids(tmp_path):
    """SentencePiece's vocabularies contain `<s>`, which is no start token here."""
    content = splitter()
    pieces = sentencepiece_pieces(content)
    assert "<s>" in pieces
    sides = (([*pieces, "<pad>"], content), ([*pieces, "x"], content))
    tokenizer = MarianTokenizer(*sides)
    variations = {"source_vocabulary_size": tokenizer.vocabulary_size}
    model = kt.Transformer(
        *(tokenizer.vocabulary_size, 1, 24, 40, 3),
        pad_id=tokenizer.pad_id,
        output_size=tokenizer.target.num_outputs,
        variations=variations,
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    add_noise(model, 0.2)
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    texts = ["ab cd", "a", "ef b", "cd ef a"]
    assert_same_scores_of_texts(folder, model, tokenizer, texts)


def test_ctranslate2_refuses_repeated_subwords(plain, tmp_path, monkeypatch):
    model, tokenizer = plain
    pieces = tokenizer.pieces()
    monkeypatch.setattr(tokenizer, "pieces", lambda: [*pieces[:-1], "<s>"])
    with pytest.raises(ExportError, match="Received: '<s>' more than once"):
        export_ctranslate2(model, tokenizer, tmp_path / "model")


def test_ctranslate2_converts_marian_exports(tmp_path):
    variations = {"zero_start_id": 2, "timescales": "tensor2tensor"}
    model, tokenizer = make_model(variations=variations, activation="silu")
    folder = export_marian(
        open_translator(model, tokenizer, kt.BeamSearch()), tmp_path / "marian"
    )
    from ctranslate2 import converters

    converter = converters.MarianConverter(
        str(folder / "model.npz"), [str(folder / "vocab.yml")] * 2
    )
    converter.convert(str(tmp_path / "converted"))
    # CTranslate2 runs Marian models with Hugging Face's sinusoids and epsilon.
    imported = import_marian(folder, "huggingface")
    parts = imported.model, imported.tokenizer
    assert_same_scores_of_texts(tmp_path / "converted", *parts, rtol=1e-7, atol=1e-4)


def test_ctranslate2_supports_output_size(tmp_path):
    """Each target contains the last id that the model can predict."""
    _, tokenizer = make_model()
    model, _ = make_model(output_size=tokenizer.vocabulary_size - 9)
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    last = tokenizer.pieces()[model.output_size - 1]
    rows = split(tokenizer, SENTENCES)
    targets = [[row[0], last, row[-1]] for row in rows]
    assert max(map(max, ids_of(tokenizer, targets))) == model.output_size - 1
    assert_same_scores(folder, model, tokenizer, rows, targets)


def assert_same_translations(folder, model, tokenizer, texts, beam_size, extra_length):
    """Compares translations without a length penalty."""
    rows = split(tokenizer, texts)
    search = kt.BeamSearch(beam_size, 0.0, extra_length=extra_length)
    ids = SpecialIds.of(tokenizer.target)
    sequences, _ = translate_ids(model, source_ids_of(tokenizer, rows), search, ids)
    expected = tokenizer.target.detokenize(sequences[:, 0]).numpy().tolist()
    assert len(set(expected)) / len(texts) > 10 / 24
    translator = open_ctranslate2(folder)
    for tokens, text in zip(rows, expected, strict=True):
        (result,) = translator.translate_batch(
            [tokens],
            beam_size=beam_size,
            length_penalty=0,
            disable_unk=True,
            min_decoding_length=0,
            # The source with its end id, plus `extra_length`.
            max_decoding_length=len(tokens) + 1 + extra_length,
        )
        ids = ids_of(tokenizer.target, result.hypotheses[:1])
        assert tokenizer.target.detokenize(ids).numpy().tolist() == [text]


@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_ctranslate2_matches_translations(tmp_path, kind):
    model, tokenizer = make_model(kind=kind, num_layers=1)
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    assert_same_translations(folder, model, tokenizer, SENTENCES, 1, 5)


@pytest.mark.parametrize(
    ("name", "end_bias"),
    # The tests above already cover models with "pre", so its search is a slow test.
    [("post", 2), pytest.param("pre", -2, marks=pytest.mark.slow)],
)
def test_ctranslate2_matches_beam_search(tmp_path, name, end_bias):
    """Without a length penalty, both searches stop once no better score is possible."""
    model, tokenizer = make_model(num_layers=1, **VARIANTS[name])
    decoder = model.decoder
    norm = decoder.final_norm or decoder.layers[-1].feed_forward_add_norm.layer_norm
    # Axis 0 of the decoder's output becomes 1, so column 0 of the embeddings is a bias
    # of the logits. It rules out padding, unknown and start: CTranslate2 may generate
    # padding and start, and omits unknown from the softmax. `end_bias` sets how early
    # hypotheses end.
    norm.gamma.assign(norm.gamma * (np.arange(24) > 0))
    norm.beta.assign(np.where(np.arange(24) > 0, norm.beta, 1.0))
    rows = np.asarray(model.token_embedding.embeddings).copy()
    rows[:, 0] = np.where(np.arange(len(rows)) < tokenizer.end_id, -50, 0)
    rows[tokenizer.end_id, 0] = end_bias
    model.token_embedding.embeddings.assign(rows)
    folder = export_ctranslate2(model, tokenizer, tmp_path / "model")
    words = " ".join(SENTENCES[:4]).split()
    rng = np.random.default_rng(5)
    lines = [" ".join(rng.choice(words, n)) for n in (1, 2, 3, 4, 5, 6) for _ in "abcd"]
    assert_same_translations(folder, model, tokenizer, lines, 4, 20)


def test_ctranslate2_folder_is_complete(plain, tmp_path):
    model, tokenizer = plain
    folder = export_ctranslate2(model, tokenizer, tmp_path / "deep" / "model")
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer.model",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    config = json.loads((folder / "config.json").read_text())
    assert config["layer_norm_epsilon"] == 1e-6
    loaded = pipelines.load_tokenizer(folder)
    assert loaded.fingerprint() == tokenizer.fingerprint()


def test_int8_export_matches_quantization_by_ctranslate2(tmp_path):
    """Compares int8 files with float32 files that CTranslate2 quantizes as it loads.

    A comparison with float32 scores would need a tolerance that depends on the
    processor.
    """
    model, tokenizer = make_model(d_model=48, d_ff=96)
    float32 = export_ctranslate2(model, tokenizer, tmp_path / "float32")
    int8 = export_ctranslate2(model, tokenizer, tmp_path / "int8", "int8")
    sizes = [(folder / "model.bin").stat().st_size for folder in (int8, float32)]
    # Not a quarter, because the positions stay float32.
    assert sizes[0] < 0.75 * sizes[1]
    source = split(tokenizer, SENTENCES)
    scores = [
        [sum(result.log_probs) for result in translator.score_batch(source, source)]
        for translator in (
            open_ctranslate2(int8),
            open_ctranslate2(float32, "int8"),
            open_ctranslate2(float32),
        )
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)
    assert scores[0] != pytest.approx(scores[2], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int9"}, r"quantization must be one of .*int9"),
        ({"max_length": 0}, r"max_length must be at least 1\. .*: 0"),
        ({"folder": "there"}, "there: already exists"),
        ({"folder": "there", "replace": True}, "there: is not a CTranslate2 export"),
    ],
)
def test_export_ctranslate2_rejects_invalid_arguments(
    plain, tmp_path, options, message
):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.yaml").touch()
    folder = tmp_path / options.pop("folder", "a")
    with pytest.raises(ExportError, match=message):
        export_ctranslate2(*plain, folder, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_dim": 5, "value_dim": 6}, "requires value_dim=5. Received: value_dim=6"),
        ({"attention_window": 3}, "requires attention_window=None. Received: .*=3"),
        ({"score_mode": "dot"}, "requires score_mode=scaled_dot"),
        ({"activation": "tanh"}, "activations .* Received: 'tanh'"),
    ],
)
def test_models_that_ctranslate2_cannot_run_are_refused(tmp_path, changes, message):
    model, tokenizer = make_model(num_layers=1, **changes)
    with pytest.raises(ExportError, match=message):
        export_ctranslate2(model, tokenizer, tmp_path / "a")


@pytest.mark.parametrize(
    ("beam_size", "ours"),
    [
        (1, {"no_repeat_ngram_size": 2}),
        (3, {"repetition_penalty": 1.4, "min_length": 9}),
        (3, {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "min_length": 6}),
    ],
    ids=str,
)
def test_ctranslate2_steers_the_search_alike(plain, tmp_path, beam_size, ours):
    model, tokenizer = plain
    rows = split(tokenizer, SENTENCES[:3])
    search = kt.BeamSearch(beam_size, 0.0, extra_length=9, **ours)
    ids = SpecialIds.of(tokenizer)
    sequences, scores = translate_ids(
        model, source_ids_of(tokenizer, rows), search, ids
    )
    theirs = {"min_decoding_length": ours.get("min_length", 0), **ours}
    theirs.pop("min_length", None)
    translator = open_ctranslate2(export_ctranslate2(*plain, tmp_path / "model"))
    for tokens, sequence, score in zip(rows, sequences, scores, strict=True):
        (result,) = translator.translate_batch(
            [tokens],
            **theirs,
            beam_size=beam_size,
            length_penalty=0,
            max_decoding_length=len(tokens) + 1 + 9,
            return_scores=True,
        )
        (found,) = ids_of(tokenizer, result.hypotheses)
        expected = [int(i) for i in sequence[0] if i not in (ids.pad, ids.end)]
        assert found == expected
        np.testing.assert_allclose(result.scores[0], score[0], rtol=1e-4)
