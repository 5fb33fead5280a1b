"""The section `training`: averages of weights, and the metric of the best model."""

import pytest
from recipe_errors import recipe_error

from keras_transformer.recipes import dump_recipe, load_recipe

TEXT = "data.validation={source: a, target: b}"
TREES = "data={kind: trees, train: {trees: a}, validation: {trees: b}}"


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ([], "bleu"),
        (["training.best_metric=chrf"], "chrf"),
        (["training.best_metric=perplexity"], "perplexity"),
        (["training.early_stopping={patience: 3}"], "bleu"),
        (["training.early_stopping={metric: perplexity}"], "perplexity"),
        (
            ["training.best_metric=chrf", "training.early_stopping={patience: 3}"],
            "chrf",
        ),
        ([TREES, "training.early_stopping={patience: 3}"], "f1"),
    ],
)
def test_best_metric_chooses_the_model_and_stops_early(recipe_path, settings, metric):
    assert load_recipe(recipe_path, [TEXT, *settings]).validation_metric() == metric


def test_moving_average_replaces_the_mean_of_checkpoints(recipe_path, tmp_path):
    recipe = load_recipe(recipe_path, ["training.ema_momentum=0.99"])
    assert recipe.training.average_checkpoints == 1
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe


def test_stored_consistency_can_be_loaded(recipe_path, tmp_path):
    recipe = load_recipe(recipe_path, ["training.consistency={kind: rdrop}"])
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [TEXT, "training={best_metric: chrf, early_stopping: {metric: bleu}}"],
            "must be equal if both are set. Received: bleu and chrf",
        ),
        (
            [TEXT, "training={best_metric: chrf, validation_bleu: false}"],
            "best_metric: chrf requires validation_bleu: true",
        ),
        (
            [TREES, "training.best_metric=chrf"],
            "chrf is not available with data.kind: trees",
        ),
        (
            ["training.best_metric=chrf"],
            "best_metric requires data.validation",
        ),
        (
            ["training={ema_momentum: 0.9, average_checkpoints: 2}"],
            "Set average_checkpoints to 1. Received: average_checkpoints=2",
        ),
        (["training.ema_momentum=1.0"], "training.ema_momentum must be less than 1"),
        (
            ["training.consistency={kind: rdrop, cutoff: 0.1}"],
            "training.consistency: cutoff=0.1 requires kind: simcut",
        ),
    ],
)
def test_load_recipe_rejects_contradictions(recipe_path, settings, message):
    assert message in recipe_error(recipe_path, *settings)


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
