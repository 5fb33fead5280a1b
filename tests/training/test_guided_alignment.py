"""Guided alignment of one head: its loss against NumPy, and a head that learns."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    VOCABULARY,
    batch,
    tiny_training_model,
    tiny_transformer,
)

from keras_transformer import training
from keras_transformer.layers import padding_mask


def diagonal(inputs):
    """Aligns target position i with source position i: `[batch, target, source]`."""
    source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
    shape = tf.shape(target_ids)[1], tf.shape(source_ids)[1]
    return tf.eye(*shape, batch_shape=[tf.shape(target_ids)[0]]) > 0


def test_next_words_matches_hand_calculation():
    """The source has the word 10 11 12, the word 20 and the end id 3.

    The target's symbols 5 and 6 stand for words. A target position is aligned with the
    source word whose symbol comes next, or with the end id after the last one.
    """
    # Per id: whether it begins a source word, and whether it stands for a word.
    begins = np.isin(np.arange(30), [10, 20, 3])
    stands = np.isin(np.arange(30), [5, 6])
    aligned = training.next_words(begins, stands)
    source_ids = np.array([[10, 11, 12, 20, 3, 0], [20, 3, 0, 0, 0, 0]])
    target_ids = np.array([[2, 8, 5, 9, 6, 7], [2, 6, 9, 0, 0, 0]])
    found = aligned({"source_ids": source_ids, "target_ids": target_ids}).numpy()
    rows = [[list(np.flatnonzero(row)) for row in rows] for rows in found]
    first, second, end = [0, 1, 2], [3], [4]
    assert rows[0] == [first, first, second, second, end, end]
    assert rows[1][:3] == [[0], [1], [1]]


def test_guided_alignment_loss_matches_hand_calculation():
    rng = np.random.default_rng(3)
    scores = rng.dirichlet(np.ones(5), size=(2, 3, 4)).astype("float32")
    aligned = rng.random((2, 4, 5)) < 0.4
    aligned[0, 1] = False
    weights = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], "float32")
    guided = training.GuidedAlignment(lambda _: aligned, weight=0.7, head=2)
    expected = 0.0
    for row in range(2):
        for place in range(4):
            if weights[row, place] and aligned[row, place].any():
                found = scores[row, 2, place][aligned[row, place]].sum()
                expected -= 0.7 * np.log(found)
    assert expected > 1
    found = guided.loss(tf.constant(scores), {}, tf.constant(weights))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    empty = guided.loss(tf.constant(scores), {}, tf.zeros_like(weights))
    assert float(empty) == 0


@pytest.mark.parametrize(
    ("num_layers", "layer"), [(1, 0), (2, 0), (4, 1), (5, 2), (6, 2)]
)
def test_guided_alignment_uses_last_layer_of_lower_half(num_layers, layer):
    decoder = SimpleNamespace(layers=[None] * num_layers)
    model = SimpleNamespace(num_layers=num_layers, num_heads=2, decoder=decoder)
    assert training.GuidedAlignment(diagonal).layer_index(model) == layer
    assert training.GuidedAlignment(diagonal, layer=0).layer_index(model) == 0
    for wrong in ({"layer": num_layers}, {"head": 2}):
        with pytest.raises(ValueError, match=f"`layer` must be below {num_layers} and"):
            training.GuidedAlignment(diagonal, **wrong).layer_index(model)
    for name in ("weight", "layer", "head"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 0"):
            training.GuidedAlignment(diagonal, **{name: -1})


@pytest.mark.parametrize(
    "consistency", [None, training.Consistency("simcut", weight=0.0, cutoff=0.5)]
)
def test_train_step_adds_guided_alignment_loss(consistency):
    """The expected loss comes from `attention_scores`, which training does not use.

    With SimCut and weight 0, the second pass adds nothing to the loss.
    """
    inputs, labels = batch(0)
    transformer = tiny_transformer(num_layers=3)
    guided = training.GuidedAlignment(diagonal, 0.8, head=1)
    model = training.TrainingModel(
        transformer, guided_alignment=guided, consistency=consistency
    )
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
    scores = np.array(transformer.attention_scores(inputs)["cross"])[:, 1, 1]
    is_token = labels > 0
    aligned = (
        np.array(diagonal(inputs))
        & np.array(padding_mask(inputs["source_ids"]))[:, None, :]
    )
    # Attention to padding is 0. The loss adds 1e-6 before it takes the logarithm.
    found = (scores * aligned).sum(axis=-1) + 1e-6
    has_any = np.array(diagonal(inputs)).any(axis=-1)
    guided = -np.log(found[:, : labels.shape[1]])[is_token & has_any].sum()
    plain = float(training.SmoothedCrossEntropy(0.1)(labels, transformer(inputs)))
    dataset = tf.data.Dataset.from_tensors((inputs, labels))
    loss = model.fit(dataset, shuffle=False, verbose=0).history["loss"][0]
    expected = plain + 0.8 * guided / is_token.sum()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert loss > plain + 0.1


@pytest.mark.parametrize("parts", [1, 2])
def test_mean_of_heads_follows_groups(parts):
    """Groups are those of word alignments. The loss is computed from all heads."""
    inputs, labels = batch(0)
    rng = np.random.default_rng(8)
    groups = {
        name.replace("ids", "groups"): rng.integers(0, 3, ids.shape).astype("int32")
        for name, ids in inputs.items()
    }
    transformer = tiny_transformer(num_layers=2)
    guided = training.GuidedAlignment(training.same_groups, 0.6, layer=1, head=None)
    model = training.TrainingModel(
        transformer, guided_alignment=guided, gradient_accumulation_steps=parts
    )
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
    scores = np.array(transformer.attention_scores(inputs)["cross"])[:, 1].mean(axis=1)
    expected = 0.0
    for row, place in np.argwhere(labels > 0):
        group = groups["target_groups"][row, place]
        if group:
            is_aligned = groups["source_groups"][row] == group
            found = scores[row, place][: len(is_aligned)][is_aligned].sum()
            expected -= np.log(found + 1e-6) if is_aligned.any() else 0.0
    plain = float(training.SmoothedCrossEntropy(0.1)(labels, transformer(inputs)))
    dataset = tf.data.Dataset.from_tensors(({**inputs, **groups}, labels))
    loss = model.fit(dataset, shuffle=False, verbose=0).history["loss"][0]
    assert expected > 1
    expected = plain + 0.6 * expected / np.count_nonzero(labels)
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_guided_head_learns_the_alignment():
    rng = np.random.default_rng(5)
    ids = rng.integers(4, VOCABULARY, (24, 7)).astype("int32")
    inputs = {"source_ids": ids, "target_ids": np.roll(ids, 1, axis=1)}
    inputs["target_ids"][:, 0] = 2
    labels = rng.integers(4, VOCABULARY, ids.shape).astype("int32")
    model = tiny_training_model(keras.optimizers.Adam(0.01), num_layers=3)
    model.change_options(guided_alignment=training.GuidedAlignment(diagonal, head=1))

    def aligned_weight():
        scores = np.array(model.transformer.attention_scores(inputs)["cross"])
        return np.einsum("btt->", scores[:, 1, 1]) / ids.size

    assert aligned_weight() < 0.3
    model.fit(
        tf.data.Dataset.from_tensors((inputs, labels)).repeat(100),
        shuffle=False,
        verbose=0,
    )
    assert aligned_weight() > 0.9
