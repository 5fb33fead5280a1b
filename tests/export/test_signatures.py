"""Every signature of an export, against the Python function with the same result.

A text that is too long for the model is split into segments, which are translated
separately.
"""

import pathlib
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401, its operations are in the graph
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tiny_export import SEARCH, TEXTS, only_signatures

import keras_transformer as kt
from keras_transformer.decoding import Term
from keras_transformer.decoding.glossary import find_unmet
from keras_transformer.decoding.warnings import CUT_OFF, UNTRANSLATED, output_warnings
from keras_transformer.export.exported_translator import ExportedTranslator
from keras_transformer.export.graph_check import check_saved_model
from keras_transformer.export.load import ExportLimits, read_limits
from keras_transformer.export.saved_model import (
    export_saved_model,
    write_warmup_requests,
)
from keras_transformer.opening import open_model
from keras_transformer.pipelines import CoreOpsBytePairTokenizer
from keras_transformer.pipelines.tokenizers.normalization import TextSettings
from keras_transformer.serving import ServedModel

pytestmark = pytest.mark.usefixtures("exports_load_once")

# Texts of several sentences or lines. The model reads up to 40 subwords at a time.
PARAGRAPHS = [
    "der Hund läuft. ein Hund und noch ein Hund! die Katze schläft? der Hund. " * 2,
    "Der Hund läuft.\n\n  Die Katze schläft.\r\nEin Hund, noch ein Hund, z. B. er.\n",
    "\nDer Hund und noch ein Hund läuft. Die Katze schläft und läuft.\u2029Ein",
    "der Hund und noch ein Hund und die Katze " * 9,
    "漢字。" * 9,
    "\u3000\u00a0",
    " der Hund\n",
]
# Operations that tokenizers need from tensorflow-text. TF-Serving includes all of them.
FROM_TENSORFLOW_TEXT = {
    "bpe": {"SentencepieceOp", "SentencepieceTokenizeOp"},
    "word_piece": {"RegexSplitWithOffsets", "WordpieceTokenizeWithOffsets"},
}


@pytest.fixture(scope="module")
def signatures(tiny_signatures):
    return tiny_signatures


@pytest.fixture(scope="module")
def translator(tiny_translator):
    return tiny_translator


def texts_of(tensor):
    return [text.decode() for text in tensor.numpy().ravel()]


@pytest.mark.fault("F25", "an empty batch returns an empty answer")
def test_signatures_accept_empty_batches(signatures):
    none = tf.constant([], tf.string)
    assert signatures["serving_default"](inputs=none)["translations"].shape == (0,)
    assert signatures["translate_n_best"](inputs=none)["scores"].shape == (0, 4)
    assert signatures["score"](inputs=none, targets=none)["log_probs"].shape == (0,)
    attention = signatures["attend"](inputs=none, targets=none)["attention"]
    assert attention.shape[0] == 0


def test_encode_signature_matches_encoder(signatures, tiny_model):
    model, tokenizer = tiny_model
    rows = np.array([[7, 9, 3, 0], [8, 40, 41, 3]], "int32")
    found = signatures["encode"](source_ids=tf.constant(rows))["encoder_output"]
    np.testing.assert_allclose(found, model.encode(rows), rtol=1e-5, atol=1e-5)
    # A longer row is cut to max_source_length=40 ids, of which the last is the end.
    long = np.array([[9] * 59 + [tokenizer.end_id]], "int32")
    cut = np.array([[9] * 39 + [tokenizer.end_id]], "int32")
    found = signatures["encode"](source_ids=tf.constant(long))["encoder_output"]
    np.testing.assert_allclose(found, model.encode(cut), rtol=1e-5, atol=1e-5)


@pytest.mark.fault("F25", "INVALID_ARGUMENT in the graph; the next batch works")
def test_signatures_reject_batches_that_are_too_large(signatures):
    serve = signatures["serving_default"]
    before = serve(inputs=tf.constant(TEXTS))
    many = tf.constant(["a"] * 1025)
    rows = tf.ones([1025, 2], tf.int32)
    for name, inputs in (
        ("serving_default", {"inputs": many}),
        ("translate_n_best", {"inputs": many}),
        ("score", {"inputs": many, "targets": many}),
        ("attend", {"inputs": many, "targets": many}),
        ("translate_ids", {"source_ids": rows}),
        ("encode", {"source_ids": rows}),
    ):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="batch may have at most 1024 rows"
        ):
            signatures[name](**inputs)
    after = serve(inputs=tf.constant(TEXTS))
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


@pytest.mark.fault("F25", "a text of 1 MB does not change the other texts")
def test_long_texts_do_not_change_other_results(signatures):
    serve = signatures["serving_default"]
    alone = serve(inputs=tf.constant(TEXTS))
    long = ["Hund und " * 120_000, "x" * (1 << 20), "漢" * 350_000]
    together = serve(inputs=tf.constant([*TEXTS, *long]))
    assert together["truncated"].numpy()[5:].all()
    count = len(TEXTS)
    np.testing.assert_array_equal(
        together["translations"][:count], alone["translations"]
    )
    np.testing.assert_allclose(together["scores"][:count], alone["scores"], atol=1e-5)
    # The graph cuts long texts before tokenization, but keeps more than the model uses.
    # The first 20,000 characters therefore give the same results.
    short = serve(inputs=tf.constant([text[:20_000] for text in long]))
    np.testing.assert_array_equal(
        together["translations"][count:], short["translations"]
    )
    np.testing.assert_allclose(together["scores"][count:], short["scores"], rtol=1e-6)


@pytest.mark.parametrize("name", ["encode", "translate_ids"])
def test_signatures_cut_rows_at_the_first_end_id(signatures, name):
    """TF-Serving pads a row with its own first id, here 5."""
    run = signatures[name]
    expected = run(source_ids=tf.constant([[5, 6, 3, 0, 0, 0], [7, 8, 9, 7, 6, 3]]))
    for after in ([5, 5, 5], [3, 3, 3], [5, 0, 3]):
        rows = [[5, 6, 3, *after], [7, 8, 9, 7, 6, 3]]
        found = run(source_ids=tf.constant(rows))
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)
    # An end id beyond max_source_length=40 ends a row that is cut.
    row = [[9] * 50 + [3] + [5] * 9]
    cut = run(source_ids=tf.constant([[9] * 39 + [3]]))
    for key, value in run(source_ids=tf.constant(row)).items():
        np.testing.assert_array_equal(value, cut[key])
    assert not np.any(run(source_ids=tf.constant([[0, 0], [3, 5]])).get("scores", 0))
    message = "a row of source_ids must have the end id 3, and padding only after it"
    for row in ([5, 6, 7], [5, 6, 0], [0, 5, 3], [5, 0, 3], [0, 3, 0], [0, 0, 5]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(source_ids=tf.constant([[7, 8, 3], row]))


@pytest.mark.fault("F25", "INVALID_ARGUMENT")
def test_signatures_reject_unknown_ids_and_unpaired_texts(signatures):
    for signature in ("encode", "translate_ids"):
        for number in (-1, 300):
            with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 299"):
                signatures[signature](source_ids=tf.constant([[number, 3]]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must have the same length"
    ):
        signatures["score"](inputs=tf.constant(["a"]), targets=tf.constant(["b", "c"]))


def test_export_runs_in_tf_serving(tiny_export):
    """TF-Serving has the operations of tensorflow-text, which its guide names.

    It is built without XLA (GitHub issue tensorflow/serving#2214).
    """
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((tiny_export / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    operations = operations_of(graph)
    assert {"While", "MatMul", *FROM_TENSORFLOW_TEXT["bpe"]} <= operations
    for function in graph.library.function:
        assert not function.attr["_XlaMustCompile"].b
    docs = pathlib.Path(__file__).parents[2] / "docs"
    guide = (docs / "how-to" / "tf-serving.md").read_text()
    for name in set().union(*FROM_TENSORFLOW_TEXT.values()):
        assert f"`{name}`" in guide


@pytest.mark.slow
def test_export_with_core_operations_matches_plain_export(signatures, core_export):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((core_export / "saved_model.pb").read_bytes())
    operations = operations_of(model.meta_graphs[0].graph_def)
    assert not operations & set().union(*FROM_TENSORFLOW_TEXT.values())
    assert {"LookupTableFindV2", "UnicodeDecode"} <= operations
    ours = tf.saved_model.load(str(core_export)).signatures
    texts = tf.constant(TEXTS)
    for name, inputs in (
        ("serving_default", {"inputs": texts}),
        ("translate_n_best", {"inputs": texts}),
        ("score", {"inputs": texts, "targets": texts[::-1]}),
    ):
        found, expected = ours[name](**inputs), signatures[name](**inputs)
        assert set(found) == set(expected)
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{name} {key}")


def operations_of(graph):
    """Returns the names of the operations in a graph and its functions."""
    nodes = [*graph.node]
    for function in graph.library.function:
        nodes += function.node_def
    functions = {function.signature.name for function in graph.library.function}
    return {node.op for node in nodes} - functions


def warmup_requests(version):
    """Yields the signature and the inputs of each warm-up request."""
    path = version / "assets.extra" / "tf_serving_warmup_requests"
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        inputs = {k: tf.constant(tf.make_ndarray(v)) for k, v in request.inputs.items()}
        yield request.model_spec.signature_name, inputs


def test_warmup_requests_can_be_served(signatures, tiny_export, tmp_path):
    requests = dict(warmup_requests(tiny_export))
    assert requests.keys() == signatures.keys() and len(requests) == 6
    for name, inputs in requests.items():
        assert signatures[name](**inputs)
    # They respect the limit on the batch size.
    write_warmup_requests(
        tmp_path, ExportLimits(max_batch_size=1, max_source_length=9, end_id=3)
    )
    for _, inputs in warmup_requests(tmp_path):
        assert {len(rows) for rows in inputs.values()} == {1}


@pytest.mark.fault(
    "F19", "an export also translates sentence by sentence; nothing is cut"
)
def test_translations_match_the_translator(
    signatures, tiny_export, tiny_translator, monkeypatch
):
    warnings = []
    monkeypatch.setattr(tiny_translator, "warn", lambda *one: warnings.append(one))
    texts = [*PARAGRAPHS, *TEXTS]
    expected = tiny_translator.n_best(texts, 4)
    # Warnings give the indices of long texts, which are translated in segments.
    long = {index for index, text in warnings if "segments" in text}
    assert {0, 3, 4} <= long <= {0, 1, 2, 3, 4}
    best = signatures["serving_default"](inputs=tf.constant(texts))
    assert texts_of(best["translations"]) == [ranked[0].text for ranked in expected]
    is_cut = [CUT_OFF in ranked[0].warnings for ranked in expected]
    assert best["truncated"].numpy().tolist() == is_cut
    found = signatures["translate_n_best"](inputs=tf.constant(texts))
    np.testing.assert_array_equal(
        best["translations"].numpy(), found["translations"].numpy()[:, 0]
    )
    np.testing.assert_array_equal(best["scores"], found["scores"].numpy()[:, 0])
    counts = found["counts"].numpy().tolist()
    assert counts == [len(ranked) for ranked in expected]
    # Blank texts have a single translation, which is empty.
    assert counts[-4::2] == [1, 1] and min(counts[-5::2]) > 1
    is_short = len(PARAGRAPHS) * [False] + len(TEXTS) * [True]
    for row, ranked in enumerate(expected):
        count = len(ranked)
        written = texts_of(found["translations"][row])
        assert written == [each.text for each in ranked] + [""] * (4 - count)
        scores = found["scores"][row].numpy()
        # Scores of several segments are added.
        tolerance = 1e-5 if is_short[row] else 1e-4
        np.testing.assert_allclose(
            scores[:count],
            [each.score for each in ranked],
            rtol=tolerance,
            atol=tolerance,
        )
        assert (scores[count:] == np.finfo("float32").min).all()
    served = ServedModel(tiny_export).run("serving_default", {"inputs": texts})
    assert served["translations"].tolist() == best["translations"].numpy().tolist()
    assert open_model(tiny_export).translate(texts, protect=()) == [
        ranked[0].text for ranked in expected
    ]


def test_text_settings_match_the_translator(tiny_model, tmp_path):
    """With a tokenizer of core operations, whose ids are those of the tokenizer."""
    model, tokenizer = tiny_model
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.text = TextSettings(
        normalization=True, sentences=True, capitals=True, scripts=["Latin"]
    )
    warnings = []
    translator = kt.Translator(
        model, tokenizer, **SEARCH, warn=lambda *one: warnings.append(one)
    )
    texts = [
        *PARAGRAPHS,
        *(
            "DER HUND LÄUFT. DIE KATZE.",
            "  1. Der Hund\u00a0 la\u0308uft\t die  Katze| ein.",
        ),
        *("Это собака. Der Hund?", "| --- | 12 |", "Der Hund läuft"),
    ]
    expected = translator.n_best(texts, 4)
    warnings = [each for each in warnings if "is not translated" in each[1]]
    assert [index for index, _ in warnings if index > 6] == [9]
    assert "Cyrillic" in warnings[-1][1] and "'漢字。'" in warnings[-2][1]
    with only_signatures("translate_n_best"):
        core = CoreOpsBytePairTokenizer(tokenizer)
        path = export_saved_model(model, core, tmp_path, **SEARCH)
    check_saved_model(path)
    loaded = tf.saved_model.load(str(path))
    found = loaded.signatures["translate_n_best"](inputs=tf.constant(texts))
    for row, ranked in enumerate(expected):
        written = texts_of(found["translations"][row])[: found["counts"][row]]
        assert written == [each.text for each in ranked]
    # The texts that are kept are found again, without the graph.
    limits = read_limits(path)
    exported = ExportedTranslator.of_signatures(loaded.signatures, path, 64, limits)
    best = [row[0].warnings for row in exported.n_best(texts, 4)]
    encoded = [text.encode() for text in texts]
    served = output_warnings(encoded, found, limits)
    best, served, warnings = (
        [[each for each in row if UNTRANSLATED in each] for row in rows]
        for rows in (best, served, [row[0].warnings for row in expected])
    )
    assert best == served == warnings and any(warnings)
    best = [ranked[0].text for ranked in expected]
    assert best[7].isupper() and best[8].startswith("  1. ") and "\t" in best[8]
    assert best[9].startswith("Это собака. ") and best[10] == texts[10]


def test_segments_are_searched_in_bounded_batches(small_batch_export, signatures):
    small = tf.saved_model.load(str(small_batch_export)).signatures["translate_n_best"]
    inputs = tf.constant(PARAGRAPHS)
    found, expected = (
        small(inputs=inputs),
        signatures["translate_n_best"](inputs=inputs),
    )
    for name, value in expected.items():
        if name in ("scores", "mean_log_probs"):
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.fault("F19", "an export cuts a word that is too long, and reports it")
def test_signatures_cut_long_words_and_report_it(
    signatures, tiny_translator, tiny_model
):
    tokenizer = tiny_model[1]
    (ids,) = tokenizer.tokenize(["Hundund" * 30]).to_list()
    texts = tf.constant(["Hundund" * 30, "Hund"])
    found = signatures["translate_n_best"](inputs=texts)
    ((best,),) = tiny_translator.n_best(["Hund"], 1)
    assert found["truncated"].numpy().tolist() == [True, CUT_OFF in best.warnings]
    by_ids = signatures["translate_ids"](
        source_ids=tf.constant([[*ids[:39], tokenizer.end_id]])
    )
    cut = tokenizer.detokenize(by_ids["target_ids"])
    assert found["translations"][0, 0] == cut[0]
    np.testing.assert_allclose(found["scores"][0, 0], by_ids["scores"][0], rtol=1e-5)
    sources = tf.constant(["Hundund" * 30, "Hund", "Hund"])
    targets = tf.constant(["Hund", "Hundund" * 30, "die Katze"])
    for name in ("score", "attend"):
        found = signatures[name](inputs=sources, targets=targets)
        assert found["truncated"].numpy().tolist() == [True, True, False]


@pytest.mark.fault("F19", "an export cuts a text of too many bytes, and reports it")
def test_texts_of_many_segments_are_whole(signatures):
    # Texts of 300 lines, of 300 sentences, of one word, and of too many bytes.
    many = ["a\n" * 299 + "a", "Der Hund. " * 300, "a", " " * 2**20 + "a"]
    found = signatures["serving_default"](inputs=tf.constant(many))
    assert found["truncated"].numpy()[3]
    lines, sentences, word, cut = texts_of(found["translations"])
    assert lines == "\n".join([word] * 300) and cut == ""
    one = signatures["serving_default"](inputs=tf.constant(["Der Hund."]))
    (one,) = texts_of(one["translations"])
    assert sentences == " ".join([one] * 300)


def test_constrained_signature_matches_translator(tiny_model, translator, tmp_path):
    model, tokenizer = tiny_model
    texts = ["der Hund läuft", "", "ein Hund und noch ein Hund", "die Katze"]
    prefixes = ["ein Hund", "", "", "die"]
    phrases = [[["Katze", "noch"]], [], [["Hund"], ["Hund"], ["und noch"]], []]
    required = ["\n".join("|".join(each) for each in row) for row in phrases]
    with only_signatures("serving_default", "translate_constrained"):
        path = export_saved_model(
            *(model, tokenizer, tmp_path / "constrained"), **SEARCH, constraints=True
        )
    signatures = tf.saved_model.load(path).signatures
    rows = {"inputs": texts, "prefixes": prefixes, "required": required}
    rows = {name: tf.constant(each) for name, each in rows.items()}
    found = signatures["translate_constrained"](**rows)
    # In the signature, the last word of a prefix does not go on.
    spaced = [f"{each} " if each else "" for each in prefixes]
    expected = translator.n_best(texts, 1, spaced, phrases)
    assert texts_of(found["translations"]) == [best.text for (best,) in expected]
    np.testing.assert_allclose(
        found["scores"], [best.score for (best,) in expected], rtol=1e-4, atol=1e-5
    )
    assert texts_of(found["translations"])[2].count("Hund") >= 2
    # Blank alternatives require nothing, nor do phrases after the 64th place.
    changed = ["Katze|\u00a0\nnoch| |", "\u200b", "Hund||\u3000"]
    changed.append("\n".join(["Hund"] * 70))
    found = signatures["translate_constrained"](
        **{**rows, "required": tf.constant(changed)}
    )
    written = texts_of(found["translations"])
    assert "Katze" in written[0] and "noch" in written[0] and written[1] == ""
    assert "Hund" in written[2] and "Hund" in written[3]
    assert not found["truncated"][1] and found["truncated"][3]
    # Without constraints, the result is the usual one.
    rows |= dict.fromkeys(("prefixes", "required"), tf.constant([""] * len(texts)))
    free = signatures["translate_constrained"](**rows)
    plain = signatures["serving_default"](inputs=rows["inputs"])
    assert texts_of(free["translations"]) == texts_of(plain["translations"])
    np.testing.assert_array_equal(free["truncated"], plain["truncated"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="same length"):
        signatures["translate_constrained"](
            **{**rows, "required": tf.constant(["a", "b"])}
        )
    # A glossary applies to each sentence of a text.
    exported = ExportedTranslator(pathlib.Path(path))
    terms = [Term("Hund", ("Katze",)), Term("noch", ("läuft", "schläft"))]
    lines = ["der Hund läuft", "die Katze", "- ein Hund. Und noch einer\nnoch", ""]
    found = exported.with_search(terms).n_best(lines, 1)
    plain = [best.text for (best,) in exported.n_best(lines, 1)]
    assert [best.text for (best,) in found[1::2]] == plain[1::2]
    words = [[["Katze"]], [["Katze"], ["läuft", "schläft"], ["läuft", "schläft"]]]
    for (best,), phrases in zip(found[::2], words, strict=True):
        assert find_unmet(phrases, best.text) == []
        assert "lacks" not in str(best.warnings)
    first, last = found[2][0].text.split("\n")
    assert first.startswith("- ") and find_unmet(words[1][1:2], last) == []
