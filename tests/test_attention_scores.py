"""Where every layer looks, against the paper's formulas in numpy."""

import math

import numpy as np
import paper_in_numpy as paper
import pytest
from layer_checks import numpy
from test_cross_attention_scores import SOURCES
from test_cross_attention_scores import TARGETS
from test_cross_attention_scores import built
from test_cross_attention_scores import inputs


def sharpened(**options):
    model = built(**options)
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            # Heads of a new model look everywhere alike.
            kernel = layer.self_attention.query_dense.kernel
            kernel.assign(kernel * 10)
    return model


def self_scores(layer, x, causal, window=None):
    """One layer's, position by position."""
    if layer.normalization == "pre":
        x = paper.layer_norm(layer.self_attention_add_norm.layer_norm, x)
    attention = layer.self_attention
    query = x @ paper.array(attention.query_dense.kernel)
    key = x @ paper.array(attention.key_dense.kernel)
    dim = query.shape[1] // attention.num_heads
    scores = np.zeros((attention.num_heads, len(x), len(x)))
    for head in range(attention.num_heads):
        part = slice(head * dim, (head + 1) * dim)
        for i in range(len(x)):
            first, last = 0, i if causal else len(x) - 1
            if window:
                first = i - window + 1 if causal else i - (window - 1) // 2
                last = i if causal else i + window // 2
            seen = range(max(first, 0), min(last, len(x) - 1) + 1)
            logits = key[seen, part] @ query[i, part] / math.sqrt(dim)
            scores[head, i, seen] = paper.softmax(logits)
    return scores


@pytest.mark.parametrize(
    "options", [{}, {"normalization": "pre"}, {"pad_id": 7, "dropout": 0.4}]
)
def test_self_attention_equals_the_papers_formula(options):
    model = sharpened(**options)
    scores = {
        kind: numpy(found)
        for kind, found in model.attention_scores(inputs(model.pad_id)).items()
    }
    assert {kind: found.shape for kind, found in scores.items()} == {
        "encoder": (2, 3, 2, 6, 6),
        "decoder": (2, 3, 2, 7, 7),
        "cross": (2, 3, 2, 7, 6),
    }
    cross = numpy(model.cross_attention_scores(inputs(model.pad_id)))
    np.testing.assert_array_equal(scores["cross"], cross)
    for row, (source_ids, target_ids) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        n, m = len(source_ids), len(target_ids)
        x = paper.embed(model, model.source_positions, source_ids)
        memory = paper.stack(model.encoder, x, paper.encoder_layer)
        for number, layer in enumerate(model.encoder.layers):
            expected = self_scores(layer, x, causal=False)
            found = scores["encoder"][row, number]
            np.testing.assert_allclose(found[:, :n, :n], expected, atol=1e-4)
            assert np.all(found[:, :, n:] == 0)
            x = paper.encoder_layer(layer, x)
        y = paper.embed(model, model.target_positions, target_ids)
        for number, layer in enumerate(model.decoder.layers):
            expected = self_scores(layer, y, causal=True)
            found = scores["decoder"][row, number]
            np.testing.assert_allclose(found[:, :m, :m], expected, atol=1e-4)
            y = paper.decoder_layer(layer, y, memory)


def test_a_window_bounds_what_is_seen():
    model = sharpened(attention_window=3)
    scores = model.attention_scores(inputs())
    for kind, causal in (("encoder", False), ("decoder", True)):
        found = numpy(scores[kind])[0, 0]
        ids, layer = (
            (SOURCES[0], model.encoder.layers[0])
            if kind == "encoder"
            else (TARGETS[0], model.decoder.layers[0])
        )
        x = paper.embed(model, model.source_positions, ids)
        expected = self_scores(layer, x, causal, window=3)
        part = found[:, : len(ids), : len(ids)]
        np.testing.assert_allclose(part, expected, atol=1e-4)
        assert np.any(expected == 0)
