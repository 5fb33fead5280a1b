"""`patience` ends a search at the same step as `decoding_oracles.beam`."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tiny_export
from decoding_oracles import beam, random_tables, strip, table_cache, table_step

from keras_transformer.decoding import BeamSearch, Translator, beam_search
from keras_transformer.export.signatures import Signatures
from keras_transformer.saving.open import open_model

BATCH, BEAM, LENGTH, TOKENS = 23, 4, 13, range(4, 9)
WORDS = ("der", "Hund", "läuft")
TABLES = random_tables(seed=21, batch=BATCH, vocabulary=9)


def search(step=None, batch=BATCH, patience=None, length_penalty=1.0, **options):
    sequences, scores = beam_search(
        step or table_step(BEAM),
        table_cache(batch, BEAM),
        {"tables": TABLES[:batch]},
        batch_size=batch,
        max_length=LENGTH,
        search=BeamSearch(BEAM, length_penalty, "power", patience),
        **options,
    )
    found = [[strip(ids) for ids in row] for row in np.array(sequences)]
    return found, np.array(scores)


def expected(max_finished, n_best=1):
    return [
        beam(table, BEAM, LENGTH, "power", 1.0, TOKENS, n_best, max_finished)
        for table in TABLES
    ]


# The search ends after patience x 4 (rounded) finished hypotheses, but not before there
# are `n_best`.
@pytest.mark.parametrize(
    ("patience", "n_best", "max_finished"),
    [
        (0.05, 1, 1),
        (0.4, 1, 2),
        (0.6, 1, 2),
        (1, 1, 4),
        (2, 1, 8),
        (0.05, 3, 3),
        (1, 4, 4),
    ],
)
@pytest.mark.parametrize("drop_finished", [True, False])
def test_patience_ends_search_when_enough_have_finished(
    patience, n_best, max_finished, drop_finished
):
    found, scores = search(
        patience=patience, n_best=n_best, drop_finished=drop_finished
    )
    for ids, row, pairs in zip(
        found, scores, expected(max_finished, n_best), strict=True
    ):
        missing = n_best - len(pairs)
        assert ids == [sequence for _, sequence in pairs] + [[]] * missing
        scored = [score for score, _ in pairs] + [-np.inf] * missing
        np.testing.assert_allclose(row, scored, rtol=1e-4)


def test_patience_without_length_penalty_never_loses_the_best():
    """Like CTranslate2, which then ends a search only after its best hypothesis."""
    expected = [beam(table, BEAM, LENGTH, "power", 0.0, TOKENS) for table in TABLES]
    few = [beam(t, BEAM, LENGTH, "power", 0.0, TOKENS, 1, 1) for t in TABLES]
    assert few != expected
    for patience in (0.25, 1):
        found = search(patience=patience, length_penalty=0.0)[0]
        assert found == [[ids] for ((_, ids),) in expected]


def test_more_patience_finds_no_worse_scores():
    # Guards the test above, which proves nothing if all of its searches agree.
    scores = [search(patience=patience)[1] for patience in (0.25, 1, 4, None)]
    for fewer, more in itertools.pairwise(scores):
        assert np.all(more >= fewer)
    assert np.any(scores[1] > scores[0])
    assert np.any(scores[3] > scores[1])


def test_patience_reduces_steps():
    steps = {}
    for patience in (1, None):
        count = []

        def counted(*arguments, count=count):
            count.append(1)
            return table_step(BEAM)(*arguments)

        search(counted, batch=1, patience=patience)
        steps[patience] = len(count)
    # The smallest number of steps in which the oracle finishes `BEAM` hypotheses.
    finished, longest = [], 0
    while len(finished) < BEAM:
        longest += 1
        finished = beam(
            TABLES[0], BEAM, longest, "power", 1.0, TOKENS, BEAM, max_finished=BEAM
        )
        finished = [ids for _, ids in finished if ids[-1] == 3]
    assert steps[1] == longest < steps[None]


def test_patience_works_in_translator_export_and_opened_model(tmp_path):
    model, tokenizer = tiny_export.tiny_model()
    rows = model.token_embedding.embeddings.numpy()
    # A hypothesis that is likely to end is also likely to continue with a y.
    rows[tokenizer.end_id] = 1.1 * rows[tokenizer.tokenize(["y"])[0].numpy()[-1]]
    model.token_embedding.embeddings.assign(rows)
    texts = [" ".join(words) for words in itertools.product(WORDS, repeat=3)]
    settings = BeamSearch(length_penalty=3.0, patience=0.25)
    translator = Translator(model, tokenizer, search=settings)
    impatient = translator.translate(texts)
    plain = translator.with_search(patience=None).translate(texts)
    assert impatient != plain

    signatures = Signatures(model, tokenizer, settings)
    found = signatures.translate(tf.constant(texts))["translations"].numpy()
    assert [text.decode() for text in found] == impatient

    model.save(tmp_path / "model.keras")
    tokenizer.save(tmp_path)
    opened = open_model(tmp_path)
    opened = opened.with_search(length_penalty=3.0, patience=0.25)
    assert opened.translate(texts) == impatient


def test_infinite_patience_matches_none():
    found, scores = search(patience=float("inf"))
    plain, plain_scores = search()
    assert found == plain
    np.testing.assert_array_equal(scores, plain_scores)


@pytest.mark.parametrize("patience", [None, 0.5])
def test_n_best_as_tensor_matches_int(patience):
    """Searches with both types take equally many steps and find the same hypotheses."""
    counts = {}
    for table in random_tables(seed=6, batch=4, vocabulary=9):
        for n_best in (1, 2, 4):
            found = []
            for asked in (n_best, tf.constant(n_best)):
                step, steps = table_step(4), []

                def counting(*arguments, step=step, steps=steps):
                    steps.append(arguments)
                    return step(*arguments)

                sequences, scores = beam_search(
                    counting,
                    table_cache(1, 4),
                    {"tables": table[None]},
                    batch_size=1,
                    max_length=13,
                    search=BeamSearch(patience=patience),
                    n_best=asked,
                )
                found.append((len(steps), sequences[0], scores[0]))
            (count, sequences, scores), (same, more, with_scores) = found
            assert count == same
            assert more.shape[0] == 4
            np.testing.assert_array_equal(more[:n_best], sequences)
            np.testing.assert_array_equal(with_scores[:n_best], scores)
            counts.setdefault(n_best, []).append(count)
    # Guards the lines above: `n_best` affects the number of steps.
    assert sum(counts[1]) < sum(counts[2]) < sum(counts[4])
