"""The models that the package contains, and the script that packs them."""

import json
import pathlib

import pytest
from benchmark_scripts import load_script
from model_cards import card_tables

import keras_transformer as kt
from keras_transformer import recipes
from keras_transformer.errors import UserError
from keras_transformer.runs.train import train
from keras_transformer.saving.names import packaged_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = [
    *("data.size=300", "data.held_out=11", "tokenizer.vocabulary_size=380"),
    "model={size: tiny, num_layers: 1, d_model: 16, d_ff: 28, num_heads: 2}",
    *("training.steps=2", "training.batch_tokens=170", "training.checkpoint_steps=1"),
    *("training.average_checkpoints=2", "training.validation_bleu=false"),
    "training.mixed_precision=bfloat16",
    "decoding={beam_size: 2, extra_length: 3}",
]
# Sentences, none of them in a training text, and their exact translations.
EXAMPLES = {
    "phrases": {"3 September 2021": "3. September 2021"},
    "tatoeba_en_de": {"I'm tired.": "Ich bin müde."},
    "europarl_en_fr": {
        "The government announced new measures against unemployment this morning.": (
            "Le gouvernement a annoncé de nouvelles mesures contre le chômage ce matin."
        ),
        "The museum opens at nine o'clock on Sundays.": (
            "Le musée ouvre à neuf heures le dimanche."
        ),
        "Please save your changes before you close the window.": (
            "Veuillez enregistrer vos modifications avant de fermer la fenêtre."
        ),
        "Click <b>here</b> to see {count} items at https://example.org.": (
            "Cliquez sur <b>ici</b> pour voir {count} éléments à https://example.org."
        ),
    },
}


pretrained = load_script("pretrained")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "phrases"
    train(recipes.load_recipe("phrases", SETTINGS), folder, progress=False)
    return folder


@pytest.fixture
def same_recipe(run, monkeypatch):
    """Replaces the shipped recipe with the run's, because `pack` compares the two."""
    recipe = recipes.load_recipe(run / "config.yaml")
    monkeypatch.setattr(recipes, "load_recipe", lambda *_: recipe)


def test_packed_run_is_a_preset_with_recipe_and_card(run, same_recipe, tmp_path):
    folder, scores = pretrained.pack("phrases", run, tmp_path / "packed")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("MODEL_CARD.md", "assets", "config.json", "metadata.json"),
        *("model.weights.h5", "recipe.yaml", "summary.json", "task.json"),
        "tokenizer.json",
    ]
    packed, original = kt.open_model(folder), kt.open_model(run)
    assert original.model.dtype_policy.name == "mixed_bfloat16"
    assert packed.model.dtype_policy.name == "float32"
    assert packed.search == original.search
    assert packed.max_source_length == original.max_source_length
    for half, full in zip(
        packed.model.get_weights(), original.model.get_weights(), strict=True
    ):
        assert (half == full.astype("float16")).all()
    shipped = ROOT / "keras_transformer" / "recipes" / "phrases.yaml"
    assert (folder / "recipe.yaml").read_bytes() == shipped.read_bytes()
    sections = card_tables((folder / "MODEL_CARD.md").read_text())
    assert "Unicode License v3" in sections["License"]
    assert [each["name"] for each in scores] == [
        *("BLEU, test, 11 sentences", "chrF2, test, 11 sentences"),
    ]
    bleu = sections["Scores"]["BLEU, test, 11 sentences"]
    assert bleu == [f"{scores[0]['score']:.2f}", scores[0]["signature"]]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["description"] == pretrained.MODELS["phrases"].description


def test_pack_rejects_other_runs(run, same_recipe, tmp_path, monkeypatch):
    small = pretrained.MODELS["phrases"]._replace(max_bytes=1_000)
    monkeypatch.setitem(pretrained.MODELS, "phrases", small)
    with pytest.raises(UserError, match="must have at most 1,000 bytes"):
        pretrained.pack("phrases", run, tmp_path / "packed")
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"not finished: model.keras is missing"):
        pretrained.pack("phrases", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_pack_rejects_runs_with_other_settings(run, tmp_path):
    with pytest.raises(UserError, match=r"differs from the recipe in data.held_out, "):
        pretrained.pack("phrases", run, tmp_path / "packed")


def test_notice_names_every_packaged_model():
    assert (ROOT / "NOTICE").read_text(encoding="utf-8") == pretrained.notice()


@pytest.mark.parametrize("name", pretrained.MODELS)
def test_packaged_model_translates_its_examples(name):
    translations = kt.open_model(name).translate(list(EXAMPLES[name]))
    assert translations == list(EXAMPLES[name].values())
    files = [each for each in packaged_models()[name].rglob("*") if each.is_file()]
    assert sum(f.stat().st_size for f in files) <= pretrained.MODELS[name].max_bytes
    card = (packaged_models()[name] / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert pretrained.MODELS[name].origin in card


@pytest.mark.parametrize("name", ["phrases", "tatoeba_en_de"])
def test_packaged_model_has_its_recipes_sizes(name, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "data")
    folder = packaged_models()[name]
    keys = kt.recipes.load_recipe(folder / "recipe.yaml").model.model_dump()
    config = kt.Transformer.from_preset(name).get_config()
    assert {key: config[key] for key in keys if key in config}.items() <= keys.items()


def test_models_command_lists_packaged_models(run_command):
    result = run_command("models")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names == list(packaged_models())
