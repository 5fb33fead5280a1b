"""`Transformer.attention_scores` against the paper's formulas in NumPy."""

import math

import keras
import numpy as np
import paper_in_numpy as paper
import pytest
import small_transformers
from layer_checks import numpy
from small_transformers import SOURCES, TARGETS


def build_model(**options):
    model = small_transformers.build_model(
        **{"seed": 6, "num_layers": 3, "num_heads": 2, **options}
    )
    attentions = [layer.self_attention for layer in model.encoder.layers]
    for layer in model.decoder.layers:
        attentions += layer.self_attention, layer.cross_attention
    for attention in attentions:
        # With smaller queries, all scores of a head would be almost equal.
        kernel = attention.query_dense.kernel
        kernel.assign(kernel * 10)
    return model


def inputs(pad_id=0):
    # The longest source has 5 ids, so every source row has padding.
    return small_transformers.inputs(source_extra=1, pad_id=pad_id)


def scores_of(attention, query, key, first_key, last_key):
    """Returns the scores `[num_heads, queries, keys]`, one head and query at a time.

    Query i attends to keys `first_key(i)` to `last_key(i)`, both included.
    """
    query = query @ paper.array(attention.query_dense.kernel)
    key = key @ paper.array(attention.key_dense.kernel)
    dim = query.shape[1] // attention.num_heads
    scores = np.zeros((attention.num_heads, len(query), len(key)))
    for head in range(attention.num_heads):
        part = slice(head * dim, (head + 1) * dim)
        for i, row in enumerate(query):
            seen = range(max(first_key(i), 0), min(last_key(i), len(key) - 1) + 1)
            logits = key[seen, part] @ row[part] / math.sqrt(dim)
            scores[head, i, seen] = paper.softmax(logits)
    return scores


def self_scores(layer, x, causal, window=None):
    if layer.normalization == "pre":
        x = paper.layer_norm(layer.self_attention_add_norm.layer_norm, x)
    # A window of w positions contains the query's own.
    window = window or 2 * len(x)
    before, after = (window - 1, 0) if causal else ((window - 1) // 2, window // 2)
    return scores_of(
        layer.self_attention, x, x, lambda i: i - before, lambda i: i + after
    )


def cross_scores(layer, x, encoder_output):
    query = paper.add_norm(
        layer.self_attention_add_norm,
        x,
        lambda y: paper.multi_head_attention(layer.self_attention, y, y, causal=True),
    )
    if layer.normalization == "pre":
        query = paper.layer_norm(layer.cross_attention_add_norm.layer_norm, query)
    return scores_of(
        layer.cross_attention,
        query,
        encoder_output,
        lambda i: 0,
        lambda i: len(encoder_output),
    )


def expected_scores(model, source_ids, target_ids):
    """Returns {kind: scores `[layers, heads, queries, keys]`} of one unpadded pair."""
    x = paper.embed(model, "source", source_ids)
    found = {"encoder": [], "decoder": [], "cross": []}
    encoder_output = paper.stack(model.encoder, x, paper.encoder_layer)
    for layer in model.encoder.layers:
        found["encoder"].append(self_scores(layer, x, causal=False))
        x = paper.encoder_layer(layer, x)
    x = paper.embed(model, "target", target_ids)
    for layer in model.decoder.layers:
        found["decoder"].append(self_scores(layer, x, causal=True))
        found["cross"].append(cross_scores(layer, x, encoder_output))
        x = paper.decoder_layer(layer, x, encoder_output)
    return {kind: np.stack(scores) for kind, scores in found.items()}


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
def test_attention_scores_match_the_paper_in_numpy(options):
    # float64, because the large logits cause large rounding errors in float32.
    model = build_model(dtype="float64", **options)
    scores = {
        kind: numpy(found)
        for kind, found in model.attention_scores(inputs(model.pad_id)).items()
    }
    assert {kind: found.shape for kind, found in scores.items()} == {
        "encoder": (2, 3, 2, 6, 6),
        "decoder": (2, 3, 2, 7, 7),
        "cross": (2, 3, 2, 7, 6),
    }
    for row, (source_ids, target_ids) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = expected_scores(model, source_ids, target_ids)
        for kind, found in scores.items():
            _, _, num_queries, num_keys = expected[kind].shape
            real = found[row, :, :, :num_queries, :num_keys]
            np.testing.assert_allclose(real, expected[kind], atol=5e-5)
            # Scores that are all equal would hide a wrong query or key.
            assert np.ptp(expected[kind], axis=-1).max() > 0.3
            # Scores of padding are zero.
            assert np.all(found[row, :, :, :num_queries, num_keys:] == 0)


def test_attention_scores_with_window_match_the_paper_in_numpy():
    model = build_model(dtype="float64", attention_window=3)
    scores = model.attention_scores(inputs())
    for kind, ids, stack, side in (
        ("encoder", SOURCES[0], model.encoder, "source"),
        ("decoder", TARGETS[0], model.decoder, "target"),
    ):
        x = paper.embed(model, side, ids)
        expected = self_scores(stack.layers[0], x, kind == "decoder", window=3)
        part = numpy(scores[kind])[0, 0, :, : len(ids), : len(ids)]
        np.testing.assert_allclose(part, expected, atol=5e-5)
    assert np.any(numpy(scores["encoder"])[0, 0, :, :5, :5] == 0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_decoder_output_has_the_scores(dtype):
    model = build_model(dtype=dtype)
    found, layers = model.decoder_output(inputs(), return_attention_scores=True)
    cross = model.attention_scores(inputs())["cross"]
    assert keras.backend.standardize_dtype(cross.dtype) == "float32"
    np.testing.assert_allclose(numpy(cross).sum(axis=-1), 1, rtol=1e-6)
    for number, (_, each) in enumerate(layers):
        np.testing.assert_array_equal(numpy(each), numpy(cross)[:, number])
    without = model.decoder_output(inputs())
    np.testing.assert_array_equal(numpy(found), numpy(without))
