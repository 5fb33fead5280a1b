"""Files of earlier releases load, and give what they gave then (see README.md)."""

import json
import pathlib
import tarfile

import numpy as np
import pytest

from keras_transformer.opening import open_model
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train

FROZEN = pathlib.Path(__file__).resolve().parent / "v0_2"


@pytest.fixture(scope="module")
def expected():
    return json.loads((FROZEN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Folder with the run and the export."""
    folder = tmp_path_factory.mktemp("frozen")
    for path in FROZEN.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.mark.fault("F32", "loads; identical translations, scores within 1e-3")
@pytest.mark.parametrize("form", ["run", "saved_model"])
def test_frozen_models_translate_and_score_the_same(unpacked, expected, form):
    opened = open_model(unpacked / form)
    rows = expected["translations"]
    sources = [row["source"] for row in rows]
    for row, ((text, score, _),) in zip(rows, opened.n_best(sources, 1), strict=True):
        assert text == row["translation"]
        assert score == pytest.approx(row["score"], abs=1e-3)
    found = [each.log_prob for each in opened.score(sources, expected["targets"])]
    assert found == pytest.approx(expected["log_probabilities"], abs=1e-3)


def test_frozen_keras_file_equals_its_run(unpacked):
    run, file = (open_model(unpacked / name) for name in ("run", "run/model.keras"))
    configs = [each.model.get_config() | {"name": ""} for each in (run, file)]
    assert configs[0] == configs[1]
    weights = run.model.get_weights(), file.model.get_weights()
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert file.tokenizer.fingerprint() == run.tokenizer.fingerprint()
    assert file.search == run.search


@pytest.mark.fault("F32", "training resumes from its checkpoint")
def test_frozen_run_resumes(unpacked, expected):
    run = unpacked / "run"
    steps, validation = expected["resumed"].values()
    # Determinism would hold for all later tests of this process.
    changes = [f"training.steps={steps}", "training.deterministic=false"]
    recipe = load_recipe(run / "config.yaml", changes)
    summary = train(recipe, run, progress=False, allow_changes=True)
    assert summary["steps"] == steps
    found, then = (
        float(text.removeprefix("perplexity ").partition(",")[0])
        for text in (summary["validation"], validation)
    )
    assert found == pytest.approx(then, abs=0.011)
