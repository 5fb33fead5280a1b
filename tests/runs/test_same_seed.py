"""Equal seeds give equal losses, weights and translations; other seeds do not."""

import keras
import numpy as np
import pytest

from keras_transformer.opening import open_model
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train
from keras_transformer.saving.names import read_metrics
from keras_transformer.training import trainer

STEPS = 100
TEXTS = ["three miles", "May 5, 2021", "12%"]


def assert_equal_weights(folders):
    one, other = (
        keras.saving.load_model(folder / "model.keras", compile=False).get_weights()
        for folder in folders
    )
    for weight, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.slow  # Three runs of 100 steps.
@pytest.mark.fault(
    "F31",
    "the same seed gives the same losses, weights and translations, another one other "
    "losses",
)
def test_same_seed_gives_same_results(tmp_path, monkeypatch, record_property):
    fit, losses = trainer.Trainer.fit, {}
    # With `log_steps=1`, the log has the loss of every step.
    monkeypatch.setattr(
        trainer.Trainer, "fit", lambda *args, **kw: fit(*args, log_steps=1, **kw)
    )
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        settings = [
            *("data.size=400", "data.held_out=12", "tokenizer.vocabulary_size=370"),
            "model={size: tiny, num_layers: 1, d_model: 16, d_ff: 24, num_heads: 2}",
            *("model.dropout=0.2", f"training.steps={STEPS}"),
            *("training.batch_tokens=220", "training.warmup_steps=20"),
            *("training.validation_bleu=false", f"training.seed={seed}"),
            "decoding.extra_length=5",
        ]
        train(load_recipe("phrases", settings), tmp_path / name, progress=False)
        rows = read_metrics(tmp_path / name)
        losses[name] = [row["loss"] for row in rows if row["split"] == "train"]
    assert len(losses["first"]) == STEPS
    assert losses["first"][-1] < losses["first"][0]
    assert losses["again"] == losses["first"]
    equal = map(np.equal, losses["first"], losses["other"])
    assert sum(equal) < 5
    folders = tmp_path / "first", tmp_path / "again"
    assert_equal_weights(folders)
    first, again = (open_model(folder).translate(TEXTS) for folder in folders)
    assert first == again
    record_property("happened", f"bit-identical losses of {STEPS} steps")


@pytest.mark.slow  # Two runs with 12,000 subwords.
def test_runs_with_a_large_vocabulary_are_equal(tmp_path):
    """TensorFlow must not add the gradients of shared embeddings in any order."""
    letters = np.random.default_rng(5).choice(list("abcdefghij"), (9_000, 6))
    words = ["".join(word) for word in letters]
    for name, shift in (("source", 0), ("target", 4)):
        lines = [" ".join(words[i + shift : i + shift + 8]) for i in range(8_900)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    settings = [
        f"data.train={{source: {tmp_path}/source, target: {tmp_path}/target}}",
        "tokenizer.vocabulary_size=12_000",
        "model={num_layers: 2, d_model: 256, d_ff: 512, num_heads: 8, dropout: 0.1}",
        *("training.steps=8", "training.warmup_steps=4"),
        *("training.batch_tokens=2_000", "training.parallel_parts=2"),
    ]
    folders = tmp_path / "first", tmp_path / "again"
    for folder in folders:
        train(load_recipe("files", settings), folder, progress=False)
    assert_equal_weights(folders)
