"""Shipped recipes match the paper. Files and overrides of users are checked."""

import dataclasses
import inspect
import pathlib

import pytest
import yaml

from keras_transformer import Transformer
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.errors import RecipeError
from keras_transformer.recipes import dump_recipe, load_recipe, packaged_recipes
from keras_transformer.recipes.schema import DecodingSettings, ModelSettings

RECIPES = pathlib.Path(inspect.getfile(ModelSettings)).parent
# With a section `model`, missing keys get the paper's values. Without it, values that
# fit the text and the machine would be chosen.
MINIMAL = """
data:
  train: {source: a.en, target: [a.de]}
model: {}
"""
TEXT = "data.validation={source: a, target: b}"
TREES = "data={kind: trees, train: {trees: a}, validation: {trees: b}}"
SEPARATE = (
    "tokenizer={shared: false, vocabulary_size: 380, source_vocabulary_size: 370}"
)
ALIGNED = "data.train.alignments=c"
SWAPPED = "data.train=[{source: a, target: b, bidirectional: true}]"


@pytest.fixture
def recipe_path(tmp_path):
    """Path of a recipe with two files and no other settings."""
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


def recipe_error(recipe, *overrides):
    """Loads an invalid recipe and returns the error's message, which is one line."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", packaged_recipes())
def test_load_recipe_accepts_packaged_recipes(name, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    own_files = (
        ["data.train={source: a, target: b}"] if name in ("files", "student") else []
    )
    recipe = load_recipe(name, own_files)
    assert recipe.training.steps > 0
    # `packaged_recipes` maps each name to a description.
    assert len(packaged_recipes()[name]) > 20
    # The size of heads follows from changed widths.
    changes = ["model.d_model=96", "model.num_heads=3"]
    model = load_recipe(name, [*own_files, *changes]).model
    assert (model.key_dim, model.value_dim) == (32, 32)


def test_template_has_every_key():
    # Users copy the recipe `files` to write their own.
    written = yaml.safe_load((RECIPES / "files.yaml").read_text())
    recipe = load_recipe("files", ["data.train={source: a, target: b}"]).model_dump()
    assert set(written) == set(recipe)
    for section in ("data", "tokenizer", "training", "evaluation", "decoding"):
        # Only one of the two checkpoint intervals may be set.
        known = set(recipe[section]) - {"checkpoint_minutes"}
        assert set(written[section]) == known, section


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
    assert (recipe.model.num_layers, recipe.model.dropout) == (6, dropout)
    assert recipe.model.d_model == (1024 if name.endswith("big") else 512)
    assert (training.steps, training.average_checkpoints) == (steps, average)
    assert training.schedule == "noam"
    assert (training.batch_tokens, training.warmup_steps) == (25_000, 4_000)
    assert (training.beta_1, training.beta_2, training.checkpoint_minutes) == (
        0.9,
        0.98,
        10,
    )
    assert (recipe.decoding.beam_size, recipe.decoding.length_penalty) == (4, 0.6)
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


def test_load_recipe_accepts_a_dict(recipe_path, monkeypatch):
    monkeypatch.chdir(recipe_path.parent)
    values = yaml.safe_load(MINIMAL)
    assert load_recipe(values, ["training.seed=7"]) == load_recipe(
        recipe_path, ["training.seed=7"]
    )
    assert values == yaml.safe_load(MINIMAL)
    wrong = {**values, "training": {"step": 3}}
    expected = "unknown key training.step. Did you mean training.steps?"
    assert recipe_error(wrong) == f"recipe: {expected}"
    found = recipe_error(values, "training.step=3")
    assert found == f"--set training.step: {expected}"


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
    recipe_path.write_text(MINIMAL + "training: {checkpoint_minutes: 3}")
    recipe = load_recipe(
        recipe_path,
        [
            "training.epsilon=1e-8",
            "data.train={source: [b.en, c.en], target: [b.de, c.de]}",
            "data.validation.source=v.en",
            "data.validation.target=v.de",
            "training.early_stopping={patience: 3}",
            *("model.size=tiny", "model.dropout=0.2"),
            "training.checkpoint_steps=7",  # replaces `checkpoint_minutes`
        ],
    )
    training = recipe.training
    assert training.epsilon == 1e-8
    assert len(recipe.data.train.source) == 2
    assert recipe.data.validation.target[0].endswith("v.de")
    assert training.early_stopping.patience == 3
    assert (recipe.model.d_model, recipe.model.dropout) == (128, 0.2)
    assert (training.checkpoint_minutes, training.checkpoint_steps) == (None, 7)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"data: {kind: files\ntrain: 3", "broken.yaml:2: not valid YAML"),
        (b"", "must be a mapping"),
        (b"a: \xff", "not UTF-8"),
        (b"training: {steps: 3}", "data.train must be given"),
    ],
)
def test_load_recipe_rejects_invalid_files(tmp_path, content, expected):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    message = recipe_error(path)
    assert expected in message
    assert str(path) in message


def test_decoding_section_matches_beam_search():
    fields = {field.name: field.default for field in dataclasses.fields(BeamSearch)}
    settings = DecodingSettings.model_fields
    assert {name: field.default for name, field in settings.items()} == fields
    # `BeamSearch` and `DecodingSettings` reject the same values.
    for change in ({"beam_size": 0}, {"length_penalty": -1.0}, {"patience": 0.0}):
        for kind in (BeamSearch, DecodingSettings):
            with pytest.raises(ValueError):
                kind(**change)


def test_constructor_arguments_match_transformer():
    arguments = ModelSettings(size="tiny", d_ff=77).constructor_arguments()
    assert (arguments["d_model"], arguments["d_ff"]) == (128, 77)
    expected = set(inspect.signature(Transformer.__init__).parameters)
    expected -= {"self", "kwargs", "vocabulary_size", "pad_id", "output_size"}
    assert set(arguments) == expected


@pytest.mark.parametrize(
    ("changes", "key_dim", "value_dim"),
    [
        ("{size: tiny}", 32, 32),
        ("{size: tiny, d_model: 64}", 16, 16),
        ("{size: tiny, d_model: 64, key_dim: 5}", 5, 16),
        ("{size: tiny, d_model: 64, value_dim: null}", 16, None),
        ("{size: B1}", 16, 64),
        ("{size: B1, num_heads: 8}", 16, 64),  # as in B1
        ("{size: B1, num_heads: 4}", 128, 128),  # 512 / 4
        ("{num_heads: 16}", 32, 32),
    ],
)
def test_model_settings_infer_key_dim_and_value_dim(
    recipe_path, changes, key_dim, value_dim
):
    model = load_recipe(recipe_path, [f"model={changes}"]).model
    assert (model.key_dim, model.value_dim) == (key_dim, value_dim)


def test_short_forms_set_variations(recipe_path):
    # `start` and `timescales` are short forms of keys of `variations`.
    changes = ["model.start=zeros", "model.timescales=tensor2tensor"]
    arguments = load_recipe(recipe_path, changes).model.constructor_arguments()
    assert arguments["variations"] == {
        "zero_start_id": 2,
        "timescales": "tensor2tensor",
    }
    assert not {"start", "timescales"} & arguments.keys()
    # If both are given, the short forms replace the same keys of `variations`.
    changes += ["model.variations={timescales: paper, attention_bias: true}"]
    recipe = load_recipe(recipe_path, [*changes, "model.start=learned"])
    assert recipe.model.constructor_arguments()["variations"] == {
        "attention_bias": True,
        "timescales": "tensor2tensor",
    }
    # In the vocabulary of an imported Marian model, the start token is the last id.
    marian = "tokenizer={kind: marian, vocabulary_size: 90}"
    recipe = load_recipe(recipe_path, ["model.start=zeros", marian])
    assert recipe.model.variations.zero_start_id == 89


def test_source_embeddings_follow_the_vocabulary():
    recipe = load_recipe("phrases", [SEPARATE])
    assert recipe.model.variations.source_vocabulary_size == 370
    recipe = load_recipe("phrases", ["tokenizer.shared=false"])
    # By default, it equals the recipe's `vocabulary_size`.
    assert recipe.tokenizer.source_vocabulary_size == 656
    assert recipe.model.variations.source_vocabulary_size == 656
    assert load_recipe("phrases").model.variations is None


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ([], "bleu"),
        (["training.validation_bleu=false"], "perplexity"),
        (["training.best_metric=chrf"], "chrf"),
        (["training.best_metric=perplexity"], "perplexity"),
        (["training.early_stopping={patience: 3}"], "bleu"),
        (
            ["training.best_metric=chrf", "training.early_stopping={patience: 3}"],
            "chrf",
        ),
        ([TREES, "training.early_stopping={patience: 3}"], "f1"),
        ([TREES, "training.validation_f1=false"], "perplexity"),
    ],
)
def test_best_metric_chooses_the_model_and_stops_early(recipe_path, settings, metric):
    assert load_recipe(recipe_path, [TEXT, *settings]).validation_metric() == metric


@pytest.mark.parametrize(
    "settings",
    [
        ["model.size=tiny", "training.checkpoint_steps=11"],
        ["model={size: tiny, d_model: 64}"],
        ["model.start=zeros", "model.timescales=tensor2tensor"],
        ["training.ema_momentum=0.99"],
        ["training.consistency={kind: rdrop}"],
        ["training.stages=[{steps: 2}, {steps: 3, consistency: null}]"],
        [SEPARATE],
    ],
)
def test_stored_recipe_equals_the_given_one(recipe_path, tmp_path, settings):
    recipe, path = load_recipe(recipe_path, settings), tmp_path / "config.yaml"
    dump_recipe(recipe, path)
    assert load_recipe(path) == recipe
    # Other programs may read YAML 1.1.
    written = yaml.safe_load(path.read_text())
    assert written == recipe.model_dump()
    assert written["training"]["epsilon"] == 1e-9
    assert {each.name for each in tmp_path.iterdir()} == {"config.yaml", "mine.yaml"}


def test_load_recipe_makes_paths_absolute(recipe_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = load_recipe(recipe_path).data
    assert data.train.source == [f"{tmp_path}/a.en"]
    assert data.train.target == [f"{tmp_path}/a.de"]

    def load(data, *settings):
        return load_recipe(recipe_path, [f"data={data}", *settings])

    recipe = load("{kind: tsv, train: [a, b]}", "tokenizer.model=a.model")
    assert recipe.data.train == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert recipe.tokenizer.model == f"{tmp_path}/a.model"
    data = load("{kind: records, train: i, validation: {source: v, target: ~/w}}").data
    assert data.train == f"{tmp_path}/i"
    assert data.validation.source == [f"{tmp_path}/v"]
    assert data.validation.target == [str(pathlib.Path.home() / "w")]
    tfds = (
        "{{kind: tfds, name: a, source_language: b, target_language: no, data_dir: {}}}"
    )
    assert load(tfds.format("gs://c")).data.data_dir == "gs://c"
    data = load(tfds.format("c")).data
    assert (data.data_dir, data.target_language) == (f"{tmp_path}/c", "no")
    assert load("{kind: hf, name: some/data}").data.name == "some/data"
    (tmp_path / "some" / "data").mkdir(parents=True)
    assert load("{kind: hf, name: some/data}").data.name == f"{tmp_path}/some/data"


@pytest.mark.parametrize("name", ["phrases", "hf://owner/name"])
def test_initial_model_may_be_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [f"training.initial_model={name}"]
    assert load_recipe("phrases", settings).training.initial_model == name
    # Paths are resolved, even if they do not exist: a run can be resumed without them.
    (tmp_path / "phrases").mkdir()
    for path in ("phrases", "missing"):
        found = load_recipe("phrases", [f"training.initial_model={path}"]).training
        assert found.initial_model == str(tmp_path / path)


def test_initial_model_may_depend_on_the_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed-7").mkdir()
    settings = ["training.initial_model=seed-{seed}", "training.seed=7"]
    dump_recipe(load_recipe("phrases", settings), "config.yaml")
    found = load_recipe("config.yaml").training
    assert found.initial_path == str(tmp_path / "seed-7")
    # `repeat` changes the seed of a stored recipe.
    found = load_recipe("config.yaml", ["training.seed=8"]).training
    assert found.initial_path == str(tmp_path / "seed-8")


# Overrides of the recipe `MINIMAL`, and a part of the message.
WRONG = [
    ("training.warmup_step=3", "training.warmup_step. Did you mean training.warmup_s"),
    ("training.epochs=3", "training.epochs. Did you mean training.steps"),
    ("training.beam_size=3", "training.beam_size. Did you mean decoding.beam_size"),
    ("data.sorce=x", "data.sorce. Did you mean data.train.source?"),
    ("data.trian.source=x", "data.trian. Did you mean data.train?"),
    ("trainin.steps=3", "trainin. Did you mean training?"),
    ("training.early_stopping={patince: 2}", "training.early_stopping.patience?"),
    ("training.steps=many", "training.steps must be a valid integer"),
    ("training.steps='7'", "training.steps must be a valid integer"),
    ("training.steps=0", "training.steps must be greater than 0"),
    ("training.mixed_precision=half", "training.mixed_precision must be 'bfloat16"),
    ("decoding.beam_size=10001", "decoding.beam_size must be less than or equal"),
    ("training.parallel_parts=1001", "training.parallel_parts must be less than or"),
    ("model.size=tinny", "model: size must be one of"),
    ("model.positions=learned", "model: positions: learned requires max_length"),
    ("model.num_heads=7", "`num_heads` must divide `d_model` unless `key_dim`"),
    ("model=tiny", "model must be a section"),
    ("tokenizer.num_segmentations=2", "num_segmentations above 1 requires bpe_dropout"),
    ("tokenizer={kind: word_piece, bpe_dropout: 0.1}", "tokenizer: bpe_dropout skips"),
    ("tokenizer={kind: word_piece, model: a}", "so kind must be bpe"),
    ("data.kind=tree", "data.kind must be one of files, tfds, phrases"),
    ("data.kind=tfds", "data.name must be given"),
    ("data={kind: hf, train: train}", "data.name must be given"),
    ("data={kind: tsv, train: a, source: 0}", "data.source: must be a column number"),
    ("data.train.source=[]", "data.train.source: List should have at least 1 item"),
    ("data.train.source=[a, b]", "data.train: source and target must have"),
    ("training.schedule=inverse_sqrt", "schedule: inverse_sqrt requires learning_rate"),
    ("training.learning_rate=0.1", "schedule: noam computes the learning rate"),
    ("training.average_checkpoints=6", "must not exceed keep_checkpoints"),
    ("training.cooldown_steps=100001", "cooldown_steps=100001, steps=100000"),
    ("training={checkpoint_minutes: 3, checkpoint_steps: 7}", "cannot be used togeth"),
    ("training={ema_momentum: 0.9, average_checkpoints: 2}", "average_checkpoints=2"),
    ("training.consistency={kind: rdrop, cutoff: 0.1}", "requires kind: simcut"),
    ("training.early_stopping={patience: 2}", "requires data.validation"),
    ("training.best_metric=chrf", "best_metric requires data.validation"),
    (
        "training.guided_alignment_weight=0.5",
        "guided_alignment_weight requires data.kind: trees",
    ),
    (
        ALIGNED,
        "data.train.alignments requires training.guided_alignment_weight above 0",
    ),
    *(
        (
            (*settings, "tokenizer.kind=fairseq"),
            f"{key} is not available with token",
        )
        for settings, key in (
            (
                (ALIGNED, "training.guided_alignment_weight=0.1"),
                "data.train.alignments",
            ),
            (("data.train=[{source: a, target: b, tag: c}]",), "data.train.tag"),
            (("data.noise={typos: 0.1}",), "data.noise"),
            (("data.train.bidirectional=true",), "bidirectional: true"),
            ((SWAPPED,), "bidirectional: true"),
            (
                ("training.stages=[{steps: 1, bidirectional: true}]",),
                "bidirectional: true",
            ),
        )
    ),
    *(
        ((*settings, "data.noise.join=0.1"), "data.noise.join is not available with")
        for settings in (["data.train.bidirectional=true"], [SWAPPED])
    ),
    ("data={kind: trees, train: {trees: [a, b], weights: [1]}}", "one value per path"),
    (
        "data={kind: trees, train: {trees: a}, linearization: X}",
        "linearization must be 'joined', 'num",
    ),
    ("training.steps", "must have the form dotted.key=value"),
    ("training..steps=1", "must have the form dotted.key=value"),
    ("training.steps=[1", "--set training.steps, line 1: not valid YAML"),
    (
        (TEXT, "training={best_metric: chrf, validation_bleu: false}"),
        "best_metric: chrf requires validation_bleu: true",
    ),
    ((TEXT, "training.best_metric=f1"), "f1 is not available with data.kind: files"),
    ((TREES, "training.best_metric=chrf"), "chrf is not available with data.kind: tre"),
    (
        (TREES, "training={best_metric: f1, validation_f1: false}"),
        "requires validation_f1: true",
    ),
    ((TREES, "tokenizer.kind=word_piece"), "requires tokenizer.kind: bpe"),
    (
        ("data={kind: records, train: a}", "tokenizer.model=b"),
        "tokenizer.model is not available with data.kind: records",
    ),
    (
        (SEPARATE, "tokenizer.source_model=a"),
        "both model (for the target) and source_m",
    ),
    ((SEPARATE, "tokenizer.shared=true"), "source_vocabulary_size requires shared: fa"),
    ((SEPARATE, "tokenizer.kind=marian"), "requires kind: bpe or kind: word_piece"),
    (
        (SEPARATE, "model.variations={source_vocabulary_size: 9}"),
        "must be null or equal tokenizer.source_vocabulary_size. Received: 9 and 370",
    ),
    (
        (SEPARATE, "data.train.bidirectional=true"),
        "true requires tokenizer.shared: true",
    ),
    ((SEPARATE, SWAPPED), "bidirectional: true requires tokenizer.shared: true"),
    (
        (SEPARATE, "training.stages=[{steps: 1, bidirectional: true}]"),
        "true requires tokenizer.shared: true",
    ),
    ((SEPARATE, TREES), "data.kind: trees requires tokenizer.shared: true"),
    *(
        ((f"training.stages={stages}", "training.steps=6"), message)
        for stages, message in (
            ("[{steps: 2}]", "sum of the stages' steps. Received: steps=6, sum=2"),
            ("[{steps: 6, cooldown_steps: 9}]", "training.stages: stage 1: cooldown"),
            (
                "[{steps: 6, word_drpout: 1}]",
                "stages: stage 1: unknown key word_drpout. Did you mean token_dropout?",
            ),
            ("[{steps: 5}, {steps: 0}]", "stages: stage 2: steps must be greater than"),
            ("[{steps: 6}, {}]", "training.stages: stage 2: steps must be given"),
            ("[{steps: 6}, 7]", "training.stages: stage 2 must be a section"),
            ("[{steps: 6, learning_rate: 1.0}]", "stage 1: schedule: noam computes"),
            ("[{steps: 6, schedule: inverse_sqrt}]", "inverse_sqrt requires learning_"),
        )
    ),
]


@pytest.mark.parametrize(("overrides", "message"), WRONG)
def test_load_recipe_names_the_key_of_an_error(recipe_path, overrides, message):
    overrides = [overrides] if isinstance(overrides, str) else overrides
    assert message in recipe_error(recipe_path, *overrides)


def test_load_recipe_lists_packaged_recipes_for_an_unknown_name(tmp_path):
    message = recipe_error("multi30k_en_dee")
    assert "Did you mean multi30k_en_de?" in message
    assert "data.train.source must be given" in recipe_error("files")
    assert "folder" in recipe_error(tmp_path)
