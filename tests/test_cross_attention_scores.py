"""Where the decoder looks, against the paper's formulas in numpy."""

import math

import keras
import numpy as np
import paper_in_numpy as paper
import pytest
from layer_checks import numpy
from layer_checks import randomize

import keras_transformer as kt

SOURCES = [[11, 4, 40, 9, 3], [23, 8, 3]]
TARGETS = [[2, 17, 4], [2, 30, 30, 5, 6, 12, 39]]


def built(**options):
    keras.utils.set_random_seed(6)
    model = kt.Transformer(
        **{"vocabulary_size": 41, "num_layers": 3, "d_model": 12, "d_ff": 17},
        **{"num_heads": 2, **options},
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    randomize(model, 5)
    for layer in model.decoder.layers:
        # Heads of a new model look everywhere alike.
        kernel = layer.cross_attention.query_dense.kernel
        kernel.assign(kernel * 10)
    return model


def padded(rows, length, pad_id):
    return np.array([row + [pad_id] * (length - len(row)) for row in rows], "int32")


def inputs(pad_id=0):
    # One column of padding more than the longest source needs, and none of target.
    return {
        "source_ids": padded(SOURCES, 6, pad_id),
        "target_ids": padded(TARGETS, 7, pad_id),
    }


def expected_scores(model, source_ids, target_ids):
    """`[num_layers, num_heads, target_length, source_length]`, number by number."""
    x = paper.embed(model, model.source_positions, source_ids)
    encoder_output = paper.stack(model.encoder, x, paper.encoder_layer)
    x = paper.embed(model, model.target_positions, target_ids)
    scores = np.zeros(
        (model.num_layers, model.num_heads, len(target_ids), len(source_ids))
    )
    for number, layer in enumerate(model.decoder.layers):
        query = paper.add_norm(
            layer.self_attention_add_norm,
            x,
            lambda y: paper.multi_head_attention(
                layer.self_attention,  # noqa: B023
                y,
                y,
                causal=True,
            ),
        )
        if model.normalization == "pre":
            query = paper.layer_norm(layer.cross_attention_add_norm.layer_norm, query)
        attention = layer.cross_attention
        query = query @ paper.array(attention.query_dense.kernel)
        key = encoder_output @ paper.array(attention.key_dense.kernel)
        dim = query.shape[1] // model.num_heads
        for head in range(model.num_heads):
            part = slice(head * dim, (head + 1) * dim)
            for i, row in enumerate(query):
                logits = key[:, part] @ row[part] / math.sqrt(dim)
                scores[number, head, i] = paper.softmax(logits)
        x = paper.decoder_layer(layer, x, encoder_output)
    return scores


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "pre"},
        {"key_dim": 5, "value_dim": 2},
        {"positions": "learned", "max_length": 8},
        {"pad_id": 7, "dropout": 0.4, "attention_dropout": 0.5},
    ],
)
def test_equal_the_papers_formula(options):
    model = built(**options)
    scores = numpy(model.cross_attention_scores(inputs(model.pad_id)))
    assert scores.shape == (2, 3, 2, 7, 6)
    assert scores.dtype == "float32"
    for row, source_ids, target_ids in zip(scores, SOURCES, TARGETS, strict=True):
        expected = expected_scores(model, source_ids, target_ids)
        assert np.ptp(expected, axis=-1).max() > 0.3
        real = row[:, :, : len(target_ids), : len(source_ids)]
        np.testing.assert_allclose(real, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_rows_sum_to_one_over_the_sources_tokens(dtype):
    scores = numpy(built(dtype=dtype).cross_attention_scores(inputs()))
    assert scores.dtype == "float32"
    np.testing.assert_allclose(scores[0, ..., :5].sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(scores[1, ..., :3].sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(scores[0, ..., 5:], 0)
    np.testing.assert_array_equal(scores[1, ..., 3:], 0)
