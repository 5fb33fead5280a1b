"""The models that the package contains, and the script that packs them."""

import json
import pathlib

import pytest
from benchmark_scripts import load_script

import keras_transformer as kt
from keras_transformer import recipes
from keras_transformer.cli import serve as serve_module
from keras_transformer.errors import UserError
from keras_transformer.experiments.train import train
from keras_transformer.saving.card import card_tables
from keras_transformer.saving.names import packaged_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = [
    *("data.size=300", "data.held_out=11", "tokenizer.vocabulary_size=380"),
    "model={preset: tiny, num_layers: 1, d_model: 16, d_ff: 28, num_heads: 2}",
    *("training.steps=2", "training.batch_tokens=170", "training.checkpoint_steps=1"),
    *("training.average_checkpoints=2", "training.validation_bleu=false"),
    "training.mixed_precision=bfloat16",
    "decoding={beam_size: 2, extra_length: 3}",
]
# A sentence per model, and the exact translation that it must return.
EXAMPLES = {
    "phrases": ("3 September 2021", "3. September 2021"),
    "tatoeba_en_de": ("I'm tired.", "Ich bin müde."),
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
        *("model.weights.h5", "recipe.yaml", "task.json", "tokenizer.json"),
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


def test_pack_prints_translations_of_samples(run, same_recipe, tmp_path, capsys):
    folder, _ = pretrained.pack("phrases", run, tmp_path / "packed", samples=3)
    # For each sample: the source, its translation, and the reference.
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    translations = kt.open_model(folder).translate(lines[::3])
    assert lines[1::3] == [f"  {each}" for each in translations]


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


def test_main_reports_mistakes_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: .*not finished"):
        pretrained.main(["phrases", str(tmp_path)])


def test_notice_names_every_packaged_model():
    assert (ROOT / "NOTICE").read_text(encoding="utf-8") == pretrained.notice()


@pytest.mark.parametrize("name", pretrained.MODELS)
def test_packaged_model_translates_its_example(name, run_command):
    folder = packaged_models()[name]
    source, translation = EXAMPLES[name]
    assert kt.open_model(name).translate([source]) == [translation]
    result = run_command("translate", name, stdin=f"{source}\n")
    assert (result.exit_code, result.stdout) == (0, f"{translation}\n")
    sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
    assert sum(sizes) <= pretrained.MODELS[name].max_bytes


@pytest.mark.parametrize("name", pretrained.MODELS)
def test_packaged_model_has_its_recipes_sizes(name, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "data")
    folder = packaged_models()[name]
    keys = kt.recipes.load_recipe(folder / "recipe.yaml").model.model_dump()
    config = kt.Transformer.from_preset(name).get_config()
    assert {key: config[key] for key in keys if key in config}.items() <= keys.items()
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert pretrained.MODELS[name].origin in card


def test_models_command_lists_packaged_models(run_command):
    result = run_command("models")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names == list(packaged_models())


def test_missing_model_names_the_packaged_ones(run_command):
    result = run_command("info", "no_such_model")
    names = ", ".join(packaged_models()) or "none"
    assert result.exit_code == 2
    assert result.stderr == (
        "error: no_such_model: no such file or folder, and no packaged model "
        f"(packaged: {names})\n"
    )


def test_serve_exports_a_preset_and_removes_the_export(
    tiny_model, tmp_path, export_only
):
    export_only("encode")
    model, tokenizer = tiny_model
    preset = model.save_to_preset(tmp_path / "tiny", tokenizer)
    with serve_module._export_if_preset(preset) as folder:
        assert folder.name == "tiny"
        assert (folder / "1" / "saved_model.pb").is_file()
    assert not folder.parent.exists()
    with serve_module._export_if_preset(tmp_path) as folder:
        assert folder == tmp_path
