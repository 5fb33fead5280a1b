"""Segments of texts as Python objects, and functions that join translations."""

import itertools
from typing import NamedTuple

import numpy as np

from keras_transformer.decoding.batches import group_texts
from keras_transformer.errors import NOT_FINITE, ModelError


class Translation(NamedTuple):
    """A translation and its score, `log-probability / penalty(length)`.

    If a text is translated in several segments, their scores are added.
    """

    text: str
    score: float


class Segment(NamedTuple):
    """A part of a text that is translated separately."""

    text_index: int  # index of the text in the list
    is_first: bool  # whether it is the text's first segment that is not blank
    ids: list  # of int, the end id included; empty if the segment is blank
    gap: str  # text before the translation: empty, a space, or line breaks


def segment_texts(tokenizer, texts, max_source_length, warn):
    """Divides texts into segments that fit the model (see `sentences.segment`).

    Args:
        tokenizer: Tokenizer of the source.
        texts: List of str.
        max_source_length: Maximum length of a segment, including the end id.
        warn: Called with a text's index and a message for each text that contains a
            line that is too long.

    Returns:
        List of `Segment`, in the order of the texts, at least one per text.
    """
    # Imported here because it loads TensorFlow.
    from keras_transformer.decoding import sentences

    segments, num_texts = [], 0
    for group in group_texts(texts):
        found = sentences.segment(
            tokenizer.tokenize,
            group,
            max_source_length - 1,
            split_prefix=getattr(tokenizer, "split_language_prefix", None),
        )
        counts = np.zeros(len(group), int)
        rows, gaps = found.ids.to_list(), found.gaps.numpy()
        for index, ids, gap in zip(found.text_index.numpy(), rows, gaps, strict=True):
            row = [*ids, tokenizer.end_id] if ids else []
            is_first = bool(ids and counts[index] == 0)
            counts[index] += bool(ids)
            text_index = num_texts + int(index)
            segments.append(Segment(text_index, is_first, row, gap.decode()))
        lengths, truncated = found.lengths.numpy(), found.truncated.numpy()
        for index in np.flatnonzero(lengths >= max_source_length):
            message = (
                f"{lengths[index] + 1} subwords, including the end id, exceed "
                f"max_source_length={max_source_length}. The text is split into "
                f"{counts[index]} segments."
            )
            if truncated[index]:
                message += " Words that are too long are cut."
            warn(num_texts + int(index), message)
        num_texts += len(group)
    return segments


def join_segments(segments, translations):
    """Joins the n-best lists of segments into n-best lists of texts.

    The i-th best translation of a text consists of the i-th best translations of its
    segments. A segment with fewer translations contributes its last one. The score is
    the sum of the segments' scores. Sampled translations are joined in the same way, by
    their position in the list.

    Args:
        segments: List of `Segment`.
        translations: For each segment, a list of `Translation`, best first.

    Returns:
        For each text, a list of `Translation`, best first.
    """
    pairs = zip(segments, translations, strict=True)
    return [
        _join([(each.gap, ranked) for each, ranked in group])
        for _, group in itertools.groupby(pairs, lambda pair: pair[0].text_index)
    ]


def _join(parts):
    """Joins the (gap, n-best list) pairs of a text."""
    joined = []
    for rank in range(max(len(ranked) for _, ranked in parts)):
        text, score = "", 0.0
        for gap, ranked in parts:
            part = ranked[min(rank, len(ranked) - 1)]
            # Before an empty translation, line breaks are kept, but no space.
            text += gap + part.text if part.text or gap != " " else ""
            score += part.score
        joined.append(Translation(text, score))
    return joined


def merge_equal_texts(ranked, n):
    """Returns the `n` best translations with different texts.

    Different sequences of subwords may have the same text. The best score is kept.

    Args:
        ranked: List of `Translation`, best first.
        n: Maximum length of the result.
    """
    best = {}
    for each in ranked:
        best.setdefault(each.text, each)
    return list(best.values())[:n]


def translations_of(tokenizer, sequences, scores):
    """Yields for each sentence a list of `Translation`, in the order of `sequences`.

    Args:
        tokenizer: Tokenizer of the target.
        sequences: int32 `[batch, n, length]`.
        scores: float32 `[batch, n]`, -inf for empty slots, which come last.

    Raises:
        ModelError: If a score is NaN or infinity.
    """
    if not np.all(scores < np.inf):
        raise ModelError(NOT_FINITE)
    rows = np.reshape(sequences, (-1, sequences.shape[2]))
    texts = tokenizer.detokenize(rows).numpy()
    texts = np.reshape(texts, sequences.shape[:2])
    for row, row_scores in zip(texts, scores, strict=True):
        ranked = [
            Translation(text.decode("utf-8", "replace"), float(score))
            for text, score in zip(row, row_scores, strict=True)
        ]
        # If nothing was found, such as when all is forbidden, the first one is empty.
        yield [each for each in ranked if each.score > -np.inf] or ranked[:1]
