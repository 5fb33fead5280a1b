"""The exported graph against the Python it was traced from."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.export import export_saved_model
from keras_transformer.export.saved_model import source_rows

TEXTS = ["der Hund läuft", "", "ein Hund und noch ein Hund", "  \t ", "läuft 😀 der"]

# Loads and serves with TensorFlow and tensorflow-text alone.
SERVE = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "keras_transformer":
            raise ImportError("hidden")

sys.meta_path.insert(0, Hidden())
import tensorflow as tf
import tensorflow_text

signature = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
result = signature(inputs=tf.constant(json.loads(sys.argv[2])))
texts = [text.decode() for text in result["translations"].numpy()]
print(json.dumps([texts, result["scores"].numpy().tolist()]))
"""


@pytest.fixture(scope="module")
def model_and_tokenizer():
    sentences = ["der Hund läuft", "ein Hund und noch ein Hund", "die Katze schläft"]
    tokenizer = pipelines.train_tokenizer("bpe", sentences, 300)
    keras.utils.set_random_seed(3)
    model = kt.Transformer(
        tokenizer.vocabulary_size, num_layers=2, d_model=24, d_ff=40, num_heads=3
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    # Fresh weights say one thing to everything; these differ by source.
    rng = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model, tokenizer


@pytest.fixture(scope="module")
def exported(model_and_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    return export_saved_model(*model_and_tokenizer, folder, extra_length=7)


def test_a_process_without_the_package_translates_the_same(
    model_and_tokenizer, exported
):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(exported), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    texts, scores = json.loads(done.stdout.splitlines()[-1])
    translator = kt.Translator(*model_and_tokenizer, extra_length=7)
    assert texts == translator.translate(TEXTS)
    assert len(set(texts)) >= 3  # not the same whatever the source
    assert texts[1] == texts[3] == ""
    assert scores[1] == scores[3] == 0.0


def test_a_text_does_not_depend_on_its_batch(exported):
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    together = serve(inputs=tf.constant(TEXTS))
    for index, text in enumerate(TEXTS):
        alone = serve(inputs=tf.constant([text]))
        assert alone["translations"][0] == together["translations"][index]
        np.testing.assert_allclose(
            alone["scores"][0], together["scores"][index], atol=1e-5
        )


def test_signature_of_ids_is_the_same_search(model_and_tokenizer, exported):
    tokenizer = model_and_tokenizer[1]
    signatures = tf.saved_model.load(str(exported)).signatures
    rows = source_rows(tokenizer, tf.constant(TEXTS), 256)
    by_ids = signatures["translate_ids"](source_ids=rows)
    by_text = signatures["serving_default"](inputs=tf.constant(TEXTS))
    texts = tokenizer.detokenize(by_ids["target_ids"])
    assert texts.numpy().tolist() == by_text["translations"].numpy().tolist()
    np.testing.assert_array_equal(by_ids["scores"], by_text["scores"])


def test_versions_count_up_and_leave_nothing_else(model_and_tokenizer, tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "notes").mkdir()
    path = export_saved_model(*model_and_tokenizer, tmp_path)
    assert path == tmp_path / "4"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3", "4", "notes"]


def test_source_rows_end_and_are_cut(model_and_tokenizer):
    tokenizer = model_and_tokenizer[1]
    rows = source_rows(tokenizer, tf.constant(["Hund " * 500, "", "Hund"]), 11).numpy()
    whole = tokenizer.tokenize(tf.constant(["Hund " * 500]))[0].numpy()
    assert rows.shape == (3, 11)
    assert rows[0].tolist() == [*whole[:10], tokenizer.end_id]
    assert rows[1].tolist() == [tokenizer.end_id] + [0] * 10


def test_a_model_of_another_vocabulary_is_refused(model_and_tokenizer, tmp_path):
    model = kt.Transformer(7, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    with pytest.raises(ValueError, match="300 and 7"):
        export_saved_model(model, model_and_tokenizer[1], tmp_path)
    assert list(tmp_path.iterdir()) == []
