"""Exported graphs, against the Python code that they were traced from."""

import json
import os
import re
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from malicious_graphs import write_limits
from tiny_export import SEARCH, TEXTS, open_translator

import keras_transformer as kt
from keras_transformer.errors import ExportError, ModelError
from keras_transformer.export import (
    export_preset,
    export_saved_model,
    export_translator,
)
from keras_transformer.export.exported_translator import ExportedTranslator
from keras_transformer.export.load import read_limits
from keras_transformer.export.searches import dispatch_search
from keras_transformer.interop import export_huggingface, export_marian
from keras_transformer.numerics import matrices
from keras_transformer.opening import open_model
from keras_transformer.serving import ServedModel
from keras_transformer.serving.limits import RequestError

pytestmark = pytest.mark.usefixtures("exports_load_once")


@pytest.mark.fault(
    "F26", "the same translation alone and in a batch; scores within 1e-5"
)
@pytest.mark.slow
def test_export_result_is_independent_of_batch(tiny_signatures):
    serve = tiny_signatures["serving_default"]
    together = serve(inputs=tf.constant(TEXTS))
    for index, text in enumerate(TEXTS):
        alone = serve(inputs=tf.constant([text]))
        assert alone["translations"][0] == together["translations"][index]
        np.testing.assert_allclose(
            alone["scores"][0], together["scores"][index], atol=1e-5
        )


@pytest.mark.slow
def test_export_with_parts_and_xla_matches_plain_export(
    tiny_model, tiny_export, load_once, tmp_path, monkeypatch
):
    """Covers single rows around the lengths that XLA compiles for, and split batches.

    With `parallel_parts`, a batch is split into parts that are translated in parallel.
    The batches have no rows, fewer rows than parts, or a number of rows that is not
    divisible by the number of parts. The patched constants pack each kernel of the
    decoder into several blocks, and the largest kernels into several arrays of blocks.
    """
    monkeypatch.setattr(matrices, "BLOCK_COLUMNS", 8)
    monkeypatch.setattr(matrices, "MIN_PIECE_SIZE", 2**10)
    model, encoded = tiny_model[0], []
    encode = type(model.encoder).call

    def counting(*args, **kwargs):
        encoded.append(args)
        return encode(*args, **kwargs)

    monkeypatch.setattr(type(model.encoder), "call", counting)
    folder = export_saved_model(
        *tiny_model,
        tmp_path,
        search=kt.BeamSearch(extra_length=7),
        max_source_length=40,
        parallel_parts=3,
        jit_compile=True,
    )
    plain, compiled = load_once(str(tiny_export)), tf.saved_model.load(str(folder))

    def assert_same(name, **inputs):
        expected = plain.signatures[name](**inputs)
        found = compiled.signatures[name](**inputs)
        assert expected.keys() == found.keys()
        scores, exact = found.pop("scores"), expected.pop("scores")
        if "mean_log_probs" in expected:  # rescaled scores
            np.testing.assert_allclose(
                found.pop("mean_log_probs"), expected.pop("mean_log_probs"), rtol=1e-5
            )
        np.testing.assert_allclose(scores, exact, rtol=1e-5)
        if len(scores) > 1:  # a batch in parts, not compiled by XLA
            np.testing.assert_allclose(scores, exact, atol=1e-5)
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)

    ids = np.random.default_rng(5).integers(4, 300, (40,)).astype("int32")
    ids[-1] = tiny_model[1].end_id
    for length in (1, 2, 16, 17, 32, 33, 40):
        assert_same("translate_ids", source_ids=tf.constant(ids[None, -length:]))
    assert_same("translate_ids", source_ids=tf.zeros([1, 0], tf.int32))
    assert len(TEXTS) > 3
    long = ["der Hund läuft.\n" + "die Katze schläft. " * 9]
    for texts in (TEXTS, TEXTS[:3], TEXTS[:2], TEXTS[:1], [""], [], long):
        inputs = tf.constant(texts, tf.string)
        assert_same("serving_default", inputs=inputs)
        assert_same("translate_n_best", inputs=inputs)
    assert_pairs_match(plain, compiled)
    assert_kernels_are_stored_once(plain, compiled, model)
    # All signatures share one trace of the encoder.
    assert len(encoded) == 1
    model.encode(ids[None])
    assert len(encoded) == 2
    # Only one of the exports is compiled: the test compares different searches.
    assert b"_XlaMustCompile" in (folder / "saved_model.pb").read_bytes()
    assert b"_XlaMustCompile" not in (tiny_export / "saved_model.pb").read_bytes()


# Decoding with quantized layers is tested in decoding/test_incremental.py.
@pytest.mark.slow
def test_quantized_export_with_xla_matches_plain_export(
    tiny_model, export_only, tmp_path, monkeypatch
):
    monkeypatch.setattr(matrices, "MIN_PIECE_SIZE", 2**10)
    tokenizer = tiny_model[1]
    keras.utils.set_random_seed(5)
    model = kt.Transformer(
        tokenizer.vocabulary_size, num_layers=1, d_model=64, d_ff=128, num_heads=4
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * keras.random.normal(weight.shape, seed=7))
    model.quantize("int8")
    export_only("serving_default", "score")
    plain, compiled = (
        tf.saved_model.load(
            str(
                export_saved_model(
                    *(model, tokenizer, tmp_path / str(jit_compile)),
                    search=kt.BeamSearch(extra_length=5),
                    max_source_length=16,
                    jit_compile=jit_compile,
                )
            )
        )
        for jit_compile in (False, True)
    )
    inputs = {"inputs": tf.constant(TEXTS[:1])}
    assert_outputs_match(plain, compiled, "serving_default", inputs)
    assert_pairs_match(plain, compiled)
    assert_kernels_are_stored_once(plain, compiled, model, packed=False)


def assert_pairs_match(plain, compiled):
    """Compares the results of the signatures that take targets or ids."""
    texts = tf.constant(TEXTS)
    targets = tf.constant(["Hund", "die Katze", "", "x", "läuft"])
    ids = tf.constant([[5, 6, 7, 3], [8, 3, 0, 0]])
    for name, inputs in {
        "score": {"inputs": texts, "targets": targets},
        "attend": {"inputs": texts, "targets": targets},
        "encode": {"source_ids": ids},
        "translate_ids": {"source_ids": ids},
    }.items():
        if name in plain.signatures:
            assert_outputs_match(plain, compiled, name, inputs)


def assert_outputs_match(plain, compiled, name, inputs):
    expected = plain.signatures[name](**inputs)
    found = compiled.signatures[name](**inputs)
    for key, value in expected.items():
        if value.dtype == tf.float32:
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(found[key], value)


def assert_kernels_are_stored_once(plain, compiled, model, packed=True):
    """Checks the number of stored values: XLA adds only a packed output projection.

    Without XLA, the projection and the embedding share their values.
    """

    def stored(loaded, names=("weights", "packed_weights")):
        parts = tf.nest.flatten([getattr(loaded, name, None) for name in names])
        return sum(each.shape.num_elements() for each in parts if each is not None)

    output = model.vocabulary_size * model.d_model
    assert stored(compiled) == stored(plain) + output
    if packed:
        packed = stored(compiled, ["packed_weights"])
        assert packed > stored(compiled, ["weights"]) / 2


def test_opened_export_respects_its_batch_limit(tiny_export, tmp_path):
    folder = tmp_path / "1"
    shutil.copytree(tiny_export, folder)
    limits = folder / "assets.extra" / "limits.json"
    written = json.loads(limits.read_text())
    expected = {"max_batch_size": 1024, "max_source_length": 40, "end_id": 3}
    assert expected.items() <= written.items()
    assert open_model(folder).batch_size == 64
    limits.write_text(json.dumps({**written, "max_batch_size": 2}))
    assert ServedModel(folder).limits.max_batch_size == 2
    small = open_model(folder)
    assert small.batch_size == 2
    assert len(small.translate(TEXTS)) == len(TEXTS)


@pytest.mark.timeout(60)
@pytest.mark.fault(
    "F23", "invalid limits.json: a one-line error; named pipes are not read"
)
def test_export_with_invalid_limits_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    limits = tmp_path / "assets.extra" / "limits.json"
    limits.parent.mkdir()
    for content, reason in (
        ("", "cannot be read"),
        ("{}", "'max_batch_size' is wrong"),
        ("[]", "the content is wrong"),
        ('{"max_batch_size": "x"}', "'max_batch_size' is wrong"),
        ('{"max_batch_size": 1e999}', "'1e999' is not finite"),
        ('{"max_batch_size": -1}', "'max_batch_size' is wrong"),
        (
            '{"max_batch_size": 2, "max_source_length": 0}',
            "'max_source_length' is wrong",
        ),
        ("[" * 100_000, "nested too deeply"),
        (" " * 2**20 + "{}", "at most 1,048,576 bytes"),
        (None, "must be a regular file"),
    ):
        if content is None:
            limits.unlink()
            os.mkfifo(limits)
        else:
            limits.write_text(content)
        for opening in (open_model, ServedModel, read_limits):
            with pytest.raises(ModelError, match=f"limits.json: .*{reason}"):
                opening(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("saved_model.pb", "fingerprint.pb", "variables/variables.index"),
        *("debug/saved_model_debug_info.pb", "assets.extra/other"),
    ],
)
def test_export_with_a_pipe_is_refused(tiny_export, tmp_path, name, is_link):
    folder = tmp_path / "1"
    shutil.copytree(tiny_export, folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    parent = (folder / name).parent
    # The folder of the pipe, or the whole export, may be a link.
    if is_link:
        parent = parent.rename(tmp_path / "elsewhere")
        (folder / name).parent.symlink_to(parent)
    # If the graph is not a regular file, the folder is not an export.
    reason = f"{name}: must be a regular file"
    if name == "saved_model.pb":
        reason = "1: (contains no model|is a SavedModel)"
    for allow_unsafe in (False, True):
        with pytest.raises(ModelError, match=reason):
            open_model(folder, allow_unsafe=allow_unsafe)


def test_opened_export_translates_batches_in_parallel(
    tiny_export, monkeypatch, parallel_counts
):
    monkeypatch.setattr(ExportedTranslator, "batch_size", 2)
    lines = [*TEXTS, "", *TEXTS[::-1]]
    one = open_model(tiny_export).translate(lines, protect=())
    several = open_model(tiny_export, parallel_parts=3)
    assert several.translate(lines, protect=()) == one
    assert len(set(one)) > 3
    assert parallel_counts == [1, 3]


def test_translate_ids_signature_matches_translate(tiny_model, tiny_signatures):
    tokenizer, signatures = tiny_model[1], tiny_signatures
    # A blank text consists of the end id only.
    ids = tokenizer.tokenize([text.strip() for text in TEXTS]).to_list()
    rows = tf.ragged.constant([[*row, tokenizer.end_id] for row in ids], tf.int32)
    by_ids = signatures["translate_ids"](source_ids=rows.to_tensor(0))
    by_text = signatures["serving_default"](inputs=tf.constant(TEXTS))
    texts = tokenizer.detokenize(by_ids["target_ids"])
    assert texts.numpy().tolist() == by_text["translations"].numpy().tolist()
    np.testing.assert_allclose(by_ids["scores"], by_text["scores"], rtol=1e-5)


def test_export_takes_the_next_version_and_removes_abandoned_folders(
    tiny_model, export_only, tmp_path, monkeypatch, caplog
):
    """A temporary folder is in use if any file in it was written recently."""
    for name in ("2", "10", "notes"):
        (tmp_path / name).mkdir()
    for name in ("killed", "running"):
        file = tmp_path / f".writing-{name}" / "variables" / "data"
        file.parent.mkdir(parents=True)
        file.touch()
        if name == "killed":
            os.utime(file, (0, 0))
        for path in file.parents[:2]:
            os.utime(path, (0, 0))
    for name in ("tensorflow_serving", "tensorflow_serving.apis"):
        monkeypatch.setitem(sys.modules, name, None)
    export_only("encode")
    with caplog.at_level("INFO", "keras_transformer"):
        version = export_saved_model(*tiny_model, tmp_path)
    assert version == tmp_path / "11"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"2", "10", "11", "notes", ".writing-running"}
    # The warm-up requests need a package.
    messages = [each.message for each in caplog.records if each.name.startswith("kera")]
    assert len(messages) == 1
    assert messages[0].startswith("no warm-up requests for TF-Serving")
    assert 'pip install ".[serving-api]"' in messages[0]
    files = [each.name for each in (version / "assets.extra").iterdir()]
    assert files == ["limits.json"]


@pytest.mark.parametrize(
    "export", [export_translator, export_preset, export_huggingface, export_marian]
)
def test_exports_reject_forbidden_phrases(tiny_model, tmp_path, export):
    translator = open_translator(*tiny_model, SEARCH["search"])
    translator = translator.with_search(forbidden=["Hund"])
    with pytest.raises(ExportError, match="forbidden phrases cannot be exported"):
        export(translator, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_single_row_for_xla_gets_the_padding_of_the_model():
    def search(source_ids, n_best):
        return source_ids[:, None], tf.zeros([1, n_best])

    options = {"search_row": search, "extra_length": 30, "max_length": 64}
    padded = dispatch_search(search, 1, **options, pad_id=7)([[4, 5]], 1)[0]
    assert padded.numpy().tolist() == [[[4, 5, *[7] * 14]]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_search_that_is_not_finite_is_an_error(tmp_path, value):
    def search(source_ids, n_best):
        scores = tf.fill([tf.shape(source_ids)[0], n_best], value)
        return tf.zeros([tf.shape(source_ids)[0], n_best, 1], tf.int32), scores

    checked = dispatch_search(search, parts=1)
    module = tf.Module()
    module.serve = tf.function(
        lambda inputs: {
            "translations": inputs,
            "scores": checked(tf.zeros([tf.size(inputs), 1], tf.int32), 1)[1][:, 0],
            "truncated": tf.zeros([tf.size(inputs)], bool),
        },
        input_signature=[tf.TensorSpec([None], tf.string, "inputs")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
    write_limits(tmp_path / "1")
    with pytest.raises(ModelError, match=r"1: the model computes NaN or infinity"):
        open_model(tmp_path).translate(["der Hund"])
    served = ServedModel(tmp_path)
    with pytest.raises(RequestError, match="the model computes NaN") as caught:
        served.run("serving_default", {"inputs": ["der Hund"]})
    assert caught.value.status == 500


@pytest.mark.fault("F21", "export fails with an error that names both sizes")
def test_export_rejects_a_model_with_another_vocabulary_size(tiny_model, tmp_path):
    model = kt.Transformer(7, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    with pytest.raises(ValueError, match="300 ids, model with 7"):
        export_saved_model(model, tiny_model[1], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.yaml", "config.json", "saved_model.pb"])
def test_export_refuses_the_folder_of_another_model(tiny_model, tmp_path, name):
    """`open_model` would open the export instead of the run or preset."""
    (tmp_path / name).touch()
    with pytest.raises(ExportError, match=f"contains {re.escape(name)}"):
        export_saved_model(*tiny_model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_export_rejects_sizes_out_of_range(tiny_model, tmp_path):
    sizes = {"max_source_length": 1, "max_batch_size": 0, "parallel_parts": 0}
    for name, value in sizes.items():
        with pytest.raises(ValueError, match=f"`{name}` must be at least"):
            export_saved_model(*tiny_model, tmp_path, **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_keras_export_has_named_inputs_of_any_length(tmp_path):
    model = kt.Transformer(20, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    model.export(tmp_path / "export", verbose=False)
    serve = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    names = ("source_ids", "target_ids")
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec((None, None), tf.int32, name) for name in names
    }
    ids = {"source_ids": [[5, 9, 3], [7, 3, 0]], "target_ids": [[2, 6], [2, 8]]}
    arrays = {name: tf.constant(array) for name, array in ids.items()}
    (logits,) = serve(**arrays).values()
    np.testing.assert_allclose(logits, model(arrays), rtol=1e-4, atol=1e-5)
