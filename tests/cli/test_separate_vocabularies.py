"""A run with separate source and target vocabularies, used by every command."""

import itertools
import json
import math
import shutil

import numpy as np
import paper_in_numpy
import pytest
import tensorflow as tf
import tiny_export
from commands import run_command
from phrases_run import small_recipe

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import DataError, ModelError, RunError
from keras_transformer.export import export_preset, export_translator
from keras_transformer.opening import open_model
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs.average import average_run
from keras_transformer.runs.corpora import load_pairs, prepare_corpora
from keras_transformer.runs.train import train
from keras_transformer.runs.vocabulary import extend_vocabulary
from keras_transformer.saving.info import model_info
from keras_transformer.saving.keras_file import check_vocabularies
from keras_transformer.saving.load import check_matches_recipe, recipe_keys

SIZES = {"shared": False, "vocabulary_size": 380, "source_vocabulary_size": 370}
TEXTS = ["7 May 2024", "", "Monday, 12 June", "two hours"]
SEPARATE = """tokenizer={kind: bpe, split_digits: true, shared: false,
  vocabulary_size: 380, source_vocabulary_size: 370}"""
# Worked out by hand for one pre-norm layer per stack, with d_model 16 and d_ff 24.
NUM_PARAMETERS = (
    (370 + 380) * 16  # embeddings of both sides; no separate output matrix
    + (4 * 16 * 16)  # attention of the encoder
    + 2 * (4 * 16 * 16)  # attentions of the decoder
    + 2 * (16 * 24 + 24 + 24 * 16 + 16)  # feed-forward networks
    + (2 + 3 + 2) * 2 * 16  # normalizations, including one after each stack
)


def separate_recipe(*overrides):
    return small_recipe(SEPARATE, *overrides)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("separate") / "run"
    settings = ("training.steps=2", "training.validation_steps=2")
    train(separate_recipe(*settings), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def translator(run):
    return open_model(run)


@pytest.fixture(scope="module")
def version(translator, tmp_path_factory):
    """The version folder of the run's SavedModel."""
    names = ("serving_default", "translate_n_best", "score", "attend")
    with tiny_export.only_signatures(*names):
        return export_translator(translator, tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def preset(translator, tmp_path_factory):
    return export_preset(translator, tmp_path_factory.mktemp("presets") / "preset")


def test_each_tokenizer_is_learned_from_its_side(run, translator):
    recipe = load_recipe(run / "config.yaml")
    sides = [[*texts] for texts in zip(*load_pairs(recipe.data)["train"], strict=True)]
    for name, texts, size in zip(("source", "target"), sides, (370, 380), strict=True):
        own = pipelines.train_tokenizer(
            "bpe", texts, size, split_digits=True, text=translator.tokenizer.text
        )
        path = run / "tokenizer" / name / "tokenizer.model"
        assert path.read_bytes() == own.model
    files = sorted(path.name for path in (run / "tokenizer").iterdir())
    assert files == ["source", "target"]
    tokenizer = translator.tokenizer
    assert (tokenizer.vocabulary_size, tokenizer.target.vocabulary_size) == (370, 380)
    corpus = pipelines.EncodedCorpus.load(run / "cache" / "train")
    for number, pair in enumerate(itertools.islice(zip(*sides, strict=True), 3)):
        for ids, text, side in zip(
            corpus.pair(number), pair, (tokenizer, tokenizer.target), strict=True
        ):
            assert ids.tolist() == [*side.tokenize([text]).to_list()[0], 3]


def test_parameter_count_matches_hand_count(run, translator):
    assert translator.model.count_params() == NUM_PARAMETERS == 16912
    assert model_info(run)["parameters"] == NUM_PARAMETERS


def test_logits_match_the_paper_with_two_matrices(translator):
    """The expected logits come from the NumPy implementation `paper_in_numpy`."""
    model = translator.model
    source, target = [369, 5, 17, 3], [2, 379, 44]

    def embed(matrix, ids):
        vectors = paper_in_numpy.array(matrix)[ids] * math.sqrt(16)
        return vectors + paper_in_numpy.positional_encoding(len(ids), 16)

    stack = paper_in_numpy.stack
    memory = embed(model.source_embedding.embeddings, source)
    memory = stack(model.encoder, memory, paper_in_numpy.encoder_layer)
    matrix = model.token_embedding.embeddings
    output = embed(matrix, target)
    output = stack(model.decoder, output, paper_in_numpy.decoder_layer, memory)
    inputs = {"source_ids": np.array([source]), "target_ids": np.array([target])}
    found = np.asarray(model(inputs, training=False))[0]
    expected = output @ paper_in_numpy.array(matrix).T
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.slow
def test_saved_model_matches_the_run(translator, version):
    exported = open_model(version)
    best, found = translator.n_best(TEXTS, 1), exported.n_best(TEXTS, 1)
    assert any(each.text for (each,) in best)
    for (ours,), (theirs,) in zip(best, found, strict=True):
        assert ours.text == theirs.text
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)
    pairs = TEXTS[2:], ["Montag, 12. Juni", "zwei Stunden"]
    scores = [
        [(each.num_tokens, pytest.approx(each.log_prob, abs=1e-4)) for each in found]
        for found in (translator.score(*pairs), exported.score(*pairs))
    ]
    assert scores[0] == scores[1]
    for found, *pair in zip(exported.attend(*pairs), *pairs, strict=True):
        source, target, attention = found
        assert ["".join(source), "".join(target)] == pair
        assert np.shape(attention) == (len(target), len(source))
    info = model_info(version)
    assert info["vocabulary"] == {"kind": "bpe", "size": 380, "source_size": 370}


def test_average_and_preset_keep_both_vocabularies(run, translator, preset, tmp_path):
    path, _ = average_run(run, last=1, output=run / "last.keras")
    fingerprint = translator.tokenizer.fingerprint()
    assert open_model(path).tokenizer.fingerprint() == fingerprint
    opened = open_model(preset)
    assert opened.tokenizer.fingerprint() == fingerprint
    assert opened.fingerprint() == translator.fingerprint()
    # `info` also finds both tokenizers next to a `.keras` file outside a run.
    shutil.copy(run / "model.keras", tmp_path)
    shutil.copytree(run / "tokenizer", tmp_path, dirs_exist_ok=True)
    for found in (preset, tmp_path / "model.keras"):
        vocabulary = {"kind": "bpe", "size": 380, "source_size": 370}
        assert model_info(found)["vocabulary"] == vocabulary
    assert {*model_info(found)["files"]} == {"model.keras", "source/", "target/"}
    model = kt.Transformer.from_preset(preset)
    with pytest.raises(ModelError, match="has 370 source and 380 target subwords, but"):
        model.save_to_preset(tmp_path / "x", translator.tokenizer.target)


def test_training_accepts_a_run_or_preset_as_initial_model(run, preset, translator):
    tokenizer, model = translator.tokenizer, translator.model
    for path in (run, preset):
        keys = recipe_keys(path)
        assert {name: keys["tokenizer"][name] for name in SIZES} == SIZES
        recipe = load_recipe("phrases", keys=keys)
        check_matches_recipe(path, tokenizer, model, recipe)
    one = pipelines.train_tokenizer("bpe", TEXTS, 300)
    shared = load_recipe("phrases", ["tokenizer.vocabulary_size=300"])
    with pytest.raises(ModelError, match=r"tokenizer.shared is True in the model but"):
        check_matches_recipe(run, one, model, recipe)
    with pytest.raises(ModelError, match=r"tokenizer.shared is False in the model but"):
        check_matches_recipe(run, tokenizer, model, shared)


def test_vocabularies_of_a_run_are_fixed(run):
    def claim(*overrides, **options):
        run_folder.claim(run, separate_recipe(*overrides), **options)

    claim("training.validation_steps=2")
    for override, key in (
        ("tokenizer.source_vocabulary_size=371", "tokenizer.source_vocabulary_size"),
        ("tokenizer={vocabulary_size: 380}", "tokenizer.shared"),
    ):
        with pytest.raises(RunError, match=f"do not fit these changes.*{key}"):
            claim(override, allow_changes=True)


def test_given_models_are_used_for_their_sides(translator, tmp_path):
    translator.tokenizer.save(tmp_path)
    models = (
        f"tokenizer.source_model={tmp_path}/source/tokenizer.model",
        f"tokenizer.model={tmp_path}/target/tokenizer.model",
    )
    recipe = separate_recipe(*models)
    prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
    used = pipelines.load_tokenizer(tmp_path / "run" / "tokenizer")
    assert used.fingerprint() == translator.tokenizer.fingerprint()
    wrong = separate_recipe(*models, "tokenizer.source_vocabulary_size=99")
    with pytest.raises(DataError, match=r"Set tokenizer.source_vocabulary_size=370"):
        prepare_corpora(wrong, tmp_path / "other", load_pairs(wrong.data))


def test_records_have_the_vocabulary_of_each_side(translator, tmp_path):
    translator.tokenizer.save(tmp_path / "tokenizer")

    def write(*sides):
        features = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
            for name, ids in zip(("source", "target"), sides, strict=True)
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            writer.write(example.SerializeToString())

    facts = {
        "format": 1,
        "tokenizer": translator.tokenizer.fingerprint(),
        "shards": [{"name": "a.tfrecord", "num_pairs": 1}],
    }
    (tmp_path / "records.json").write_text(json.dumps(facts))
    data = f"data={{kind: records, train: {tmp_path}}}"

    def prepare(recipe, name):
        prepare_corpora(recipe, tmp_path / name, load_pairs(recipe.data))
        corpus = pipelines.EncodedCorpus.load(tmp_path / name / "cache" / "train")
        return [ids.tolist() for ids in corpus.pair(0)]

    write([369], [379, 4])
    assert prepare(separate_recipe(data), "run") == [[369, 3], [379, 4, 3]]
    with pytest.raises(DataError, match=r"Set tokenizer.shared=false"):
        prepare(small_recipe(data), "shared")
    other = separate_recipe(data, "tokenizer.source_vocabulary_size=380")
    with pytest.raises(DataError, match=r"Set tokenizer.source_vocabulary_size=370"):
        prepare(other, "other")
    write([370], [4])
    with pytest.raises(DataError, match="has ids outside the vocabulary"):
        prepare(separate_recipe(data), "outside")


def test_each_vocabulary_grows_by_its_text(translator, run, tmp_path):
    model, tokenizer = translator.model, translator.tokenizer
    new = ["Żaba quakt", "eine Żaba quakt"] * 5
    larger, grown = extend_vocabulary(model, tokenizer, [], 9, new)
    assert grown.target.fingerprint() == tokenizer.target.fingerprint()
    assert larger.source_vocabulary_size == grown.vocabulary_size == 379
    assert larger.vocabulary_size == 380
    before, after = (
        np.asarray(each.source_embedding.embeddings) for each in (model, larger)
    )
    np.testing.assert_array_equal(after[:370], before)
    # The old vocabulary spells the letter with two byte tokens. The new embedding is
    # their mean.
    spelled = [tokenizer.pieces().index(f"<0x{byte:02X}>") for byte in "Ż".encode()]
    found = after[grown.pieces().index("Ż")]
    np.testing.assert_allclose(found, before[spelled].mean(axis=0), atol=1e-6)
    matrices = (np.asarray(each.token_embedding.embeddings) for each in (model, larger))
    np.testing.assert_array_equal(*matrices)
    (tmp_path / "new").write_text("\n".join(new), "utf-8")
    command = ("extend-vocabulary", run, "--size", 9, "--output", tmp_path / "grown")
    refused = run_command(*command, "--text", tmp_path / "new", code=2)
    assert "Pass --source and --target" in refused.stderr
    result = run_command(*command, "--target", tmp_path / "new", code=0)
    assert "0 source subwords added" in result.stderr
    assert "389 target subwords in total" in result.stderr
    opened = open_model(tmp_path / "grown")
    assert opened.model.source_vocabulary_size == 370
    assert recipe_keys(tmp_path / "grown")["tokenizer"] == {
        **{"kind": "bpe", "shared": False},
        **{"vocabulary_size": 389, "source_vocabulary_size": 370},
    }


def test_damaged_pair_of_sizes_is_refused(run, translator, tmp_path):
    shutil.copy(run / "model.keras", tmp_path)
    target = translator.tokenizer.target
    pipelines.SeparateTokenizers(target, target).save(tmp_path)
    with pytest.raises(ModelError, match="SHA-256"):
        open_model(tmp_path / "model.keras")
    with pytest.raises(ModelError, match="has 370 source and 380 target subwords"):
        check_vocabularies("x", translator.model, target)
    with pytest.raises(ValueError, match="must not have more ids than the model"):
        kt.Translator(translator.model, target)
    with pytest.raises(ValueError, match=r"source_vocabulary_size': \[370, 380"):
        small = kt.Transformer(380, 1, 16, 24, 2)
        Ensemble([translator.model, small])
