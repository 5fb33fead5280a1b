"""Marian's beam search in NumPy, to explain translations that differ.

Marian removes a hypothesis that ends from the beam and does not replace it, so the beam
narrows. `kt.BeamSearch` always keeps `beam_size` unfinished hypotheses.
"""

import numpy as np


def marian_search(next_log_probs, ids, beam_size, normalize, max_length):
    """Returns the best translation of one sentence by Marian's rule.

    Args:
        next_log_probs: Function that takes a list of rows of ids, of equal length and
            without start. Returns the log-probabilities of the next ids, `[rows, ids]`.
        ids: `SpecialIds`.
        beam_size: Width of the beam at first. Every hypothesis that ends narrows it.
        normalize: Exponent of the length by which scores are divided.
        max_length: Number of ids, with the end, after which all hypotheses end.

    Returns:
        List of ids without start, with the end unless `max_length` cut it off.
    """
    rows, totals, width = [[]], np.zeros(1), beam_size
    ended = []
    for length in range(1, max_length + 1):
        log_probs = np.array(next_log_probs(rows), np.float32)
        log_probs[:, ids.unknown] = -np.inf
        candidates = totals[:, None] + log_probs
        best = np.argsort(-candidates, axis=None, kind="stable")[:width]
        parents, tokens = np.unravel_index(best, candidates.shape)
        found = [
            ([*rows[parent], int(token)], candidates[parent, token])
            for parent, token in zip(parents, tokens, strict=True)
        ]
        is_last = length == max_length
        ended += [
            (total / length**normalize, row)
            for row, total in found
            if is_last or row[-1] == ids.end
        ]
        alive = [pair for pair in found if pair[0][-1] != ids.end]
        if not alive:
            break
        rows, totals = [row for row, _ in alive], np.array([each for _, each in alive])
        width = len(rows)
    return max(ended, key=lambda pair: pair[0])[1]
