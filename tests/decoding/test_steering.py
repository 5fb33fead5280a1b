"""Settings against repetitions, short and incomplete translations."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import (
    END,
    START,
    assert_n_best,
    beam,
    log_softmax,
    padded,
    penalty,
    random_tables,
    strip,
    table_cache,
    table_step,
)
from small_transformers import built

import keras_transformer as kt
from keras_transformer.decoding import (
    BeamSearch,
    Ensemble,
    SpecialIds,
    alignment_scores,
    beam_search,
    score_ids,
    translate_ids,
)
from keras_transformer.decoding.required import required_row
from keras_transformer.decoding.steering import SteeredDecoder
from keras_transformer.decoding.warnings import find_loop, mean_log_probs

TOKENS = (4, 5, 6)
SETTINGS = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"min_length": 4},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3, "min_length": 5},
]


def ngrams(ids, size):
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


def steered(table, no_repeat_ngram_size=0, repetition_penalty=1.0, min_length=0):
    """Returns the function of `beam` for a table model, by the settings' meaning."""

    def log_probs(ids):
        logits = table[tuple([START, START, *ids][-2:])].astype("float64")
        for token in {*ids}:
            factor = repetition_penalty ** (1 if logits[token] < 0 else -1)
            logits[token] *= factor
        if size := no_repeat_ngram_size:
            for token in range(len(logits)):
                if (*ids, token)[-size:] in ngrams(ids, size) and len(ids) >= size - 1:
                    logits[token] = -np.inf
        if len(ids) < min_length:
            logits[END] = -np.inf
        return log_softmax(logits)

    return log_probs


def search(tables, settings, max_length, n_best=1, drop_finished=True):
    batch, rows = len(tables), settings.beam_size
    decoder = SteeredDecoder(table_step(rows), settings, rows, SpecialIds())
    cache, context = decoder.wrap(
        *(table_cache(batch, rows), {"tables": tables}),
        *(np.zeros((batch, 1), "int32"), max_length),
    )
    sequences, scores = beam_search(
        *(decoder, cache, context, batch, max_length, settings),
        n_best=n_best,
        drop_finished=drop_finished,
    )
    return np.array(sequences), np.array(scores)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_search_matches_exhaustive_and_plain_search(options):
    tables = random_tables(seed=2, batch=5)
    wide = search(tables, BeamSearch(4 * 3**3, **options), 5, 3)
    narrow = search(tables, BeamSearch(3, **options), 11, 2, drop_finished=False)
    for i, table in enumerate(tables):
        log_probs, found = steered(table, **options), []
        for length in range(1, 6):
            for body in itertools.product(TOKENS, repeat=length - 1):
                ids = [*body, END]
                total = sum(log_probs(ids[:k])[ids[k]] for k in range(length))
                if total > -np.inf:
                    found.append((total / penalty("gnmt", 0.6, length), ids))
        found = sorted(found, key=lambda pair: -pair[0])[:3]
        if found:
            assert_n_best(wide[0][i], wide[1][i], found)
        expected = beam(log_probs, 3, 11, "gnmt", 0.6, TOKENS, 2)
        expected = [pair for pair in expected if pair[0] > -np.inf]
        assert_n_best(narrow[0][i], narrow[1][i], expected)


@pytest.fixture(scope="module")
def model():
    model = built(7, 2, d_model=12, d_ff=20, num_heads=2, seed=7)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(weight * 2.0)
    return model


SOURCES = np.array([[4, 6, 5, 6, END], [5, 4, END, 0, 0]], "int32")


def translate(model, search, is_compiled=False, **options):
    def run(ids):
        return translate_ids(model, ids, search, num_results=3, **options)

    if is_compiled:  # takes longer than the few steps of a search
        run = tf.function(run, autograph=False)
    return [each.numpy() for each in run(tf.constant(SOURCES))]


def test_coverage_penalty_matches_its_formula(model):
    """Wu et al. (2016), equation 14, over all sequences of up to four tokens."""
    options = {"extra_length": 10, "max_length_ratio": 0.7, "coverage_penalty": 0.8}
    wide = BeamSearch(4 * 3**3, 0.6, **options)
    sequences, scores = translate(Ensemble([model, model]), wide, is_compiled=True)
    changed = 0
    for row, ranked, found_scores in zip(SOURCES, sequences, scores, strict=True):
        source = row[: np.count_nonzero(row)]
        limit = int(np.ceil(0.7 * len(source)))
        bodies = [
            each for n in range(limit) for each in itertools.product(TOKENS, repeat=n)
        ]
        targets = padded([[*body, END] for body in bodies])
        inputs = padded([[START, *body] for body in bodies])
        sources = np.tile(source, (len(targets), 1))
        log_probs = score_ids(model, sources, inputs, targets).numpy()
        attention = alignment_scores(model, sources, inputs).numpy()
        attention = (attention * (targets != 0)[:, :, None]).sum(1)
        coverage = np.log(np.minimum(attention, 1)).sum(1)
        lengths = np.count_nonzero(targets, axis=1)
        plain = log_probs / penalty("gnmt", 0.6, lengths)
        expected = plain + 0.8 * coverage
        order = np.argsort(-expected)[:3]
        assert [strip(ids) for ids in ranked] == [[*bodies[i], END] for i in order]
        np.testing.assert_allclose(found_scores, expected[order], rtol=1e-4)
        changed += np.argmax(plain) != order[0]
    assert changed


def test_prefixes_are_forced_but_not_counted(model):
    settings = BeamSearch(3, no_repeat_ngram_size=1, min_length=2, extra_length=4)
    prefix_ids = np.array([[5, 5, 5], [4, 0, 0]], "int32")
    sequences, _ = translate(model, settings, prefix_ids=prefix_ids)
    for row, prefix in zip(sequences[:, 0], ([5, 5, 5], [4]), strict=True):
        ids, size = strip(row), len(prefix)
        assert ids[:size] == prefix
        rest = ids[size:]
        assert len(rest) >= 2 and len({*rest}) == len(rest) and not {*rest} & {*prefix}


def test_required_phrases_may_repeat(model):
    settings = BeamSearch(3, no_repeat_ngram_size=1, min_length=2, extra_length=4)
    phrases = [[[[5, 6]], [[5, 4]]], [[[6]], [[6]]]]
    required = padded([[*required_row(each), 0] for each in phrases])
    sequences, scores = translate(model, settings, required_ids=required)
    assert np.all(scores[:, 0] > -50)
    assert all(END in row for row in sequences[:, 0])
    first, second = map(strip, sequences[:, 0])
    assert {(5, 6), (5, 4)} <= {*ngrams(first, 2)} and second.count(6) == 2


def test_forced_first_tokens_are_not_counted(model):
    settings = BeamSearch(3, min_length=2, extra_length=4)
    sequences, scores = translate(model, settings, first_ids=np.array([4, 6], "int32"))
    assert all(len(strip(row)) >= 4 for row in sequences[:, 0])
    settings = BeamSearch(3, extra_length=4)
    sequences, scores = translate(model, settings, first_ids=np.array([4, 6], "int32"))
    means = mean_log_probs(sequences, scores, settings, 0, 1)
    for row, first, mean, source in zip(
        sequences[:, 0], (4, 6), means, SOURCES, strict=True
    ):
        ids = strip(row)
        assert ids[0] == first
        labels = padded([[0, *ids[1:]]])
        sums = score_ids(model, source[None], padded([[START, *ids[:-1]]]), labels)
        np.testing.assert_allclose(mean, sums[0] / (len(ids) - 1), rtol=1e-4)


def test_looping_translations_stop_looping(tiny_model):
    """A model that was never trained repeats itself until the maximum length."""
    greedy = {"search": BeamSearch(1), "warn": lambda *_: None}
    translator = kt.Translator(*tiny_model, **greedy)
    lines = ["der Hund läuft", "ein Hund und noch ein Hund", "die Katze schläft"]
    looping = translator.translate(lines)
    assert any(find_loop(*pair) for pair in zip(lines, looping, strict=True))
    found = translator.with_search(no_repeat_ngram_size=2).translate(lines)
    assert not any(find_loop(*pair) for pair in zip(lines, found, strict=True))
