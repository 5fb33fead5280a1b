import math

import keras
import numpy as np
import pytest

from keras_transformer.decoding.scoring import PairScore
from keras_transformer.evaluation import perplexity
from keras_transformer.evaluation.perplexity import perplexity_of

VOCABULARY_SIZE = 7


class TableModel(keras.Model):
    """Logits of the next id depend on the current target id alone."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, inputs, training=None):
        return keras.ops.take(self.table, inputs["target_ids"], axis=0)


@pytest.fixture
def table():
    return (
        np.random.default_rng(3).normal(size=(VOCABULARY_SIZE,) * 2).astype("float32")
    )


def log_prob(table, current, following):
    row = table[current].astype("float64")
    return row[following] - math.log(np.exp(row).sum())


def batch(target_ids, labels):
    source_ids = np.ones((len(labels), 5), "int32")
    inputs = {"source_ids": source_ids, "target_ids": np.array(target_ids, "int32")}
    return inputs, np.array(labels, "int32")


@pytest.fixture
def batches():
    return [
        batch([[2, 4, 5, 6], [2, 5, 0, 0]], [[4, 5, 6, 3], [5, 3, 0, 0]]),
        batch([[2, 6, 6]], [[6, 6, 3]]),
    ]


STEPS = [(2, 4), (4, 5), (5, 6), (6, 3), (2, 5), (5, 3), (2, 6), (6, 6), (6, 3)]


def test_every_token_weighs_the_same(table, batches):
    mean = sum(log_prob(table, *step) for step in STEPS) / len(STEPS)
    expected = math.exp(-mean)
    assert perplexity(TableModel(table), batches) == pytest.approx(expected, rel=1e-5)


def test_what_the_model_never_puts_out_is_unknown(table, batches):
    """Logits of the ids below 6; the 6s among the labels count as id 1."""
    fewer = table[:, :6]
    steps = [(current, 1 if label == 6 else label) for current, label in STEPS]
    mean = sum(log_prob(fewer, *step) for step in steps) / len(steps)
    expected = math.exp(-mean)
    assert perplexity(TableModel(fewer), batches) == pytest.approx(expected, rel=1e-5)


def test_uniform_model_is_as_perplexed_as_the_vocabulary_is_large(batches):
    model = TableModel(np.zeros((VOCABULARY_SIZE,) * 2, "float32"))
    assert perplexity(model, batches) == pytest.approx(VOCABULARY_SIZE, rel=1e-6)


def test_more_padding_changes_nothing(table, batches):
    padded = [
        (
            {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in inputs.items()},
            np.pad(labels, ((0, 1), (0, 3))),
        )
        for inputs, labels in batches
    ]
    model = TableModel(table)
    assert perplexity(model, padded) == pytest.approx(perplexity(model, batches))


def test_takes_the_pipelines_tensors(table, batches):
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, batches)
    model = TableModel(table)
    assert perplexity(model, tensors) == pytest.approx(perplexity(model, batches))


def test_nothing_to_measure(table):
    with pytest.raises(ValueError, match="at least one target subword"):
        perplexity(TableModel(table), [])


def test_a_model_that_has_diverged_is_infinitely_perplexed():
    # exp(710) is more than a float can be, exp(709) is not.
    assert perplexity_of([PairScore(-7090.0, 10)]) == math.exp(709)
    assert perplexity_of([PairScore(-7000.0, 5), PairScore(-100.0, 5)]) == math.inf
