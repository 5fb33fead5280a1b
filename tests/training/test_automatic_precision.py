"""Automatic mixed precision on CPUs: TensorFlow casts matrix products to bfloat16."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train
from keras_transformer.saving.load import load_run
from keras_transformer.training import automatic_bfloat16

CPU = pathlib.Path("/proc/cpuinfo")
pytestmark = pytest.mark.skipif(
    not CPU.is_file() or "avx512_bf16" not in CPU.read_text(),
    reason="this CPU cannot multiply in bfloat16",
)


def product_error():
    """Returns the largest error of a float32 product, relative to its largest value."""
    generator = np.random.default_rng(4)
    left, right = generator.normal(size=(2, 256, 256))
    left, right = left.astype("float32"), right.astype("float32")
    exact = left.astype("float64") @ right.astype("float64")
    # relu(p) - relu(-p) is p.
    product = tf.function(lambda x, y: tf.nn.relu(x @ y) - tf.nn.relu(-x @ y))
    return np.abs(product(left, right) - exact).max() / np.abs(exact).max()


def test_automatic_bfloat16_ends_with_its_context():
    assert product_error() < 1e-6
    with automatic_bfloat16(False):
        assert product_error() < 1e-6
    with automatic_bfloat16():
        # bfloat16 has 8 significant bits.
        assert 1e-4 < product_error() < 2**-7
    assert product_error() < 1e-6


@pytest.mark.slow
def test_recipe_enables_automatic_bfloat16(tmp_path):
    def perplexities(precision):
        settings = [
            "data.size=900",
            "data.held_out=20",
            "tokenizer.vocabulary_size=380",
            "model.num_layers=1",
            "model.dropout=0.0",
            "training.steps=6",
            "training.validation_steps=2",
            "training.validation_bleu=false",
            f"training.mixed_precision={precision}",
        ]
        folder = tmp_path / precision
        train(load_recipe("phrases", settings), folder, progress=False)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line)["perplexity"] for line in lines]
        assert len(found) >= 3
        return found, load_run(folder)[2]

    (exact, _), (rounded, model) = perplexities("null"), perplexities("bfloat16_matmul")
    assert rounded == pytest.approx(exact, 0.02)
    assert rounded != exact
    assert model.dtype_policy.name == "float32"
