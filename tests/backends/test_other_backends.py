"""What needs TensorFlow's backend says so before it writes anything."""

import keras
import pytest
from phrases_run import small_recipe
from tiny_export import tiny_model as new_tiny_model

import keras_transformer as kt
from keras_transformer.errors import ModelError
from keras_transformer.export import export_saved_model
from keras_transformer.runs.repetition import repeat
from keras_transformer.runs.table3 import ablate
from keras_transformer.training import TrainingModel


@pytest.mark.parametrize(
    "use",
    [
        lambda model, tokenizer, folder: kt.train(
            small_recipe("training.deterministic=true"), folder
        ),
        lambda model, tokenizer, folder: kt.train(
            small_recipe("training.mixed_precision=bfloat16_matmul"), folder
        ),
        lambda model, tokenizer, folder: repeat(small_recipe(), [1], folder),
        lambda model, tokenizer, folder: ablate(small_recipe(), ["A1"], folder),
        lambda model, tokenizer, folder: export_saved_model(model, tokenizer, folder),
    ],
    ids=["deterministic", "bfloat16_matmul", "repeat", "ablate", "export"],
)
def test_backend_is_checked_before_anything_is_written(use, tmp_path, monkeypatch):
    arguments = (*new_tiny_model(), tmp_path / "new")
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ModelError, match=r"TensorFlow backend\. Received: jax\. Set"):
        use(*arguments)
    assert not (tmp_path / "new").exists()


def test_training_names_the_backends_that_it_runs_on(tmp_path, monkeypatch):
    model, _ = new_tiny_model()
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    for train in (
        lambda: TrainingModel(model),
        lambda: kt.train(small_recipe(), tmp_path / "new"),
    ):
        with pytest.raises(ModelError, match=r"TensorFlow or JAX backend"):
            train()
    assert not (tmp_path / "new").exists()
