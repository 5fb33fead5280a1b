"""The command `import`, and other commands on the imported model."""

import importlib.util
import json
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from commands import error_of, run_command
from model_cards import card_tables
from toolkit_models import SETTINGS, npz, random_arrays, write_huggingface, write_marian

import keras_transformer as kt
from keras_transformer import opening
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.opening import open_model
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.load import recipe_keys
from keras_transformer.saving.names import packaged_models

# The prefix `>>fra<<` selects the target language.
LINES = ["ab cd", "f a", ">>fra<< e"]


def run(*words, text=None):
    return run_command(*words, stdin=text, code=0)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Folder that `import` writes for a Marian model with two vocabularies."""
    folder = tmp_path_factory.mktemp("import")
    settings = {**SETTINGS, "tied-embeddings-all": False, "tied-embeddings": True}
    source = write_marian(folder / "marian", random_arrays(shared=False), settings)
    (source / "preprocess.sh").write_text("exit 1")
    (source / "LICENSE").write_text("\nCC BY 4.0\nmore")
    result = run("import", source, folder / "model")
    assert result.stdout.strip() == str(folder / "model")
    assert "target languages: fra" in result.stderr
    assert "--normalize opus" in result.stderr
    return folder / "model"


def info_of(folder):
    return json.loads(run("info", folder, "--json").stdout)


def test_imported_folder_translates(imported, models_stay_open):
    opened = opening.open_model(imported)
    assert opened.search == kt.BeamSearch(3, 0.6, "power")
    assert opened.data.kind == "none"
    output = run("translate", imported, text="\n".join([*LINES, ""]))
    assert output.stdout.split("\n") == [*opened.translate(LINES), ""]


def test_training_keeps_the_search_settings(imported):
    keys = recipe_keys(imported)
    data = {"kind": "none"}
    for given, overrides, expected in (
        ({}, [], ("power", 3, 0.6)),
        ({"beam_size": 4}, ["decoding.beam_size=2"], ("power", 2, 0.6)),
        ({"beam_size": 5}, [], ("gnmt", 5, 0.6)),
    ):
        recipe = {"data": data, "decoding": given}
        found = load_recipe(recipe, overrides, keys).decoding
        settings = found.length_penalty_kind, found.beam_size, found.length_penalty
        assert settings == expected
    for name in packaged_models():
        search = kt.BeamSearch(**recipe_keys(name)["decoding"])
        assert search == open_model(name).search


def test_imported_folder_has_a_card_and_info(imported):
    card = (imported / "MODEL_CARD.md").read_text()
    assert "| imported from | Marian, model.npz |" in card
    assert "| log-probabilities match | Marian, except" in card
    assert "CC BY 4.0" in card and "more" not in card
    info = info_of(imported)
    assert info["vocabulary"]["kind"] == "marian"
    assert info["architecture"]["variations"]["timescales"] == "tensor2tensor"
    # The defaults of a recipe are not the settings with which the model was trained.
    assert info["training"]["settings"] == {} and info["training"]["steps"] is None
    assert info["license"] == "CC BY 4.0"
    assert info["origin"]["imported from"] == "Marian, model.npz"


def test_preset_of_an_imported_model_keeps_its_origin(imported, tmp_path):
    run("export", imported, tmp_path / "preset", "--format", "preset")
    assert info_of(tmp_path / "preset")["training"]["settings"] == {}
    run("export", tmp_path / "preset", tmp_path / "marian", "--format", "marian")
    cards = [
        card_tables((tmp_path / name / "MODEL_CARD.md").read_text())
        for name in ("preset", "marian")
    ]
    assert cards[0]["Import"] == cards[1]["Import"]
    assert cards[0]["Import"]["imported from"] == "Marian, model.npz"


def test_imported_folder_exports_to_a_saved_model(imported, tmp_path, export_only):
    export_only("score")
    run("export", imported, tmp_path / "served")
    exported = tf.saved_model.load(tmp_path / "served" / "1")
    score = exported.signatures["score"]
    found = score(inputs=tf.constant(LINES), targets=tf.constant(LINES[::-1]))
    scores = open_model(imported).score(LINES, LINES[::-1])
    expected = [each.log_prob for each in scores]
    np.testing.assert_allclose(found["log_probs"].numpy(), expected, atol=1e-4)
    # The spaces count as one, but the graph cuts the text before it reads "b d".
    long = f"a{' ' * 30_000}b d"
    found = score(
        inputs=tf.constant([long, "a", "a"]), targets=tf.constant(["a", long, "a"])
    )
    assert found["truncated"].numpy().tolist() == [True, True, False]


FINE_TUNING = [
    *("training.batch_tokens=64", "training.warmup_steps=4"),
    *("training.learning_rate=0.01", "training.validation_steps=40"),
    *("training.checkpoint_steps=20", "training.label_smoothing=0.0"),
    "training.validation_bleu=false",
]


def fine_tune(imported, folder, output, steps):
    """Fine-tunes the imported model on a few lines, which it writes into `folder`."""
    for side in ("source", "target"):
        (folder / side).write_text("ab cd\nf a e\ncd ab\n" * 4)
    settings = [
        f"data.{split}.{side}={folder / side}"
        for split in ("train", "validation")
        for side in ("source", "target")
    ]
    settings += [*FINE_TUNING, f"training.steps={steps}"]
    words = [word for each in settings for word in ("--set", each)]
    run("train", "files", "--from", imported, "--output", output, *words)


@pytest.mark.slow
def test_fine_tuning_keeps_the_zero_start(imported, tmp_path):
    """Marian's embedding of the start id is zero, and training must not change it.

    The model is fine-tuned on its test texts, so their log-probabilities must rise.
    """
    output = tmp_path / "run"
    fine_tune(imported, tmp_path, output, 40)
    before, after = open_model(imported), open_model(output)
    texts = ["ab cd", "f a e"]
    gain = [
        new.log_prob - old.log_prob
        for new, old in zip(
            after.score(texts, texts), before.score(texts, texts), strict=True
        )
    ]
    assert min(gain) > 0.1
    embedding = after.model.token_embedding
    assert not embedding(np.array([[after.tokenizer.start_id]])).numpy().any()
    assert after.model.variations == before.model.variations
    assert after.model.pad_id == after.tokenizer.pad_id == before.model.pad_id
    run("export", output, tmp_path / "marian", "--format", "marian")
    again = import_marian(tmp_path / "marian")
    start = again.tokenizer.start_id
    assert not again.model.token_embedding(np.array([[start]])).numpy().any()
    again = kt.Translator(again.model, again.tokenizer)
    scores = [
        [score.log_prob for score in translator.score(texts, texts)]
        for translator in (after, again)
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train {}/config.yaml -o x", "(data.kind: none) has no training text"),
        (
            "extend-vocabulary {} -o x --size 5 --text {}/MODEL_CARD.md",
            "kind marian cannot be extended",
        ),
        (
            "export {} x --tokenizer-ops tensorflow",
            "need tokenizer.kind=bpe. Received: marian",
        ),
    ],
)
def test_imported_folder_lacks_text_and_subwords(
    imported, tmp_path, monkeypatch, command, message
):
    monkeypatch.chdir(tmp_path)
    words = command.replace("{}", str(imported)).split()
    assert message in error_of(run_command(*words))


def test_import_options_apply_to_a_huggingface_folder(tmp_path):
    folder = write_huggingface(tmp_path / "m", random_arrays())
    options = ("--engine", "marian", "--target-language", "fra", "--normalize", "opus")
    run("import", folder, tmp_path / "model", *options)
    tokenizer = open_model(tmp_path / "model").tokenizer
    assert (tokenizer.language, tokenizer.normalization) == ("fra", "opus")
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert "Marian with these weights" in card and "apache-2.0" in card
    error = error_of(run_command("import", folder, tmp_path / "model"))
    assert "already exists" in error
    command = "import", folder, tmp_path / "other", "--target-language", "deu"
    assert "no target language 'deu'" in error_of(run_command(*command))
    assert not (tmp_path / "other").exists()


def test_failed_import_leaves_no_files(tmp_path):
    source = write_marian(tmp_path / "marian", random_arrays())
    (source / "model.npz").write_bytes(npz(random_arrays())[:-99])
    error_of(run_command("import", source, tmp_path / "model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian"]


def test_import_from_the_hub_downloads_data_only(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = write_huggingface(tmp_path / commit, random_arrays())
    asked = []

    def snapshot_download(name, revision, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    output = tmp_path / "models" / "en-de"  # as in the documentation
    result = run("import", "hf://Helsinki-NLP/opus-mt-en-de", output)
    origin = f"hf://Helsinki-NLP/opus-mt-en-de, commit {commit}"
    assert f"imported from: {origin}\n" in result.stderr
    assert f"| imported from | {origin} |" in (output / "MODEL_CARD.md").read_text()
    ((name, patterns),) = asked
    assert name == "Helsinki-NLP/opus-mt-en-de"
    assert "model.safetensors" in patterns and "pytorch_model.bin" not in patterns
    assert not any(pattern.endswith((".py", "*")) for pattern in patterns)
    error = error_of(run_command("import", "hf://opus", tmp_path / "other"))
    assert "must have the form hf://OWNER/NAME" in error


def test_import_needs_torch_before_it_downloads_bin_files(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, revision, allow_patterns):
        asked.append(allow_patterns)
        return str(tmp_path)

    fake = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "torch" else find_spec(name, *rest),
    )
    result = run_command("import", "hf://facebook/nllb", tmp_path / "nllb", code=2)
    assert "hf://facebook/nllb: its weights are a .bin file" in result.stderr
    assert "`pip install torch`" in result.stderr
    assert len(asked) == 1 and "pytorch_model.bin" not in asked[0]


def test_import_reports_files_and_other_folders(tmp_path):
    folder = write_marian(tmp_path / "marian", random_arrays())
    preset, converted = packaged_models()["phrases"], tmp_path / "ctranslate2"
    converted.mkdir()
    (converted / "config.json").write_text('{"bos_token": "<s>"}')
    for path, *messages in (
        (folder / "model.npz", f"or its decoder.yml. Import {folder}"),
        (preset, "config.json: cannot be imported", "need no import"),
        (converted, "config.json: cannot be imported", "need no import"),
        (tmp_path / "gone", "no such file or folder"),
    ):
        error = error_of(run_command("import", path, tmp_path / "x"))
        assert all(each in error for each in messages)
