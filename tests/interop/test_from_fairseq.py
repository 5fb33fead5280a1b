"""Import of M2M100, NLLB and mBART-50, compared with transformers and SentencePiece.

`ask_transformers_fairseq.py` wrote the results of transformers to
`fairseq_results.json`.
"""

import base64
import json
import pathlib

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from ask_transformers_fairseq import MAX_NEW_TOKENS
from fairseq_models import (
    DEFAULTS,
    KINDS,
    LANGUAGES,
    MODELS,
    ODD_TEXTS,
    SENTENCES,
    SPECIAL,
    layout,
    random_arrays,
    sources,
    splitter,
    targets,
    write_fairseq,
)
from import_checks import import_error
from layer_checks import numpy
from safetensors.numpy import load_file
from sentencepiece import sentencepiece_model_pb2
from toolkit_models import HOSTILE_TEXTS, safetensors
from typer.testing import CliRunner

import keras_transformer as kt
from keras_transformer import opening
from keras_transformer.cli.app import app
from keras_transformer.decoding import SpecialIds, translate_ids
from keras_transformer.errors import DataError, ExportError, ModelError
from keras_transformer.export import export_saved_model
from keras_transformer.export.exported_translator import ExportedTranslator
from keras_transformer.interop import export_huggingface, write_imported
from keras_transformer.interop.from_huggingface import import_huggingface
from keras_transformer.pipelines import TextFiles, encode_corpus, load_tokenizer
from keras_transformer.pipelines.tokenizers.fairseq import (
    FairseqTokenizer,
    unknown_language,
)
from keras_transformer.pipelines.tokenizers.normalization import clean

RESULTS = json.loads(
    pathlib.Path(__file__).with_name("fairseq_results.json").read_text()
)
TEXTS = [
    *SENTENCES,
    *HOSTILE_TEXTS,
    *("</s>", "<mask> a", "__en__ dog", "eng_Latn", "fra_Latn man", ">>xyz<< a"),
    *(
        " dog ",
        "dog\u3000man",
        "ｄｏｇ",
        "ﬁsh ½",
        "a\u0300 e\u0301",
        "▁dog ▁ man",
        "日本日本",
    ),
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A function that returns the imported model of a name of `MODELS`."""
    found = {}

    def get(name):
        if name not in found:
            folder = write_fairseq(tmp_path_factory.mktemp("fairseq") / "m", name)
            found[name] = import_huggingface(folder)
        return found[name]

    return get


@pytest.fixture(scope="module")
def nllb(imported, models_stay_open, tmp_path_factory):
    """The folder of an imported NLLB model, and its `Translator`."""
    folder = write_imported(imported("nllb"), tmp_path_factory.mktemp("nllb") / "m")
    return folder, opening.open_model(folder)


def padded(rows):
    longest = max(map(len, rows))
    return np.array([[*row, *[1] * (longest - len(row))] for row in rows], "int32")


@pytest.mark.parametrize("name", MODELS)
def test_encoder_and_logits_match_transformers(imported, name):
    model, kind = imported(name).model, name.partition(" ")[0]
    rows, labels = padded(sources(kind)), np.array(targets(kind))
    rows = rows[: len(labels)]
    found = numpy(model.encode(rows, training=False))
    # The library has all sines before the cosines.
    found = np.concatenate([found[..., ::2], found[..., 1::2]], axis=-1)
    is_token = (rows != 1)[..., None]
    expected = np.array(RESULTS[name]["encoder"])[:, : rows.shape[1]]
    np.testing.assert_allclose(found * is_token, expected * is_token, atol=1e-5)
    found = numpy(model({"source_ids": rows, "target_ids": labels}))
    np.testing.assert_allclose(found, RESULTS[name]["logits"], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_search_matches_transformers(imported, kind, beam_size):
    rows, tokenizer = padded(sources(kind)), imported(kind).tokenizer
    language = tokenizer.languages[DEFAULTS[kind][1]]
    found, _ = translate_ids(
        imported(kind).model,
        rows,
        kt.BeamSearch(beam_size, 1.0, "power", patience=1.0, extra_length=30),
        SpecialIds.of(tokenizer.target),
        first_ids=np.full(len(rows), language, "int32"),
    )
    num_finished = 0
    for expected, row in zip(
        RESULTS[kind]["searches"][str(beam_size)], numpy(found)[:, 0], strict=True
    ):
        expected = [each for each in expected if each != 1]
        # transformers cuts off at its limit, and forces the end id.
        if len(expected) < MAX_NEW_TOKENS:
            num_finished += 1
            assert row[row != 1].tolist() == expected
    assert num_finished >= 2


def sentencepiece_ids(model, pieces, language, texts):
    """Returns a language and the ids of the library for each text."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = {piece: n for n, piece in enumerate(pieces) if n > 3}
    rows = library.encode_as_pieces(list(texts))
    return [[language, *(ids.get(piece, 3) for piece in row)] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_match_sentencepiece(imported, kind):
    tokenizer = imported(kind).tokenizer
    model, pieces, languages, size = layout(kind)
    codes = {code.strip("_"): n for code, n in languages.items()}
    for side, code in zip((tokenizer, tokenizer.target), DEFAULTS[kind], strict=True):
        visible = [text.decode() for text in clean(TEXTS).numpy()]
        expected = sentencepiece_ids(model, pieces, codes[code], visible)
        assert side.tokenize(TEXTS).to_list() == expected
    assert tokenizer.vocabulary_size == size
    rows = [[2, *row] for row in expected]  # beginning with an end id: empty
    assert set(tokenizer.target.detokenize(padded(rows)).numpy()) == {b""}
    texts = tokenizer.target.detokenize(padded(expected)).numpy()
    # Unknown pieces are left out, and so are the spaces around a text.
    for text, row in zip(texts, expected, strict=True):
        spelled = "".join(pieces[n] for n in row if 3 < n < len(pieces))
        assert text.decode() == spelled.replace("▁", " ").strip()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_odd_texts_match_sentencepiece(kind):
    # Most characters have pieces. Those that lack one are bytes in the first model.
    options = {"byte_fallback": kind == "m2m100", "hard_vocab_limit": False}
    # There are no pieces of long runs, since all orders of two of them would be equal.
    texts = *SENTENCES, *(text for text in ODD_TEXTS if len(text) < 60)
    model = splitter(KINDS[kind][1], 700, texts, **options)
    model, pieces, languages, size = layout(kind, model)
    codes = {code.strip("_"): n for code, n in languages.items()}
    rows = [None] * 4 + pieces[4:] + [None] * (size - len(pieces))
    tokenizer = FairseqTokenizer(rows, model, codes, *DEFAULTS[kind])
    source = codes[DEFAULTS[kind][0]]
    expected = sentencepiece_ids(model, pieces, source, ODD_TEXTS)
    assert len(expected) > 451
    found = tokenizer.tokenize(ODD_TEXTS).to_list()
    for text, row, right in zip(ODD_TEXTS, found, expected, strict=True):
        assert row == right, ascii(text)


def tokenizer_json(kind, mask_first):
    """Returns the content of `tokenizer.json`, as transformers writes it."""
    model, pieces, languages, _ = layout(kind)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    if KINDS[kind][1] == "bpe":
        vocabulary = {piece: n for n, piece in enumerate(pieces)}
    else:
        scores = [0.0] * 4 + [each.score for each in proto.pieces[3:]]
        vocabulary = [*zip(pieces, scores, strict=True), *((x, 0) for x in languages)]
    added = {**dict(zip(SPECIAL, range(4), strict=True))}
    if mask_first:
        added["<mask>"] = len(pieces)
    added |= {code: n + mask_first for code, n in languages.items()}
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    return {
        "added_tokens": [{"content": code, "id": n} for code, n in added.items()],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": charsmap},
                {"type": "Replace", "content": "▁"},
            ],
        },
        "model": {
            "type": "BPE" if KINDS[kind][1] == "bpe" else "Unigram",
            "vocab": vocabulary,
        },
    }


JSON = ("nllb", "mbart50")  # kinds whose `tokenizer.json` is enough


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("mask_first", [True, False])
def test_tokenizer_json_replaces_the_sentencepiece_model(
    imported, tmp_path, kind, mask_first
):
    folder = write_fairseq(tmp_path / "m", kind)
    (folder / "sentencepiece.bpe.model").unlink()
    (folder / "special_tokens_map.json").unlink()
    content = json.dumps(tokenizer_json(kind, mask_first))
    (folder / "tokenizer.json").write_text(content)
    expected, found = imported(kind).tokenizer, import_huggingface(folder).tokenizer
    assert found.languages == expected.languages
    assert found.tokenize(TEXTS).to_list() == expected.tokenize(TEXTS).to_list()


def change(name, **values):
    """Returns a function that changes keys of a JSON file in a folder."""

    def apply(folder):
        path = folder / name
        stored = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**stored, **values}))

    return apply


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def added_piece(folder):
    """Replaces the SentencePiece model. A piece in the middle is an added token."""
    (folder / "sentencepiece.bpe.model").unlink()
    is_nllb = "Nllb" in (folder / "tokenizer_config.json").read_text()
    kind = "nllb" if is_nllb else "mbart50"
    content = tokenizer_json(kind, False)
    content["added_tokens"].append({"content": layout(kind)[1][10], "id": 10})
    (folder / "tokenizer.json").write_text(json.dumps(content))


def fewer_rows(folder):
    content = safetensors(random_arrays("nllb", 70))
    (folder / "model.safetensors").write_bytes(content)
    change("config.json", vocab_size=70)(folder)


def adapters(folder):
    without("model.safetensors")(folder)
    change("adapter_config.json", peft_type="LORA")(folder)


CONFIG, SETTINGS = "config.json", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("kind", "apply", "reason"),
    [
        ("nllb", change(CONFIG, model_type="nllb-moe"), "mixtures of experts"),
        ("nllb", change(CONFIG, model_type="fsmt"), "scripts of Moses"),
        ("nllb", change(CONFIG, model_type="t5"), "relative positions"),
        ("nllb", change(CONFIG, model_type="bert"), "neither Marian, M2M100"),
        ("nllb", change(CONFIG, scale_embedding=False), "scale_embedding"),
        ("nllb", change(CONFIG, decoder_start_token_id=7), "decoder_start_token_id"),
        ("nllb", change(CONFIG, decoder_ffn_dim=7), "must equal encoder_ffn_dim"),
        ("nllb", change(CONFIG, quantization_config={}), "quantization_config"),
        ("nllb", fewer_rows, "too small for 71 subwords"),
        ("nllb", change(CONFIG, vocab_size=2**33), "weight, [79, 16]. Received"),
        ("nllb untied", change(CONFIG, vocab_size=80), "must be the shape of lm_head"),
        ("nllb", change(SETTINGS, legacy_behaviour=True), "legacy_behaviour"),
        ("nllb", without("special_tokens_map.json"), "no file lists the languages"),
        ("nllb", adapters, "open it with --adapters"),
        ("nllb", without("sentencepiece.bpe.model"), "sentencepiece.bpe.model"),
        ("nllb", change(SETTINGS, src_lang=None), "Pass --source-language, one"),
        ("nllb", change(SETTINGS, src_lang="fr"), "nearest are: fra_Latn"),
        (
            "mbart50",
            change(SETTINGS, tokenizer_class="MBartTokenizer"),
            "only mBART-50",
        ),
        (
            "m2m100",
            change(SETTINGS, tokenizer_class="SMALL100Tokenizer"),
            "only M2M100 and NLLB can be imported: tokenizer_class",
        ),
        ("mbart50", change(CONFIG, normalize_before=False), "normalize_before"),
        *(
            ("nllb", change(SETTINGS, added_tokens_decoder=value), message)
            for value, message in (
                ({"x": {"content": "fra_Latn"}}, "added_tokens_decoder.x"),
                ({"5": {}}, "added_tokens_decoder.5.content' is wrong"),
                ({"5": "fra_Latn"}, "added_tokens_decoder.5' is wrong"),
                (["fra_Latn"], "'added_tokens_decoder"),
                (
                    {"72": {"content": "fr_XX"}, "72 ": {"content": "fra_Latn"}},
                    "added_tokens_decoder.72 ",
                ),
            )
        ),
        ("nllb", change(SETTINGS, tgt_lang=["fra_Latn"]), "'tgt_lang' is wrong"),
        ("nllb", change(SETTINGS, extra_special_tokens=5), "'extra_special_tokens"),
        ("nllb", change(CONFIG, forced_bos_token_id=[1]), "forced_bos_token_id' is"),
        (
            "nllb",
            change("tokenizer.json", added_tokens=[{"content": "fra_Latn"}]),
            "'added_tokens.0.id' is wrong",
        ),
        (
            "nllb",
            change(
                "tokenizer.json",
                added_tokens=[{"content": x, "id": 72} for x in LANGUAGES["nllb"]],
            ),
            "each id must belong to one language. Received: 72 for ",
        ),
        *((kind, added_piece, "must have the id 10. Received: 11") for kind in JSON),
    ],
)
def test_unsupported_folders_are_refused(tmp_path, kind, apply, reason):
    folder = write_fairseq(tmp_path / "m", kind)
    apply(folder)
    assert reason in import_error(import_huggingface, folder)


@pytest.mark.parametrize(
    "apply",
    [
        change(
            SETTINGS,
            added_tokens_decoder={
                "72": {"content": "fao_Latn"},
                "3": {"content": "<unk>"},
                "74": {"content": "fra_Latn"},
                "71": {"content": "eng_Latn"},
            },
        ),
        change(SETTINGS, extra_special_tokens=["</s>", *LANGUAGES["nllb"], "<mask>"]),
    ],
)
def test_languages_are_found_in_other_files(tmp_path, apply):
    folder = write_fairseq(tmp_path / "m", "nllb")
    apply(folder)
    languages = import_huggingface(folder).tokenizer.languages
    expected = layout("nllb")[2]
    assert languages == {code: expected[code] for code in languages}
    assert {"fao_Latn", "fra_Latn"} <= languages.keys()


def test_added_tokens_of_old_versions_have_their_ids(tmp_path):
    folder = write_fairseq(tmp_path / "m", "nllb")
    listed = ["tyv_Cyrl", *LANGUAGES["nllb"]]
    change("special_tokens_map.json", additional_special_tokens=listed)(folder)
    change("added_tokens.json", tyv_Cyrl=77)(folder)
    found = import_huggingface(folder).tokenizer.languages
    assert found == {**layout("nllb")[2], "tyv_Cyrl": 77}


def test_ids_of_added_tokens_survive_an_export(tmp_path, caplog):
    """A language after the mask and a word, as transformers adds it."""
    folder = write_fairseq(tmp_path / "m", "nllb")
    tokens = ["<mask>", "Keras", "tyv_Cyrl"]
    added = dict(layout("nllb")[2])
    added |= {name: max(added.values()) + 1 + n for n, name in enumerate(tokens)}
    content = {str(n): {"content": name} for name, n in added.items()}
    # The default of transformers has 31 digits.
    change(SETTINGS, added_tokens_decoder=content, model_max_length=int(1e30))(folder)
    found = import_huggingface(folder)
    assert "their embeddings are not used: Keras\n" in caplog.text
    assert found.tokenizer.languages["tyv_Cyrl"] == added["tyv_Cyrl"]
    translator = kt.Translator(found.model, found.tokenizer)
    translator.path = tmp_path
    export = export_huggingface(translator, tmp_path / "e")
    stored = json.loads((export / SETTINGS).read_text())["added_tokens_decoder"]
    ids = {each["content"]: int(n) for n, each in stored.items()}
    assert ids.pop(f"<unused{added['Keras']}>") == added.pop("Keras")
    assert ids == {**dict(zip(SPECIAL, range(4), strict=True)), **added}
    # transformers closes gaps.
    assert [*ids.values()] == sorted(ids.values())


def test_target_language_of_generation_is_the_default(tmp_path):
    folder = write_fairseq(tmp_path / "m", "nllb")
    languages = layout("nllb")[2]
    change("generation_config.json", forced_bos_token_id=languages["pes_Arab"])(folder)
    assert import_huggingface(folder).tokenizer.target_language == "pes_Arab"
    found = import_huggingface(folder, None, "deu_Latn", None, "fao_Latn").tokenizer
    assert (found.source_language, found.target_language) == ("fao_Latn", "deu_Latn")


def test_dropout_rates_are_those_of_the_folder(imported, tmp_path):
    assert imported("nllb").model.attention_dropout == 0.1  # the default
    assert imported("mbart50").model.attention_dropout == 0
    folder = write_fairseq(tmp_path / "m", "nllb")
    change(CONFIG, dropout=0.3, attention_dropout=0)(folder)
    found = import_huggingface(folder)
    translator = kt.Translator(found.model, found.tokenizer)
    translator.path = tmp_path
    export = export_huggingface(translator, tmp_path / "e")
    stored = json.loads((export / CONFIG).read_text())
    assert (stored["dropout"], stored["attention_dropout"]) == (0.3, 0)


LINES = [
    "A man rides a bike.",
    ">>deu_Latn<< A man rides a bike.",
    ">>deu_Latn eng_Latn<< Zwei Hunde laufen. Ein Mann fährt Rad.",
    "",
    "dog " * 90,
]


def test_each_text_has_its_languages(nllb, tmp_path):
    folder, translator = nllb
    search = {"beam_size": 4, "length_penalty": 1.0, "length_penalty_kind": "power"}
    translator = translator.with_search(**search, patience=1.0)
    found = translator.n_best(LINES, 2)
    assert found[0] != found[1]
    with pytest.raises(DataError, match=r"no language 'fra_Latin'.*are: fra_Latn"):
        translator.translate(["a", ">>fra_Latin<< b"])
    # The language has no probability, but counts in the length.
    best = [each[0] for each in found[:3]]
    scores = translator.score(LINES[:2], [each.text for each in best[:2]])
    for one, score in zip(best, scores, strict=False):
        if translator.target_tokenizer.tokenize([one.text]).row_lengths() > 1:
            expected = score.log_prob / (score.num_tokens + 1)
            np.testing.assert_allclose(one.score, expected, rtol=1e-4)
    # Prefixes and required phrases do not contain a second language.
    options = {"prefixes": ["Two ", ""], "required": [[], ["dog"]]}
    (first,), (second,) = translator.n_best(LINES[:2], 1, **options)
    assert first.text.startswith("Two") and "dog" in second.text
    plain, prefixed, none = translator.align([*LINES[:2], "a"], ["Rad a", "Rad", ""])
    assert {target for _, target in plain} == {0, 1} and none == []
    assert all(1 <= source < 6 for source, _ in prefixed)

    exported = ExportedTranslator(
        export_saved_model(
            translator.model,
            translator.tokenizer,
            tmp_path / "export",
            translator.search,
            constraints=True,
        )
    )
    rows = {
        "inputs": LINES[:2],
        "prefixes": ["Two ", ""],
        "required": ["", "dog|\u4e00\n\u4e00"],
    }
    signature = exported._loaded.signatures["translate_constrained"]
    found_rows = signature(**{name: tf.constant(each) for name, each in rows.items()})
    for text, score, best in zip(
        *(found_rows["translations"], found_rows["scores"], (first, second)),
        strict=True,
    ):
        assert text.numpy().decode() == best.text
        np.testing.assert_allclose(score, best.score, rtol=1e-4)
    assert found_rows["truncated"][1]  # a phrase without known characters
    assert exported.translate(LINES) == [each[0].text for each in found]
    pairs = LINES[:3], ["Rad", "fährt", "dog"]
    np.testing.assert_allclose(
        [each.log_prob for each in exported.score(*pairs)],
        [each.log_prob for each in translator.score(*pairs)],
        rtol=1e-4,
    )
    assert exported.align(*pairs) == translator.align(*pairs)
    (tmp_path / "a.txt").write_text("a\n")
    for path in (folder, exported.path):
        command = ["translate", str(folder), "--rerank", str(path)]
        result = CliRunner().invoke(app, [*command, "--input", str(tmp_path / "a.txt")])
        assert f"{path}: a multilingual model cannot rerank" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        ">>fra_Latn eng_Latn deu_Latn<< a",
        ">> fra_Latn << a",
        " >>fra_Latn<< >>deu_Latn<< a",
        ">>fra_Latn,deu_Latn fao_Latn<< a",
    ],
)
def test_languages_in_another_form_are_refused(imported, text):
    tokenizer = imported("nllb").tokenizer
    with pytest.raises(DataError, match="a text may begin with >>TARGET<< or"):
        tokenizer.first_ids(["a", text])


def test_spaces_may_precede_the_languages(imported):
    tokenizer = imported("nllb").tokenizer
    texts = ["  >>fao_Latn deu_Latn<< dog", ">>fao_Latn deu_Latn<<dog"]
    prefixes, rest = tokenizer.split_language_prefix(texts)
    assert {*prefixes.numpy()} == {b">>fao_Latn deu_Latn<< "}
    assert {*rest.numpy()} == {b"dog"}
    assert len({*tokenizer.first_ids(texts).numpy()}) == 1
    first, second = tokenizer.tokenize(texts).to_list()
    assert first == second
    texts = [" >> see this << a", ">><< a", " a >>fra_Latn<<"]
    language = tokenizer.languages["fra_Latn"]
    assert {*tokenizer.first_ids(texts).numpy()} == {language}


def test_nearest_language_has_the_same_name():
    languages = ["fur_Latn", "fao_Latn", "fra_Latn", "afr_Latn", "eng_Latn"]
    for code in ("fr", "fr_XX", "FRA", "fra_latn"):
        assert "nearest are: fra_Latn" in unknown_language(code, languages)
    assert "nearest are: fr." in unknown_language("fra_Latn", ["fr", "xy"])


def test_spans_are_kept_without_stand_ins(nllb):
    """The small vocabulary spells no name that could stand for a span."""
    _, translator = nllb
    with pytest.raises(ModelError, match="required phrase 'Paris'"):
        translator.n_best(["dog"], 1, required=[["Paris"]])
    spans = ["<b>", "</b>", "{name}", "me@a.org"]
    (found,) = translator.translate(["A <b>man</b> rides {name} to me@a.org."])
    assert all(found.count(each) == 1 for each in spans)


PAIRS = [
    (">>eng_Latn fra_Latn<< dog", ">>fra_Latn<< Rad"),
    ("\u200b", "Rad"),  # SentencePiece removes the only character
    ("dog", ">>fra_Latn<<"),
    ("man", "Mann"),
]


def corpus_of(tokenizer, folder, pairs):
    for name, lines in zip(("a.en", "a.fr"), zip(*pairs, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = TextFiles(folder / "a.en", folder / "a.fr")
    return encode_corpus(files, tokenizer, tokenizer.target, folder / "ids")


def test_training_text_names_its_languages(imported, tmp_path):
    tokenizer = imported("nllb").tokenizer
    corpus = corpus_of(tokenizer, tmp_path, PAIRS)
    assert corpus.report.startswith("2 of 4 pairs kept; dropped: 2 with an empty")
    rows = [tokenizer.tokenize(["dog"]), tokenizer.target.tokenize(["Rad"])]
    expected = [[*each.to_list()[0], 2] for each in rows]
    assert [each.tolist() for each in corpus.pair(0)] == expected


@pytest.mark.parametrize(
    "pair", [(">>eng_Latn fra_latn<< dog", "Rad"), ("dog", ">>fra_latn<< Rad")]
)
def test_unknown_language_of_training_text_is_an_error(imported, tmp_path, pair):
    message = r"a\.en:2: the model has no language 'fra_latn'.* are: fra_Latn"
    with pytest.raises(DataError, match=message):
        corpus_of(imported("nllb").tokenizer, tmp_path, [PAIRS[0], pair, PAIRS[3]])


def test_stored_tokenizer_is_the_same(nllb):
    folder, translator = nllb
    tokenizer = load_tokenizer(folder / "tokenizer")
    assert tokenizer.fingerprint() == translator.tokenizer.fingerprint()
    assert tokenizer.tokenize(TEXTS).to_list() == (
        translator.tokenizer.tokenize(TEXTS).to_list()
    )
    assert "cc-by-nc-4.0" in (folder / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_export_for_transformers_gives_the_folder_back(imported, tmp_path, name):
    found = imported(name)
    translator = kt.Translator(found.model, found.tokenizer)
    translator.path = tmp_path
    folder = export_huggingface(translator, tmp_path / "m", license=found.license)
    original = write_fairseq(tmp_path / "original", name)
    arrays, expected = (
        load_file(each / "model.safetensors") for each in (folder, original)
    )
    # The original has no separate matrix that both sides share.
    is_tied = name in KINDS
    assert arrays.keys() == expected.keys()
    for array, values in expected.items():
        if is_tied or array != "model.shared.weight":
            unused = 2 if "embed_positions" in array else 0
            found_rows, rows = arrays[array][unused:], values[unused:]
            np.testing.assert_array_equal(found_rows, rows, array)
    settings, stored = (
        json.loads((each / "config.json").read_text()) for each in (folder, original)
    )
    search = {"num_beams", "early_stopping", "max_position_embeddings"}
    assert {key: settings[key] for key in stored.keys() - search} == {
        key: stored[key] for key in stored.keys() - search
    }
    again = import_huggingface(folder).tokenizer
    assert again.fingerprint() == found.tokenizer.fingerprint()


# Variations of positions other than sinusoids.
PLAIN = {"timescales": "paper", "first_position": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalization": "post"}, "normalization=post"),
        ({**PLAIN, "positions": "rotary"}, "positions=rotary"),
        ({"timescales": "paper"}, "timescales=paper"),
        ({"first_position": 0}, "first_position=0"),
        (
            {**PLAIN, "positions": "learned", "max_length": 9},
            "embedding_norm=False",
        ),
    ],
)
def test_export_refuses_other_architectures(imported, tmp_path, changes, message):
    config = imported("nllb").model.get_config()
    variations = config["variations"]
    variations |= {name: changes[name] for name in changes if name in variations}
    changes = {name: changes[name] for name in changes if name not in variations}
    model = kt.Transformer.from_config({**config, **changes})
    translator = kt.Translator(model, imported("nllb").tokenizer)
    with pytest.raises(ExportError, match=message):
        export_huggingface(translator, tmp_path / "m")


def test_search_settings_are_exported_and_imported(imported, tmp_path):
    found = imported("nllb")
    steering = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.5, "min_length": 4}
    search = kt.BeamSearch(max_length_ratio=2.5, **steering)
    translator = kt.Translator(found.model, found.tokenizer, search=search)
    translator.path = tmp_path
    folder = export_huggingface(translator, tmp_path / "m", license=found.license)
    decoding = import_huggingface(folder).decoding
    assert {name: decoding[name] for name in steering} == steering
    card = (folder / "MODEL_CARD.md").read_text()
    assert "search settings max_length_ratio=2.5." in card
