"""Splitting of texts that are too long for the model, and joining of translations."""

import re
from typing import NamedTuple

import numpy as np

from keras_transformer.decoding.batches import WHITE_SPACE
from keras_transformer.decoding.batches import encode_texts
from keras_transformer.decoding.batches import is_blank

# The end of a sentence, with its closing brackets and quotation marks. No space is
# required after ideographic full stops.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*")
_SPACE = re.compile(r"\s+")


class Translation(NamedTuple):
    """A translation and its score, `log-probability / penalty(length)`."""

    text: str
    score: float


def segment_texts(tokenizer, texts, max_source_length, warn):
    """Encodes texts to source rows.

    Args:
        tokenizer: Tokenizer of the source.
        texts: List of str.
        max_source_length: Maximum length of a row, end id included.
        warn: Function of a text's index and a message, called for texts that are split.

    Returns:
        For each text a list of rows: one, several if it is too long, none if it is
        blank.
    """
    max_length = max_source_length - 1

    def lengths(parts):
        return [len(ids) for ids in encode_texts(tokenizer, parts)]

    segments = []
    encoded = encode_texts(tokenizer, texts)
    for index, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
        if is_blank(text):
            segments.append([])
            continue
        rows = [ids]
        if len(ids) > max_length:
            parts = split_text(text, max_length, lengths)
            rows = encode_texts(tokenizer, parts)
            warn(
                index,
                f"{len(ids)} subwords exceed max_source_length={max_source_length}. "
                f"The text was translated in {len(parts)} segments.",
            )
        segments.append([[*row[:max_length], tokenizer.end_id] for row in rows])
    return segments


def split_text(text, max_length, lengths):
    """Splits `text` into segments that are short enough.

    A text that is too long is halved: after the end of a sentence near the middle, else
    at white space, else between two characters, until every segment fits.

    Args:
        text: A text.
        max_length: Maximum length of a segment.
        lengths: Function from a list of texts to a list of their lengths.

    Returns:
        List of segments in order, stripped, none of them blank. A single character is
        never split, even if it is too long.
    """
    segments = [text]
    while True:
        too_long = [
            length > max_length and len(segment) > 1
            for segment, length in zip(segments, lengths(segments), strict=True)
        ]
        if not any(too_long):
            return segments
        halved = [
            part.strip(WHITE_SPACE)
            for segment, is_too_long in zip(segments, too_long, strict=True)
            for part in (_halve(segment) if is_too_long else (segment,))
        ]
        segments = [segment for segment in halved if segment]


def _halve(text):
    middle = len(text) // 2
    for pattern, margin in (
        (_SENTENCE_END, len(text) // 4),
        (_SPACE, len(text) // 4),
        (_SPACE, 1),
    ):
        cuts = [
            match.end()
            for match in pattern.finditer(text)
            if margin <= match.end() <= len(text) - margin and match.end() < len(text)
        ]
        if cuts:
            middle = min(cuts, key=lambda cut: abs(cut - len(text) // 2))
            break
    return text[:middle], text[middle:]


def join_segments(segments):
    """Joins the n-best lists of a line's segments to the n-best list of the line.

    The i-th best translation joins the i-th best of each segment, or its last one; its
    score is the sum of their scores. An empty list yields the empty translation.

    Args:
        segments: For each segment, a list of `Translation`, best first.

    Returns:
        List of `Translation`, best first.
    """
    if not segments:
        return [Translation("", 0.0)]
    if len(segments) == 1:
        return segments[0]
    joined = []
    for rank in range(max(map(len, segments))):
        parts = [ranked[min(rank, len(ranked) - 1)] for ranked in segments]
        joined.append(
            Translation(
                " ".join(part.text for part in parts if part.text),
                sum(part.score for part in parts),
            )
        )
    return joined


def merge_equal_texts(ranked, n):
    """Returns the `n` best translations of different texts.

    Several sequences of subwords may spell one text. The first has the best score.

    Args:
        ranked: List of `Translation`, best first.
        n: Maximum length of the result.
    """
    best = {}
    for each in ranked:
        best.setdefault(each.text, each)
    return list(best.values())[:n]


def translations_of(tokenizer, sequences, scores):
    """Yields for each sentence a list of `Translation`, best first.

    Args:
        tokenizer: Tokenizer of the target.
        sequences: int32 `[batch, n, length]`.
        scores: float32 `[batch, n]`, -inf for empty slots, which come last.
    """
    rows = np.reshape(sequences, (-1, sequences.shape[2]))
    texts = tokenizer.detokenize(rows).numpy()
    texts = np.reshape(texts, sequences.shape[:2])
    for row, row_scores in zip(texts, scores, strict=True):
        ranked = [
            Translation(text.decode("utf-8", "replace"), float(score))
            for text, score in zip(row, row_scores, strict=True)
        ]
        # If all scores are NaN, the first hypothesis is still returned.
        yield [each for each in ranked if each.score > -np.inf] or ranked[:1]
