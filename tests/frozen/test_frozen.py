"""Files of older releases load, and translate as those releases recorded."""

import json
import pathlib
import shutil
import tarfile

import numpy as np
import pytest
from typer.testing import CliRunner

from keras_transformer.cli.app import app
from keras_transformer.experiments.train import train
from keras_transformer.pipelines.sources import phrase_forms
from keras_transformer.pipelines.sources import phrases
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.open import open_model

FROZEN = pathlib.Path(__file__).resolve().parent / "v1"
# Size limits of the folders, which are stored in the repository.
MAX_BYTES = {"v0_1": 800_000, "v1": 600_000}


@pytest.fixture(scope="module")
def expected():
    """List of sources with the translations and scores by version 1."""
    return json.loads((FROZEN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def unpacked(tmp_path):
    """Folder with the run and the export of version 1."""
    _unpack(FROZEN, tmp_path)
    return tmp_path


def _unpack(version, folder):
    for path in version.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")


def assert_same_translator(found, expected):
    """Compares settings and weights, which determine all translations."""
    settings = [each.model.get_config() | {"name": ""} for each in (found, expected)]
    assert settings[0] == settings[1]
    weights = (each.model.get_weights() for each in (found, expected))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.tokenizer.fingerprint() == expected.tokenizer.fingerprint()
    assert found.search == expected.search
    assert found.max_source_length == expected.max_source_length


@pytest.mark.fault("F32", "loads; identical translations, scores within 1e-3")
@pytest.mark.parametrize(
    "form", ["run", pytest.param("checkpoint", marks=pytest.mark.slow), "saved_model"]
)
def test_files_of_version_1_translate_the_same(unpacked, expected, form):
    if form == "checkpoint":
        (unpacked / "run" / "model.keras").unlink()
        form = "run"
    opened = open_model(unpacked / form)
    found = opened.n_best([each["source"] for each in expected], 1)
    assert len({each["translation"] for each in expected}) > 20
    for each, ((text, score),) in zip(expected, found, strict=True):
        assert text.encode() == each["translation"].encode()
        assert score == pytest.approx(each["score"], abs=1e-3)


def test_keras_file_of_version_1_equals_its_run(unpacked):
    opened = open_model(unpacked / "run" / "model.keras")
    assert_same_translator(opened, open_model(unpacked / "run"))


@pytest.fixture
def old_phrases(monkeypatch):
    """Restores the phrases of version 0.1, which had dates in one order only."""
    forms = [form for form in phrase_forms.date_forms() if not form.write_source]
    kinds = phrase_forms.PHRASE_KINDS
    monkeypatch.setitem(kinds, "date", (26, lambda: iter(forms)))
    phrases.select_forms.cache_clear()
    yield
    phrases.select_forms.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("old_phrases")
@pytest.mark.fault("F32", "training resumes from its checkpoint")
def test_training_resumes_from_version_1(unpacked):
    run = unpacked / "run"
    recipe = load_recipe(run / "config.yaml", ["training.steps=2003"])
    summary = train(recipe, run, progress=False)
    assert summary["steps"] == 2003
    assert (run / "checkpoints" / "ckpt-2003.index").is_file()
    # The perplexity is as low as before, so weights and Adam's state were restored.
    assert float(summary["validation"].split()[1].rstrip(",")) < 1.7


@pytest.fixture(scope="module")
def version_0_1(tmp_path_factory):
    """Folder with the run and the export of version 0.1, and its expected.json."""
    folder = tmp_path_factory.mktemp("v0_1")
    _unpack(FROZEN.parent / "v0_1", folder)
    text = (FROZEN.parent / "v0_1" / "expected.json").read_text(encoding="utf-8")
    return folder, json.loads(text)


@pytest.fixture(scope="module")
def run_of_version_0_1(version_0_1):
    return open_model(version_0_1[0] / "run")


@pytest.mark.parametrize("form", ["run", "saved_model"])
def test_version_0_1_translates_the_same(version_0_1, run_of_version_0_1, form):
    folder, expected = version_0_1
    rows = expected["translations"]
    opened = run_of_version_0_1 if form == "run" else open_model(folder / form)
    found = opened.n_best([row["source"] for row in rows], 1)
    for row, ((text, score),) in zip(rows, found, strict=True):
        assert text == row["translation"]
        assert score == pytest.approx(row["score"], abs=1e-3)


def test_keras_file_of_version_0_1_equals_its_run(version_0_1, run_of_version_0_1):
    opened = open_model(version_0_1[0] / "run" / "model.keras")
    assert_same_translator(opened, run_of_version_0_1)


@pytest.mark.parametrize("command", ["info {}", "export {} {}-preset --format preset"])
def test_version_0_1_warns_once_of_old_recipe_keys(version_0_1, tmp_path, command):
    """A command prints one line, although it may read the recipe several times."""
    run = tmp_path / "run"
    shutil.copytree(version_0_1[0] / "run", run)
    result = CliRunner().invoke(app, command.format(run, run).split())
    assert result.exit_code == 0, result.output
    assert result.stderr.count("is now training.global_clipnorm") == 1
    assert result.stderr.startswith(f"warning: {run / 'config.yaml'}: ")


def test_version_0_1_scores_the_same(version_0_1, run_of_version_0_1):
    _, expected = version_0_1
    sources = [row["source"] for row in expected["translations"]]
    found = run_of_version_0_1.score(sources, expected["target"])
    for score, log_prob in zip(found, expected["log_probabilities"], strict=True):
        assert score.log_prob == pytest.approx(log_prob, abs=1e-3)


@pytest.mark.usefixtures("old_phrases")
def test_version_0_1_resumes_with_its_old_recipe_keys(version_0_1, tmp_path, caplog):
    """Six more steps give the same perplexity as in version 0.1."""
    folder, expected = version_0_1
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    assert "  clip_norm: 1.0\n" in (run / "config.yaml").read_text()
    recipe = load_recipe(run / "config.yaml", ["training.steps=36"])
    assert "training.clip_norm is now training.global_clipnorm" in caplog.text
    assert (recipe.training.keep_checkpoints, recipe.training.global_clipnorm) == (2, 1)
    summary = train(recipe, run, progress=False)
    assert summary["steps"] == expected["resumed"]["steps"] == 36
    found, then = (
        float(each.split()[1].rstrip(","))
        for each in (summary["validation"], expected["resumed"]["validation"])
    )
    assert found == pytest.approx(then, rel=1e-4)
    assert "  global_clipnorm: 1.0\n" in (run / "config.yaml").read_text()


@pytest.mark.parametrize("version", MAX_BYTES)
def test_archives_are_small(version):
    folder = FROZEN.parent / version
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size < MAX_BYTES[version]
