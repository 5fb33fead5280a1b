"""Exports from strangers: a graph that can reach files is refused before it loads."""

import shutil

import pytest
import tensorflow as tf
from tiny_export import SENTENCES

from keras_transformer.errors import ModelError
from keras_transformer.saving import keras_file as safe_loading
from keras_transformer.saving.graph_check import check_saved_model
from keras_transformer.saving.open import open_model
from keras_transformer.saving.saved_model import load_saved_model
from keras_transformer.serving import ServedModel


def export(folder, function):
    """A SavedModel whose `serving_default` is a function of texts."""
    module = tf.Module()
    module.f = tf.function(
        function, input_signature=[tf.TensorSpec([None], tf.string, name="inputs")]
    )
    tf.saved_model.save(module, str(folder), signatures=module.f)
    return folder


def _translations(value):
    return {"translations": value, "scores": tf.zeros([1])}


def _reads(texts):
    return _translations(tf.io.read_file("/etc/hostname")[None])


def _lists(texts):
    return _translations(tf.io.matching_files("/etc/*"))


def _calls_python(texts):
    return _translations(tf.py_function(lambda each: each, [texts], tf.string))


def _calls_numpy(texts):
    return _translations(
        tf.numpy_function(lambda each: each, [texts], tf.string, stateful=False)
    )


def _prints(texts):
    with tf.control_dependencies([tf.print(texts, output_stream="file:///tmp/x")]):
        return _translations(tf.identity(texts))


def _saves(texts):
    tf.raw_ops.SaveV2(
        prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""], tensors=[texts]
    )
    return _translations(texts)


def _restores(texts):
    (found,) = tf.raw_ops.RestoreV2(
        prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.string]
    )
    return _translations(found)


def _reads_a_dataset(texts):
    lines = tf.data.TextLineDataset("/etc/hostname")
    return _translations(lines.get_single_element()[None])


def _hides_in_a_branch(texts):
    return _translations(
        tf.cond(
            tf.size(texts) > 5,
            lambda: tf.io.read_file("/etc/hostname")[None],
            lambda: texts,
        )
    )


HOSTILE = [
    *(_reads, _lists, _calls_python, _calls_numpy, _prints, _saves, _restores),
    *(_reads_a_dataset, _hides_in_a_branch),
]


@pytest.mark.fault("F23", "an export that can read or write files is refused")
@pytest.mark.parametrize("function", HOSTILE, ids=lambda each: each.__name__)
def test_what_reaches_out_is_refused(tmp_path, function):
    export(tmp_path / "1", function)
    for opening in (open_model, ServedModel):
        with pytest.raises(ModelError) as caught:
            opening(tmp_path)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / '1' / 'saved_model.pb'}: refused: ")
        assert "operation" in message or "calls what" in message
        assert "\n" not in message


def test_it_would_have_run(tmp_path):
    """The same kind of graph, let in, writes a file."""
    marker = tmp_path / "marker"

    def writes(texts):
        tf.io.write_file(str(marker), "x")
        return _translations(texts)

    export(tmp_path / "1", writes)
    with pytest.raises(ModelError, match="refused: has the operation 'WriteFile'"):
        open_model(tmp_path)
    assert not marker.exists()
    found = load_saved_model(tmp_path / "1", allow_unsafe=True)
    found.signatures["serving_default"](inputs=tf.constant(["a"]))
    assert marker.exists()


def test_a_table_from_a_file_is_refused(tmp_path):
    words = tmp_path / "words"
    words.write_text("a 1\n")
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            str(words), tf.string, 0, tf.int64, 1, delimiter=" "
        ),
        -1,
    )
    module.f = tf.function(
        lambda inputs: _translations(tf.strings.as_string(module.table.lookup(inputs))),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.f)
    with pytest.raises(ModelError, match="InitializeTableFromTextFile"):
        open_model(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_our_own_exports_pass(tiny_export, tmp_path, kind):
    if kind == "bpe":
        check_saved_model(tiny_export)
        return
    # Its operations alone: a whole export takes long.
    from keras_transformer import pipelines

    module = tf.Module()
    module.tokenizer = pipelines.train_tokenizer(kind, SENTENCES, 300)
    module.f = tf.function(
        lambda inputs: _translations(
            module.tokenizer.detokenize(module.tokenizer.tokenize(inputs))
        ),
        input_signature=[tf.TensorSpec([None], tf.string, name="inputs")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.f)
    check_saved_model(tmp_path / "1")


def test_damaged_exports(tiny_export, tmp_path, monkeypatch):
    version = tmp_path / "1"
    shutil.copytree(tiny_export, version)
    whole = (version / "saved_model.pb").read_bytes()
    for content in (b"", b"\xff" * 99, whole[: len(whole) // 2]):
        (version / "saved_model.pb").write_bytes(content)
        with pytest.raises(ModelError, match="cannot be loaded"):
            open_model(tmp_path)
    (version / "saved_model.pb").write_bytes(whole)
    data = next((version / "variables").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_model(tmp_path)
    monkeypatch.setattr("keras_transformer.saving.graph_check.MAX_BYTES", 1000)
    with pytest.raises(ModelError, match="bytes are more than the 1,000 allowed"):
        check_saved_model(version)
    assert safe_loading.shown("a\nb") == r"'a\nb'"
