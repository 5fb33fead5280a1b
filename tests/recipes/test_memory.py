"""Estimates of the memory that training takes."""

import pytest

from keras_transformer.arguments import count_parameters
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.machine import Machine
from keras_transformer.recipes.memory import recipe_memory

FILES = "data.train={source: a, target: b}"


def test_memory_grows_with_the_batch_and_shrinks_with_parts_and_devices():
    def memory(*overrides, devices=1):
        return recipe_memory(load_recipe("files", [FILES, *overrides]), devices)

    one = memory("training.batch_tokens=8000")
    # Doubling the batch does not double the memory, part of which is constant.
    assert memory("training.batch_tokens=16000") > 1.2 * one
    assert memory("training.batch_tokens=16000", devices=2) == pytest.approx(one)
    split = "training.gradient_accumulation_steps=4"
    assert memory("training.batch_tokens=32000", split) == pytest.approx(one, rel=0.2)
    assert memory("training.batch_tokens=8000", "model.preset=base") > 2 * one


def test_memory_includes_the_moving_average():
    settings = [FILES, "model.preset=tiny", "tokenizer.vocabulary_size=8000"]
    average = ["training.average_checkpoints=1", "training.ema_momentum=0.99"]
    one, other = (load_recipe("files", [*settings, *more]) for more in ([], average))
    size = count_parameters(one.model.model_dump(), 8000)
    # The average is a float32, 4 bytes, per weight.
    assert recipe_memory(other) - recipe_memory(one) == 4 * size


@pytest.mark.parametrize(
    "setting",
    [
        "training.consistency={kind: rdrop}",
        "training.stages=[{steps: 9}, {steps: 9, consistency: {kind: simcut}}]",
        "training.stages=[{steps: 9, batch_tokens: 16000}, {steps: 9}]",
    ],
)
def test_memory_follows_from_the_largest_batch(setting, monkeypatch):
    """R-Drop and SimCut compute a batch twice."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    machine = Machine(cores=2, memory=4 << 30)
    monkeypatch.setattr("keras_transformer.recipes.load.find_machine", lambda: machine)
    auto = "training.gradient_accumulation_steps=auto"
    settings = [FILES, "model.preset=small", "tokenizer.vocabulary_size=8000", auto]
    double = load_recipe("files", [*settings, "training.batch_tokens=16000"])
    other = load_recipe("files", [*settings, "training.batch_tokens=8000", setting])
    assert double.training.gradient_accumulation_steps > 1
    assert recipe_memory(other) == recipe_memory(double)
    assert (
        other.training.gradient_accumulation_steps
        == double.training.gradient_accumulation_steps
    )
