"""Perplexity of `TableModel`, whose logits are known, against NumPy in float64."""

import math

import keras
import numpy as np
import pytest

from keras_transformer.decoding.scoring import PairScore
from keras_transformer.evaluation import perplexity
from keras_transformer.evaluation.perplexity import PairScorer, compute_perplexity

VOCABULARY_SIZE = 7


class TableModel(keras.Model):
    """Model whose logits depend on the current target id only."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, inputs, training=None):
        return keras.ops.take(self.table, inputs["target_ids"], axis=0)


@pytest.fixture
def table():
    """Random logits `[current id, next id]`."""
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
    """Two batches of (inputs, labels). Id 0 is padding, 2 the start, and 3 the end."""
    return [
        batch([[2, 4, 5, 6], [2, 5, 0, 0]], [[4, 5, 6, 3], [5, 3, 0, 0]]),
        batch([[2, 6, 6]], [[6, 6, 3]]),
    ]


# The pairs (current id, next id) in `batches`, without padding.
STEPS = [(2, 4), (4, 5), (5, 6), (6, 3), (2, 5), (5, 3), (2, 6), (6, 6), (6, 3)]


def expected_perplexity(table, steps=STEPS):
    return math.exp(-sum(log_prob(table, *step) for step in steps) / len(steps))


def test_perplexity_weights_tokens_equally(table, batches):
    """Padding does not count. The batches may be tensors."""
    expected = pytest.approx(expected_perplexity(table), rel=1e-5)
    model = TableModel(table)
    assert perplexity(model, batches) == expected
    padded = keras.tree.map_structure(
        lambda ids: keras.ops.pad(ids, ((0, 1), (0, 3))), batches
    )
    assert perplexity(model, padded) == expected
    uniform = TableModel(np.zeros((VOCABULARY_SIZE,) * 2, "float32"))
    assert perplexity(uniform, batches) == pytest.approx(VOCABULARY_SIZE, rel=1e-6)


def test_perplexity_counts_unpredictable_ids_as_unknown(table, batches):
    """The model has logits only for ids below 6, so a label of 6 counts as id 1."""
    fewer = table[:, :6]
    steps = [(current, 1 if label == 6 else label) for current, label in STEPS]
    expected = expected_perplexity(fewer, steps)
    assert perplexity(TableModel(fewer), batches) == pytest.approx(expected, rel=1e-5)


def test_perplexity_uses_the_padding_id_of_the_model(table):
    """Id 5 is padding, and id 0 ends the only sentence."""
    model = TableModel(table)
    model.pad_id = 5
    expected = expected_perplexity(table, [(2, 4), (4, 6), (6, 0)])
    batches = [batch([[2, 4, 6, 5]], [[4, 6, 0, 5]])]
    assert perplexity(model, batches) == pytest.approx(expected, rel=1e-5)


def test_scorer_is_traced_once_for_all_datasets(table, batches):
    """Only a trace runs the Python code of `call`, so `calls` counts the traces."""
    calls = []

    class Counted(TableModel):
        def call(self, inputs, training=None):
            calls.append(inputs["target_ids"].shape)
            return super().call(inputs)

    scorer = PairScorer(Counted(table))
    found = [perplexity(scorer, batches[:1]), perplexity(scorer, batches)]
    found.append(perplexity(scorer, batches[::-1]))
    assert len(calls) == 1
    expected = perplexity(TableModel(table), batches)
    assert found[1:] == pytest.approx([expected] * 2, rel=1e-6)


def test_perplexity_rejects_an_empty_dataset(table):
    with pytest.raises(ValueError, match="at least one target subword"):
        perplexity(TableModel(table), [])


def test_perplexity_of_a_diverged_model_is_infinite():
    # The mean losses per token are 709 and 710. exp(710) overflows a float.
    assert compute_perplexity([PairScore(-7090.0, 10)]) == math.exp(709)
    assert compute_perplexity([PairScore(-7000.0, 5), PairScore(-100.0, 5)]) == math.inf
