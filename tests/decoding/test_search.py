"""`translate_ids` with a random `Transformer`, against searches without a KV cache."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import END, START, assert_n_best, beam, log_softmax, strip
from small_transformers import built

import keras_transformer as kt
from keras_transformer.decoding import (
    BeamSearch,
    SpecialIds,
    sample_ids,
    score_ids,
    translate_ids,
)
from keras_transformer.decoding.search import cut_at_end

VOCABULARY = 13


@pytest.fixture(scope="module")
def model():
    model = built(VOCABULARY, 2, d_model=24, d_ff=40, num_heads=3, seed=7)
    # Fresh weights give nearly uniform distributions. With larger ones, results depend
    # on the source, the position, and the history of each step.
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(weight * 2.0)
    return model


@pytest.fixture(scope="module")
def source_ids():
    generator = np.random.default_rng(3)
    rows = np.zeros((6, 11), "int32")
    for row, length in zip(rows, [10, 2, 7, 1, 5, 0], strict=True):
        row[:length] = generator.integers(4, VOCABULARY, length)
        row[length] = END
    return rows


@functools.cache
def compiled(model, n_best=1, drop_finished="auto", **options):
    settings = BeamSearch(extra_length=5, **options)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False
    )
    def search(source_ids):
        return translate_ids(
            model, source_ids, settings, n_best=n_best, drop_finished=drop_finished
        )

    def run(rows):
        return [x.numpy() for x in search(tf.constant(rows))]

    run.function = search
    return run


@functools.cache
def compiled_model(model):
    rows = tf.TensorSpec([None, None], tf.int32)
    return tf.function(
        lambda source_ids, target_ids: model(
            {"source_ids": source_ids, "target_ids": target_ids}
        ),
        input_signature=[rows, rows],
        autograph=False,
    )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_search_with_cache_matches_search_without(model, source_ids, beam_size):
    sequences, scores = compiled(model, beam_size=beam_size)(source_ids)
    found = []
    # The lengths of the first five sources, end ids included. The last source is empty.
    for i, length in enumerate([11, 3, 8, 2, 6]):
        row = source_ids[i][:length]

        def log_probs(ids, row=row):
            """Runs the whole model on all tokens so far."""
            logits = compiled_model(model)(
                row[None], np.array([[START, *ids]], "int32")
            )
            return log_softmax(np.array(logits))[0, -1]

        tokens = range(END + 1, VOCABULARY)
        expected = beam(log_probs, beam_size, length + 5, "gnmt", 0.6, tokens)
        assert_n_best(sequences[i], scores[i], expected)
        found.append(strip(sequences[i, 0]))
    assert len(set(map(tuple, found))) > 2
    # The empty source.
    assert not np.any(sequences[5])
    assert scores[5] == 0


@pytest.mark.fault("F26", "the same tokens and scores")
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.slow), {"beam_size": 1}, {"n_best": 4}],
)
def test_translation_is_independent_of_batch(model, source_ids, options):
    search = compiled(model, **options)
    sequences, scores = search(source_ids)
    for i, row in enumerate(source_ids):
        length = np.count_nonzero(row)
        alone, alone_scores = search(row[None, :length])
        np.testing.assert_array_equal(
            sequences[i, :, : alone.shape[2]], alone[0], strict=True
        )
        assert not np.any(sequences[i, :, alone.shape[2] :])
        np.testing.assert_allclose(scores[i], alone_scores[0], rtol=1e-5)


def test_search_with_buffers_matches_growing_cache(model, source_ids):
    growing = compiled(model, n_best=4)(source_ids)
    fixed = compiled(model, n_best=4, drop_finished=False)(source_ids)
    np.testing.assert_array_equal(growing[0], fixed[0])
    np.testing.assert_allclose(growing[1], fixed[1], rtol=1e-5)


def test_score_ids_matches_search_scores(model, source_ids):
    sequences, scores = compiled(model, n_best=4)(source_ids)
    for rank in range(4):
        kept = np.flatnonzero(np.isfinite(scores[:5, rank]))
        assert kept.size > 1
        labels = sequences[kept, rank]
        target_ids = np.pad(labels, ((0, 0), (1, 0)), constant_values=START)[:, :-1]
        found = score_ids(model, source_ids[kept], target_ids, labels)
        # All labels have logits, so an unknown id is not needed.
        same = score_ids(model, source_ids[kept], target_ids, labels, unknown_id=None)
        np.testing.assert_array_equal(found, same)
        lengths = np.count_nonzero(labels, axis=1)
        penalty = ((5 + lengths) / 6) ** 0.6
        np.testing.assert_allclose(found / penalty, scores[kept, rank], rtol=1e-4)


@pytest.mark.parametrize("search", [translate_ids, sample_ids])
def test_search_rejects_another_padding_id_than_the_model(search):
    model = kt.Transformer(9, num_layers=1, d_model=8, d_ff=8, num_heads=2, pad_id=5)
    message = r"`ids\.pad` must be .*ids\.pad=0, model\.pad_id=5"
    with pytest.raises(ValueError, match=message):
        search(model, [[4, 3]])
    search(model, [[4, 3]], ids=SpecialIds(pad=5))


def test_search_ignores_what_follows_the_first_end_id(model):
    search = compiled(model, beam_size=3)
    other = [7, 8, 9, 7, 6, END]
    expected = search(np.array([[5, 6, END, 0, 0, 0], other], "int32"))
    found = search(np.array([[5, 6, END, 5, END, 5], other], "int32"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    # The source may end with another id than the translations.
    rows = [[5, END, 6, 7, END], [7, 5, 7, 0, 7], [7, 7, 0, 0, 0], [0, 0, 0, 0, 0]]
    ids, is_valid = cut_at_end(np.array(rows), SpecialIds(source_end=7))
    assert keras.ops.convert_to_numpy(ids).tolist() == [
        *([5, END, 6, 7, 0], [7, 0, 0, 0, 0], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0])
    ]
    assert keras.ops.convert_to_numpy(is_valid).all()


@pytest.mark.parametrize("search", [translate_ids, sample_ids])
@pytest.mark.parametrize(
    "row", [[5, 6, 7], [5, 6, 0], [0, 5, END], [5, 0, END], [0, END, 0]]
)
def test_search_rejects_sources_without_an_end_id_after_the_text(model, search, row):
    message = r"must have an end id, and padding only after it. Received: \[\[7, 8, 3\]"
    with pytest.raises(ValueError, match=message):
        search(model, [[7, 8, END], row])
