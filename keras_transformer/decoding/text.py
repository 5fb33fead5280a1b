"""Text to text, in TensorFlow operations: segments, translations, units of alignments.

`Translator` runs these functions, and exported graphs contain them, so that a text has
the same segments, translations and alignments in both.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.batches import WHITESPACE

# Score of an empty place in an n-best list, since JSON has no infinity.
EMPTY_SCORE = float(tf.float32.min)

# The patterns use the syntax of RE2.
_SPACE = f"[{WHITESPACE}]"
_LINE_BREAK = f"{_SPACE}*[\\n-\\r\\x{{85}}\\x{{2028}}\\x{{2029}}]{_SPACE}*"
_OUTER_SPACE = f"^{_SPACE}+|{_SPACE}+$"
# The end of a sentence, with its closing brackets and quotation marks. No space is
# required after the periods of Chinese and Japanese.
_END = r"""([.!?…।॥؟۔።]+["'”’»)\]]*)"""
_WIDE_END = f"([。！？｡]+[\"'”’」』）]*){_SPACE}*"
# Initials, ordinal numbers such as German "3.", and titles. Their periods do not end a
# sentence.
_ABBREVIATION = (
    r"(^|[^\p{L}\p{M}\p{N}])"
    r"((?:\p{L}\.)*\p{L}|\p{N}{1,2}|(?i:Mr|Mrs|Ms|Dr|Prof|St|Nr|vs))\."
)
# Placeholder for a period that does not end a sentence. Unicode reserves this code
# point for internal use.
_STOP = "\ufdd0"
# A segment may end after whitespace, and after any character of scripts that do not
# separate words by spaces.
_WORD_END = (
    rf"({_SPACE}+|[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{Thai}}\p{{Lao}}\p{{Khmer}}"
    r"\p{Myanmar}][、，；：]*|[、，；：])"
)
# Inserted where `_split` divides a text. This byte is invalid in UTF-8, so no text
# contains it.
_MARK = b"\xff"


class Segments(NamedTuple):
    """Segments of texts, in order. A blank text has one segment, without ids."""

    ids: tf.RaggedTensor  # int32 [segments, (length)], without end ids
    text_index: tf.Tensor  # int64 [segments], the index of each segment's text
    gaps: tf.Tensor  # string [segments], separator before each segment's translation
    truncated: tf.Tensor  # bool [texts], whether part of the text was cut
    lengths: tf.Tensor  # int64 [texts], number of subwords of the longest line


def segment(tokenize, texts, max_length, split_prefix=None):
    """Divides texts into `Segments` of at most `max_length` subwords, without end ids.

    A text is divided at its line breaks, which become gaps. A line that is too long is
    divided into sentences, and a sentence that is too long is divided between words. A
    word that is too long is truncated. If a text begins with a language prefix, such as
    `>>fra<<`, so does each of its segments: `split_prefix` returns the prefixes of
    texts and the texts without them (see `MarianTokenizer.split_language_prefix`).
    """
    languages, texts = (
        split_prefix(texts) if split_prefix else (tf.zeros_like(texts), texts)
    )
    texts = tf.where(_replace(texts, f"{_SPACE}+", "") == "", "", texts)
    lines, gaps, text_index = _split_lines(texts)
    languages = tf.gather(languages, text_index)
    ids = _tokenize_texts(tokenize, languages, lines)
    line_lengths = ids.row_lengths()
    is_long = line_lengths > max_length

    def divide():
        sentences, line_of = _split(tf.where(is_long, _mark_sentences(lines), lines))
        sentences = _replace(sentences, _STOP, ".")
        language_of = tf.gather(languages, line_of)
        lengths = _tokenize_texts(tokenize, language_of, sentences).row_lengths()
        # The language prefix leaves less room for words.
        room = tf.maximum(max_length - tokenize(language_of).row_lengths(), 1)
        parts, sentence_of = _split_words(
            tokenize, sentences, lengths > max_length, room
        )
        ids = _tokenize_texts(tokenize, tf.gather(language_of, sentence_of), parts)
        return ids, tf.gather(line_of, sentence_of)

    ids, line_of = tf.cond(
        tf.reduce_any(is_long),
        divide,
        lambda: (ids, tf.range(tf.size(lines, tf.int64))),
    )
    # A sentence mark at the end of a line leaves an empty segment.
    is_first = _is_first(line_of)
    used = tf.where(is_first | (ids.row_lengths() > 0))[:, 0]
    ids, line_of, is_first = (
        tf.gather(each, used) for each in (ids, line_of, is_first)
    )
    # The segments of a line are joined by spaces.
    gaps = tf.where(is_first, tf.gather(gaps, line_of), " ")
    num_texts = tf.size(texts, tf.int64)
    lengths = tf.math.unsorted_segment_max(line_lengths, text_index, num_texts)
    text_index = tf.gather(text_index, line_of)
    is_cut = ids.row_lengths() > max_length
    truncated = tf.math.unsorted_segment_max(
        tf.cast(is_cut, tf.int32), text_index, num_texts
    )
    return Segments(
        ids[:, :max_length],
        text_index,
        gaps,
        truncated > 0,
        lengths,
    )


def _tokenize_texts(tokenize, languages, texts):
    """Tokenizes texts with their language prefixes. Empty texts have no ids."""
    ids = tokenize(tf.strings.join([languages, texts]))
    rows = ids.value_rowids()
    is_text = tf.gather(texts != "", rows)
    return tf.RaggedTensor.from_value_rowids(
        tf.boolean_mask(ids.flat_values, is_text),
        tf.boolean_mask(rows, is_text),
        nrows=ids.nrows(),
        validate=False,
    )


def _split_lines(texts):
    """Splits texts at their line breaks.

    Returns the lines, the line breaks and whitespace before each line, and the index of
    each line's text.
    """
    pieces, text_index = _split(_replace(texts, _LINE_BREAK, _MARK + b"\\0" + _MARK))
    num_texts = tf.size(texts, tf.int64)
    position = tf.range(tf.size(pieces)) - _first_of_row(text_index, num_texts)
    before = tf.where(position == 0, "", tf.concat([[""], pieces], axis=0)[:-1])
    # Lines and breaks alternate.
    is_line = position % 2 == 0
    return tuple(
        tf.boolean_mask(each, is_line) for each in (pieces, before, text_index)
    )


def _mark_sentences(lines):
    """Puts a mark between the sentences of each line, in place of the whitespace."""
    lines = _replace(lines, _OUTER_SPACE, "")
    marked = _replace(lines, _ABBREVIATION, rf"\1\2{_STOP}")
    # In text with capitals, no sentence begins with a lowercase letter.
    begin = rf"([^\p{{Ll}}{WHITESPACE}])"
    cased = _replace(marked, f"{_END}{_SPACE}+{begin}", b"\\1" + _MARK + b"\\2")
    uncased = _replace(marked, f"{_END}{_SPACE}+", b"\\1" + _MARK)
    has_capitals = _replace(lines, r"\p{Lu}", "") != lines
    marked = tf.where(has_capitals, cased, uncased)
    return _replace(marked, _WIDE_END, b"\\1" + _MARK)


def _split_words(tokenize, sentences, is_long, max_lengths):
    """Divides the long sentences between words into parts of at most `max_lengths`.

    Returns the parts, string `[parts]`, and the index of each part's sentence. A
    sentence that is not long is one part.
    """
    marked = _replace(sentences, _WORD_END, b"\\1" + _MARK)
    words, sentence_of = _split(tf.where(is_long, marked, sentences))
    # A tokenizer with a target language puts its language prefix before each word here.
    # The prefix is not part of the word's length.
    lengths = tokenize(words).row_lengths() - tokenize(tf.constant([""])).row_lengths()
    before = tf.cumsum(lengths, exclusive=True)
    first = _first_of_row(sentence_of, tf.size(sentences, tf.int64))
    before -= tf.gather(before, first)
    # A word of more than `half` subwords is a separate part. Other words share a part
    # if they begin in the same window of `max_length + 1 - half` subwords. The last of
    # them exceeds the window by at most `half - 1` subwords, so the part has at most
    # `max_length`.
    max_length = tf.gather(max_lengths, sentence_of)
    half = (max_length + 1) // 2
    window_of = before // (max_length + 1 - half)
    is_alone = lengths > half
    follows_alone = tf.concat([[False], is_alone], axis=0)[:-1]
    begins = _is_first(sentence_of) | _is_first(window_of) | is_alone | follows_alone
    part_of = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    num_parts = tf.reduce_sum(tf.cast(begins, tf.int32))
    parts = tf.strings.unsorted_segment_join(words, part_of, num_parts)
    sentence_of = tf.boolean_mask(sentence_of, begins)
    stripped = _replace(parts, f"{_SPACE}+$", "")
    return tf.where(tf.gather(is_long, sentence_of), stripped, parts), sentence_of


def _replace(strings, pattern, rewrite):
    return tf.strings.regex_replace(strings, pattern, rewrite)


def _split(strings):
    """Splits strings at the marks. Returns pieces, and the string index of each."""
    pieces = tf.strings.split(strings, _MARK)
    return pieces.flat_values, pieces.value_rowids()


def _is_first(row_of):
    """Returns bool `[items]`, true where the row differs from the previous item's."""
    return row_of != tf.concat([[-1], row_of], axis=0)[:-1]


def _first_of_row(row_of, num_rows):
    """Returns int32 `[items]`, for each item the index of the first one in its row."""
    rows = tf.RaggedTensor.from_value_rowids(row_of, row_of, num_rows, validate=False)
    return tf.cast(tf.gather(rows.row_starts(), row_of), tf.int32)


def join_segments(segments, texts, scores, counts):
    """Joins the n-best lists of segments into n-best lists of texts.

    The i-th best translation of a text consists of the i-th best translations of its
    segments. A segment with fewer translations contributes its last one. The score is
    the sum of the segments' scores. Sampled translations are joined in the same way, by
    their position in the list.

    `texts` and `scores` are `[segments, places]`, and `counts`, int32 `[segments]`, are
    the numbers of translations, at least 1. Returns the same three for the texts.
    Unused places have `EMPTY_SCORE`.
    """
    ranks = tf.range(tf.shape(texts)[1])[None]
    last = tf.minimum(ranks, counts[:, None] - 1)
    texts, scores = (tf.gather(each, last, batch_dims=1) for each in (texts, scores))
    gaps = segments.gaps[:, None]
    # Before an empty translation, line breaks are kept, but no space.
    texts = tf.where((gaps == " ") & (texts == ""), "", gaps + texts)
    text_index, num_texts = segments.text_index, tf.size(segments.truncated)
    texts = tf.strings.unsorted_segment_join(texts, text_index, num_texts)
    scores = tf.math.unsorted_segment_sum(scores, text_index, num_texts)
    counts = tf.math.unsorted_segment_max(counts, text_index, num_texts)
    return texts, tf.where(ranks < counts[:, None], scores, EMPTY_SCORE), counts


def merge_equal_texts(texts, scores, n):
    """Returns the `n` best translations with different texts.

    Different sequences of subwords may have the same text. The best score is kept.
    `texts` and `scores` are `[texts, places]`, best first. Unused places come last and
    have `EMPTY_SCORE` or less. Returns texts and scores `[texts, n]`, with empty texts
    and `EMPTY_SCORE` at unused places, and the number of used places, int32 `[texts]`.
    """
    places = tf.range(tf.shape(texts)[1])
    is_equal = tf.equal(texts[:, :, None], texts[:, None, :])
    has_better = tf.reduce_any(is_equal & (places[None] < places[:, None]), axis=2)
    # The first translation is kept even if nothing was found.
    is_used = (places == 0) | ((scores > EMPTY_SCORE) & ~has_better)
    # Used places come first. Used and unused places each keep their order.
    order = tf.where(is_used, -places, -places - tf.size(places))
    order = tf.math.top_k(order, n).indices
    texts, scores, is_used = (
        tf.gather(each, order, batch_dims=1) for each in (texts, scores, is_used)
    )
    return (
        tf.where(is_used, texts, ""),
        tf.where(is_used, scores, EMPTY_SCORE),
        tf.reduce_sum(tf.cast(is_used, tf.int32), axis=1),
    )


def join_characters(surfaces, continues, lengths):
    """Joins subwords into units of whole characters, because one may be a single byte.

    `surfaces`, string `[batch, length]`, are the texts of the subwords, including the
    space before each. Only the first `lengths` of a row are used. `continues` says
    whether a subword begins within a character.

    Returns the text of the units, string `[batch, units]`, and their membership,
    float32 `[batch, length, units]`: 1 where a subword belongs to a unit, else 0.
    """
    surfaces = tf.convert_to_tensor(surfaces, tf.string)
    batch, length = tf.unstack(tf.shape(surfaces))
    is_text = tf.sequence_mask(lengths, length)
    first = tf.range(length)[None] == 0
    # Encoding adds a space before the text, possibly as a separate subword.
    is_lone_space = first & (surfaces == " ")
    after_lone = tf.pad(is_lone_space, [[0, 0], [1, 0]])[:, :length]
    begins = is_text & (first | ~(after_lone | continues))
    unit = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1
    num_units = tf.reduce_max(tf.concat([tf.reshape(unit, [-1]), [-1]], 0)) + 1
    without_space = tf.strings.regex_replace(surfaces, "^ ", "", replace_global=False)
    surfaces = tf.where(first, without_space, surfaces)
    places = tf.range(batch)[:, None] * num_units + unit
    joined = tf.strings.unsorted_segment_join(
        tf.boolean_mask(surfaces, is_text),
        tf.boolean_mask(places, is_text),
        batch * num_units,
    )
    membership = tf.one_hot(tf.where(is_text, unit, -1), num_units)
    # A truncated text may end within a character.
    joined = tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", "replace")
    return tf.reshape(joined, [batch, num_units]), membership


def attention_of_units(scores, target_membership, source_membership):
    """Computes the attention between units from the attention between subwords.

    Attention to a unit is summed over its subwords. Attention from a unit is averaged
    over them. From scores `[..., target_length, source_length]` and the memberships of
    `join_characters` to `[..., target_units, source_units]`.
    """
    count = tf.reduce_sum(target_membership, axis=-2, keepdims=True)
    mean = target_membership / tf.maximum(count, 1.0)
    attention = tf.matmul(mean, scores, transpose_a=True)
    return tf.matmul(attention, source_membership)
