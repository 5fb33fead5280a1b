"""What an older release wrote still loads, and translates byte for byte."""

import json
import pathlib
import tarfile

import pytest

from keras_transformer.experiments.train import train
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.open import open_model

FROZEN = pathlib.Path(__file__).resolve().parent / "v1"
MAX_BYTES = 600_000


@pytest.fixture(scope="module")
def expected():
    return json.loads((FROZEN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def unpacked(tmp_path):
    for path in FROZEN.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.fault("F32", "loads, translates byte for byte, scores within 1e-3")
@pytest.mark.parametrize(
    "form", ["run", "run/model.keras", "checkpoint", "saved_model"]
)
def test_what_version_1_wrote_translates_as_then(unpacked, expected, form):
    if form == "checkpoint":
        (unpacked / "run" / "model.keras").unlink()
        form = "run"
    opened = open_model(unpacked / form)
    found = opened.n_best([each["source"] for each in expected], 1)
    assert len({each["translation"] for each in expected}) > 20
    for each, ((text, score),) in zip(expected, found, strict=True):
        assert text.encode() == each["translation"].encode()
        assert score == pytest.approx(each["score"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.fault("F32", "training goes on from its checkpoint")
def test_training_goes_on_from_version_1(unpacked):
    run = unpacked / "run"
    recipe = load_recipe(run / "config.yaml", ["training.steps=2003"])
    summary = train(recipe, run, progress=False)
    assert summary["steps"] == 2003
    assert (run / "checkpoints" / "ckpt-2003.index").is_file()
    # As good as it was: the weights and Adam's state were read.
    assert float(summary["validation"].split()[1].rstrip(",")) < 1.7


def test_they_are_small():
    assert sum(path.stat().st_size for path in FROZEN.iterdir()) < MAX_BYTES
