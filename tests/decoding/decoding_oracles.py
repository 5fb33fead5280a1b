"""Random table models, and searches over them in plain Python without Keras.

A table model stands in for a `Transformer`: it looks up the logits of the next token by
the two tokens before it.
"""

import itertools

import numpy as np

PAD, UNKNOWN, START, END = range(4)
# Constraints of searches: required beginnings, and forbidden sequences of tokens.
PREFIXES = [[5, 4], [], [6]]
SEQUENCES = [(4, 5), (6, 6, 4), (5, 4, 6), (5, 5)]


def random_tables(seed, batch, vocabulary=7, spread=1.5):
    """Returns a table for each sentence of a batch: normally distributed logits.

    The array is float32 `[batch, vocabulary, vocabulary, vocabulary]`. Its last three
    axes are the token before the last one, the last token, and the next one. Padding,
    unknown, and start have probabilities like any other id. `spread` is the standard
    deviation.
    """
    generator = np.random.default_rng(seed)
    shape = (batch, vocabulary, vocabulary, vocabulary)
    return (generator.normal(size=shape) * spread).astype("float32")


def log_softmax(logits):
    logits = logits.astype("float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def table_step(rows_per_sentence):
    """Returns the step function of a table model (see `StepDecoder`).

    The context contains the tables, and the cache the token before the last one. If the
    search does not reorder the cache, or passes other rows of the context, later tokens
    come from the wrong row of a table.
    """
    from keras import ops

    def step(ids, cache, context, index):
        tables = context["tables"]
        vocabulary = tables.shape[-1]
        sentence = ops.arange(ops.shape(ids)[0], dtype="int32") // rows_per_sentence
        row = (sentence * vocabulary + cache["before"]) * vocabulary + ids[:, 0]
        logits = ops.take(ops.reshape(tables, (-1, vocabulary)), row, axis=0)
        return logits, {"before": ids[:, 0]}

    return step


def table_cache(batch, rows_per_sentence):
    return {"before": np.full(batch * rows_per_sentence, START, "int32")}


def padded(rows):
    array = np.zeros((len(rows), max(map(len, rows))), "int32")
    for padded_row, row in zip(array, rows, strict=True):
        padded_row[: len(row)] = row
    return array


def automaton(sequences, vocabulary=7):
    """Returns the automaton that forbids sequences of ids."""
    from keras_transformer.decoding import Phrase, forbidden_transitions

    spellings = [(number,) for number in range(vocabulary)]
    return forbidden_transitions(spellings, [Phrase(each) for each in sequences])


def start(
    tables, rows, max_length, prefixes=None, sequences=None, step=None, **options
):
    """Returns the first five arguments of a search over table models.

    Args:
        tables: Logits (see `random_tables`).
        rows: Number of hypotheses or samples per sentence.
        max_length: Scalar or `[batch]`.
        prefixes: For each sentence, the list of ids that it must begin with.
        sequences: List of forbidden sequences of ids, or their automaton.
        step: Step function. Defaults to `table_step`.
        **options: Other arguments of `ConstrainedDecoder`.
    """
    from keras_transformer.decoding.constraints import ConstrainedDecoder

    decoder = step or table_step(rows)
    batch, vocabulary = tables.shape[:2]
    cache, context = table_cache(batch, rows), {"tables": tables}
    if prefixes is not None or sequences is not None:
        if isinstance(sequences, list):
            sequences = automaton(sequences, vocabulary)
        prefixes = None if prefixes is None else padded(prefixes)
        decoder = ConstrainedDecoder(
            decoder,
            rows,
            max_length,
            prefix_ids=prefixes,
            automaton=sequences,
            **options,
        )
        cache, context = decoder.wrap(cache, context, batch)
    return decoder, cache, context, batch, max_length


def contains_any(ids, sequences):
    """Returns whether `ids` contain one of the sequences."""
    return any(
        tuple(ids[first : first + len(sequence)]) == tuple(sequence)
        for sequence in sequences
        for first in range(len(ids))
    )


def is_allowed(ids, prefix=None, sequences=None):
    """Returns whether a list of ids satisfies the constraints of a sentence.

    A prefix is always generated. If it contains a forbidden sequence, only the tokens
    after it are constrained.
    """
    prefix, sequences = prefix or [], sequences or []
    own = ids[len(prefix) :] if contains_any(prefix, sequences) else ids
    return ids[: len(prefix)] == prefix[: len(ids)] and not contains_any(own, sequences)


def log_probability(table, sequence):
    """Sums a table's log-probabilities along `sequence` (ids without the start)."""
    log_probs = log_softmax(table)
    total, before, last = 0.0, START, START
    for token in sequence:
        total += log_probs[before, last, token]
        before, last = last, token
    return total


def penalty(kind, alpha, length):
    return ((5 + length) / 6) ** alpha if kind == "gnmt" else float(length) ** alpha


def all_finished(table, max_length, kind, alpha, tokens):
    """Returns all pairs (score, sequence) that end within `max_length`, best first.

    The sequences consist of ids in `tokens` and the end id.
    """
    found = []
    for length in range(1, max_length + 1):
        for body in itertools.product(tokens, repeat=length - 1):
            sequence = [*body, END]
            score = log_probability(table, sequence) / penalty(kind, alpha, length)
            found.append((score, sequence))
    return sorted(found, key=lambda pair: -pair[0])


def table_model(table):
    """Returns the function of `beam` that gives a table's log-probabilities."""
    log_probs = log_softmax(table)
    return lambda ids: log_probs[tuple([START, START, *ids][-2:])]


def beam(
    model,
    beam_size,
    max_length,
    kind,
    alpha,
    tokens,
    n_best=1,
    max_finished=None,
    allowed=lambda ids: True,
):
    """Runs beam search in plain Python.

    A step ranks `2 * beam_size` continuations. The search stops at `max_length`, or
    when `max_finished` hypotheses have finished. A beam of one stops at the first.

    Args:
        model: Function of a list of ids, without the start, that returns the
            log-probabilities of the next one.
        beam_size: Number of alive hypotheses.
        max_length: Maximum number of tokens, end id included.
        kind, alpha: Length penalty (see `penalty`).
        tokens: Ids that may be generated besides the end id.
        n_best: Number of hypotheses to return.
        max_finished: Number of finished hypotheses that stop the search. If `None`, it
            stops only at `max_length`.
        allowed: Function that returns whether a list of ids may be generated.

    Returns:
        The `n_best` pairs (score, ids without the start), best first.
    """
    alive, finished = [(0.0, [])], []
    max_finished = 1 if beam_size == 1 else max_finished
    for length in range(1, max_length + 1):
        expanded = [
            (total + log_probs[token], [*ids, token])
            for total, ids in alive
            for log_probs in [model(ids)]
            for token in (END, *tokens)
            if allowed([*ids, token])
        ]
        ranked = sorted(expanded, key=lambda pair: -pair[0])[: 2 * beam_size]
        finished += [
            (total / penalty(kind, alpha, length), ids)
            for total, ids in ranked[:beam_size]
            if ids[-1] == END
        ]
        alive = [pair for pair in ranked if pair[1][-1] != END][:beam_size]
        if max_finished is not None and len(finished) >= max_finished:
            break
    if not finished:
        finished = [
            (total / penalty(kind, alpha, max_length), ids) for total, ids in alive
        ]
    return sorted(finished, key=lambda pair: -pair[0])[:n_best]


def assert_n_best(sequences, scores, expected):
    """Compares one sentence's n-best list with pairs (score, ids), best first.

    Unused rows of the n-best list must contain padding and have score minus infinity.
    """
    found = [strip(row) for row in sequences[: len(expected)]]
    assert found == [ids for _, ids in expected]
    np.testing.assert_allclose(
        scores[: len(expected)], [score for score, _ in expected], rtol=1e-4
    )
    assert np.all(scores[len(expected) :] == -np.inf)
    assert np.all(sequences[len(expected) :] == PAD)


def strip(sequence):
    """Returns the ids of a row before its padding, which must be at the end."""
    ids = [int(i) for i in sequence]
    length = ids.index(PAD) if PAD in ids else len(ids)
    assert not any(ids[length:]), ids
    assert END not in ids[: length - 1], ids
    return ids[:length]
