"""Shipped recipes match the paper. Files and overrides of users are checked."""

import dataclasses
import inspect
import pathlib

import pytest
import yaml
from recipe_errors import MINIMAL, recipe_error

from keras_transformer import Transformer
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.recipes import dump_recipe, load_recipe, shipped_recipes
from keras_transformer.recipes.schema import DecodingSettings, ModelSettings

RECIPES = pathlib.Path(inspect.getfile(ModelSettings)).parent


@pytest.mark.parametrize("name", shipped_recipes())
def test_load_recipe_accepts_shipped_recipes(name, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    own_files = ["data.train.source=a.en.gz", "data.train.target=a.de.gz"]
    recipe = load_recipe(name, own_files if name == "files" else [])
    assert recipe.training.steps > 0
    # `shipped_recipes` maps each name to a description.
    assert len(shipped_recipes()[name]) > 20


def test_template_has_every_key():
    # Users copy the recipe `files` to write their own.
    written = yaml.safe_load((RECIPES / "files.yaml").read_text())
    recipe = load_recipe("files", ["data.train={source: a, target: b}"]).model_dump()
    assert set(written) == set(recipe)
    for section in ("data", "tokenizer", "training", "evaluation", "decoding"):
        # Only one of the two checkpoint intervals may be set.
        known = set(recipe[section]) - {"checkpoint_minutes"}
        assert set(written[section]) == known, section


def test_template_requires_files():
    assert "data.train.source must be given" in recipe_error("files")


@pytest.mark.parametrize(
    ("name", "dropout", "steps", "average", "kind", "vocabulary_size"),
    [
        ("wmt14_en_de_base", 0.1, 100_000, 5, "bpe", 37_000),
        ("wmt14_en_de_big", 0.3, 300_000, 20, "bpe", 37_000),
        ("wmt14_en_fr_base", 0.1, 100_000, 5, "word_piece", 32_000),
        ("wmt14_en_fr_big", 0.1, 300_000, 20, "word_piece", 32_000),
    ],
)
def test_wmt_recipes_match_section_5(
    name, dropout, steps, average, kind, vocabulary_size
):
    recipe = load_recipe(name)
    training = recipe.training
    assert recipe.model.dropout == dropout
    assert recipe.model.d_model == (1024 if name.endswith("big") else 512)
    assert (training.steps, training.average_checkpoints) == (steps, average)
    assert training.schedule == "paper"
    assert (training.batch_tokens, training.warmup_steps) == (25_000, 4_000)
    assert (recipe.tokenizer.kind, recipe.tokenizer.shared) == (kind, True)
    assert recipe.tokenizer.vocabulary_size == vocabulary_size
    # `name[9:11]` is the target language.
    assert recipe.data.name == f"wmt14_translate/{name[9:11]}-en"
    assert recipe.data.target_language == name[9:11]


def test_parsing_recipe_matches_section_6_3(monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "/treebank")
    recipe = load_recipe("wsj_parsing")
    # The usual split of the WSJ: 02 to 21 for training, 22 and 23 for evaluation.
    sections = [f"/treebank/wsj/{number:02}" for number in range(2, 24)]
    assert recipe.data.train.trees == sections[:20]
    assert recipe.data.validation.trees == sections[20:21]
    assert recipe.data.test.trees == sections[21:]
    assert (recipe.model.num_layers, recipe.model.d_model) == (4, 1024)
    assert recipe.tokenizer.vocabulary_size == 16_000
    decoding = recipe.decoding
    assert (decoding.beam_size, decoding.length_penalty) == (21, 0.3)
    assert decoding.extra_length == 300
    assert recipe.validation_metric() == "f1"
    assert load_recipe("craft_parsing").decoding == decoding


def test_validation_metric_is_f1_for_trees_and_bleu_for_text(recipe_path):
    trees = "data={kind: trees, train: {trees: a}, validation: {trees: b}}"
    assert load_recipe(recipe_path).validation_metric() == "bleu"
    recipe = load_recipe(recipe_path, [trees, "training.validation_f1=false"])
    assert recipe.validation_metric() == "perplexity"
    stopping = "training.early_stopping.metric"
    recipe = load_recipe(recipe_path, [trees, f"{stopping}=f1"])
    assert recipe.training.early_stopping.metric == "f1"
    assert "bleu is not available" in recipe_error(
        recipe_path, trees, f"{stopping}=bleu"
    )
    assert "f1 is not available with data.kind: files" in recipe_error(
        recipe_path, "data.validation={source: a, target: b}", f"{stopping}=f1"
    )
    assert "requires validation_f1: true" in recipe_error(
        recipe_path, trees, f"{stopping}=f1", "training.validation_f1=false"
    )
    assert "guided_alignment requires data.kind: trees" in recipe_error(
        recipe_path, "training.guided_alignment=0.5"
    )
    assert "requires tokenizer.kind: bpe" in recipe_error(
        recipe_path, trees, "tokenizer.kind=word_piece"
    )


def test_schema_defaults_match_the_paper(recipe_path):
    recipe = load_recipe(recipe_path)
    assert recipe.data.kind == "files"
    assert recipe.model.num_layers == 6
    assert recipe.training.batch_tokens == 25_000
    assert recipe.training.warmup_steps == 4_000
    assert (recipe.training.beta_1, recipe.training.beta_2) == (0.9, 0.98)
    assert recipe.training.checkpoint_minutes == 10
    assert recipe.decoding.beam_size == 4


def test_load_recipe_makes_paths_absolute(recipe_path, monkeypatch):
    monkeypatch.chdir(recipe_path.parent)
    recipe = load_recipe(recipe_path)
    assert recipe.data.train.source == [str(recipe_path.parent / "a.en")]
    assert recipe.data.train.target == [str(recipe_path.parent / "a.de")]


def test_load_recipe_accepts_a_dict(recipe_path, monkeypatch):
    monkeypatch.chdir(recipe_path.parent)
    values = yaml.safe_load(MINIMAL)
    assert load_recipe(values, ["training.seed=7"]) == load_recipe(
        recipe_path, ["training.seed=7"]
    )
    assert values == yaml.safe_load(MINIMAL)
    wrong = {**values, "training": {"step": 3}}
    expected = "recipe: unknown key training.step; did you mean training.steps?"
    assert recipe_error(wrong) == expected


def test_load_recipe_makes_paths_of_records_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "records.yaml"
    path.write_text(
        "data: {kind: records, train: ids, validation: {source: v.en, target: v.de}}"
    )
    data = load_recipe(path).data
    assert data.train == str(tmp_path / "ids")
    assert data.validation.source == [str(tmp_path / "v.en")]
    assert data.validation.target == [str(tmp_path / "v.de")]


def test_load_recipe_expands_environment_variables(recipe_path, monkeypatch):
    recipe_path.write_text(MINIMAL.replace("a.en", '"${SOME_CORPUS}/a.en"'))
    monkeypatch.setenv("SOME_CORPUS", "/elsewhere")
    assert load_recipe(recipe_path).data.train.source == ["/elsewhere/a.en"]
    monkeypatch.delenv("SOME_CORPUS")
    message = recipe_error(recipe_path)
    assert "data.train.source" in message
    assert "SOME_CORPUS is not set" in message
    recipe = load_recipe(recipe_path, ["data.train.source=/b.en"])
    assert recipe.data.train.source == ["/b.en"]


def test_load_recipe_applies_overrides(recipe_path):
    recipe = load_recipe(
        recipe_path,
        [
            "training.steps=17",
            "training.epsilon=1e-8",
            "tokenizer.split_digits=true",
            "data.train.source=[b.en, c.en]",
            "data.train.target=[b.de, c.de]",
            "data.validation.source=v.en",
            "data.validation.target=v.de",
            "training.early_stopping={metric: perplexity, patience: 3}",
            "model.preset=tiny",
            "model.dropout=0.3",
        ],
    )
    assert recipe.training.steps == 17
    assert recipe.training.epsilon == 1e-8
    assert recipe.tokenizer.split_digits is True
    assert len(recipe.data.train.source) == 2
    assert recipe.data.validation.target[0].endswith("v.de")
    assert recipe.training.early_stopping.patience == 3
    assert (recipe.model.d_model, recipe.model.dropout) == (128, 0.3)


def test_override_replaces_the_other_checkpoint_interval(recipe_path):
    recipe_path.write_text(MINIMAL + "training: {checkpoint_minutes: 3}")
    training = load_recipe(recipe_path, ["training.checkpoint_steps=7"]).training
    assert (training.checkpoint_minutes, training.checkpoint_steps) == (None, 7)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.warmup_step=3", "training.warmup_step; did you mean training.warmu"),
        ("training.beam_size=3", "training.beam_size; did you mean decoding.beam_size"),
        ("data.trian.source=x", "data.trian; did you mean data.train?"),
        ("trainin.steps=3", "trainin; did you mean training?"),
        ("training.early_stopping={patince: 2}", "training.early_stopping.patience?"),
        ("training.steps=many", "training.steps must be a valid integer"),
        ("training.steps=true", "training.steps must be a valid integer"),
        ("training.steps=0", "training.steps must be greater than 0"),
        ("training.steps='7'", "training.steps must be a valid integer"),
        ("training.steps.x=1", "training.steps must be a valid integer"),
        ("training.mixed_precision=half", "training.mixed_precision must be 'bfloat16"),
        ("decoding.beam_size=10001", "decoding.beam_size must be less than or equal"),
        (
            "training.parallel_parts=1001",
            "training.parallel_parts must be less than or",
        ),
        ("training.jit_compile=1.5", "training.jit_compile must be 'auto', True or"),
        ("model.dropout=1.0", "model.dropout must be less than 1"),
        ("model.preset=tinny", "model: preset must be one of"),
        ("model.positions=learned", "model: positions: learned requires max_length"),
        (
            "model.num_heads=7",
            "model: `num_heads` must divide `d_model` unless `key_dim` and",
        ),
        ("tokenizer.shared=7", "tokenizer.shared must be a valid boolean"),
        ("model=tiny", "model must be a section"),
        ("tokenizer.segmentations=2", "segmentations above 1 require dropout above 0"),
        (
            "tokenizer={kind: word_piece, dropout: 0.1}",
            "tokenizer: dropout skips",
        ),
        ("data.kind=tree", "data.kind must be one of files, tfds, phrases"),
        ("data.kind=tfds", "data.name must be given"),
        ("data.train.source=[a, 3]", "data.train.source.1 must be a valid string"),
        ("data.train.source=[]", "data.train.source: List should have at least 1 item"),
        ("data.train.source=['']", "data.train.source.0: String should have at least"),
        (
            "data.train.source=[a, b]",
            "data.train: source and target must have",
        ),
        (
            "training.schedule=inverse_sqrt",
            "schedule: inverse_sqrt requires learning_rate",
        ),
        ("training.learning_rate=0.1", "schedule: paper computes the learning rate"),
        ("training.average_checkpoints=6", "must not exceed keep_checkpoints"),
        ("training.cooldown_steps=100001", "cooldown_steps=100001, steps=100000"),
        ("training.early_stopping={metric: bleu}", "requires data.validation"),
        (
            "data={kind: trees, train: {trees: [a, b], weights: [1]}}",
            "data.train: weights must have one value per path in trees",
        ),
        (
            "data={kind: trees, train: {trees: a}, words: X}",
            "words must be 'joined', 'numbers', 'tags' or 'XX'",
        ),
        (
            "data={kind: trees, train: {trees: a, weights: [0.0]}}",
            "data.train.weights.0 must be greater than 0",
        ),
        ("training.steps", "must have the form dotted.key=value"),
        ("training..steps=1", "must have the form dotted.key=value"),
        ("training.steps=[1", "--set training.steps, line 1: not valid YAML"),
    ],
)
def test_load_recipe_names_the_key_of_an_error(recipe_path, override, expected):
    assert expected in recipe_error(recipe_path, override)


def test_load_recipe_rejects_both_checkpoint_intervals(recipe_path):
    recipe_path.write_text(
        MINIMAL + "training: {checkpoint_minutes: 3, checkpoint_steps: 7}"
    )
    assert "checkpoint_minutes and checkpoint_steps" in recipe_error(recipe_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"data: {kind: files\ntrain: 3", "line 2: not valid YAML"),
        (b"data: {}\ndata: {}", "line 2: the key data is given twice"),
        (b"data: {<<: {a: 1}, b: 2, b: 3}", "line 1: the key b is given twice"),
        (b"", "must be a mapping"),
        (b"a: \xff", "not UTF-8"),
        (b"3: 4", "a key must be a string. Received: 3"),
        (b"training: {steps: 3}", "data.train must be given"),
    ],
)
def test_load_recipe_rejects_invalid_files(tmp_path, content, expected):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    message = recipe_error(path)
    assert expected in message
    assert str(path) in message


def test_load_recipe_accepts_merge_keys(recipe_path):
    recipe_path.write_text(
        MINIMAL + "decoding: {<<: {beam_size: 3, extra_length: 7}, beam_size: 2}"
    )
    decoding = load_recipe(recipe_path).decoding
    assert (decoding.beam_size, decoding.extra_length) == (2, 7)


def test_load_recipe_lists_shipped_recipes_for_an_unknown_name(tmp_path):
    message = recipe_error("multi30k_en_dee")
    assert "did you mean multi30k_en_de?" in message
    assert "folder" in recipe_error(tmp_path)


def test_dump_recipe_writes_the_values_of_the_preset(recipe_path, tmp_path):
    recipe = load_recipe(
        recipe_path, ["model.preset=tiny", "training.checkpoint_steps=11"]
    )
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["model"]["d_model"] == 128
    assert written["training"]["epsilon"] == 1e-9
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.yaml",
        "mine.yaml",
    ]


def test_decoding_section_matches_beam_search():
    fields = {field.name: field.default for field in dataclasses.fields(BeamSearch)}
    settings = DecodingSettings.model_fields
    assert {name: field.default for name, field in settings.items()} == fields
    # `BeamSearch` and `DecodingSettings` reject the same values.
    for change in ({"beam_size": 0}, {"length_penalty": -1.0}, {"patience": 0.0}):
        for kind in (BeamSearch, DecodingSettings):
            with pytest.raises(ValueError):
                kind(**change)


def test_load_recipe_reads_the_word_no_as_text(tmp_path):
    path = tmp_path / "norwegian.yaml"
    path.write_text(
        "data: {kind: tfds, name: x, source_language: no, target_language: en}"
    )
    assert load_recipe(path).data.source_language == "no"


def test_constructor_arguments_match_transformer():
    arguments = ModelSettings(preset="tiny", d_ff=77).constructor_arguments()
    assert (arguments["d_model"], arguments["d_ff"]) == (128, 77)
    expected = set(inspect.signature(Transformer.__init__).parameters)
    expected -= {"self", "kwargs", "vocabulary_size", "pad_id", "output_size"}
    assert set(arguments) == expected
