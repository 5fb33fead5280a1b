"""The models that the package contains."""

import pathlib

import pytest
from benchmark_scripts import load_script
from commands import run_command

import keras_transformer as kt
from keras_transformer.saving.names import packaged_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
            "Cliquez <b>ici</b> pour voir {count} éléments à https://example.org."
        ),
    },
}


pretrained = load_script("pretrained")


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


def test_lines_in_another_script_are_reported(tmp_path):
    text = "Это не английский язык.\nThis is a cat. Это не язык.\n"
    (tmp_path / "ru.txt").write_text(text, encoding="utf-8")
    command = ["translate", "europarl_en_fr", "--input", tmp_path / "ru.txt"]
    result = run_command(*command, code=0)
    assert result.stdout == "Это не английский язык.\nC'est un chat. Это не язык.\n"
    for number in (1, 2):
        assert f"warning: line {number}: 'Это не" in result.stderr
    assert result.stderr.count("in this script (Cyrillic).") == 2


@pytest.mark.parametrize("name", ["phrases", "tatoeba_en_de"])
def test_packaged_model_has_its_recipes_sizes(name, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "data")
    folder = packaged_models()[name]
    keys = kt.recipes.load_recipe(folder / "recipe.yaml").model.model_dump()
    config = kt.Transformer.from_preset(name).get_config()
    assert {key: config[key] for key in keys if key in config}.items() <= keys.items()


def test_models_command_lists_packaged_models():
    result = run_command("models", code=0)
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names == list(packaged_models())
