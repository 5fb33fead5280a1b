"""Word alignments from cross-attention (section 3.2.3 of the paper)."""

import contextlib
import itertools

import numpy as np
from keras import ops

from keras_transformer.decoding.batches import encode_texts
from keras_transformer.decoding.options import check_at_least
from keras_transformer.errors import DataError

# Cross-attention is averaged over this number of the decoder's last layers. Measured
# against symmetrized statistical alignments of Multi30k's validation pairs, the mean of
# the last two of four layers had the fewest errors. A token was aligned better by the
# position that predicts it than by the position that reads it as input.
NUM_LAYERS = 2


def alignment_scores(model, source_ids, target_ids, num_layers=NUM_LAYERS):
    """Computes the attention to the source when each target token is predicted.

    Args:
        model: `Transformer`.
        source_ids: int32 `[batch, source_length]`, ids and the end id, then padding.
        target_ids: int32 `[batch, target_length]`, the start id and ids, then padding.
        num_layers: Number of decoder layers to average, counted from the last.

    Returns:
        float32 `[batch, target_length, source_length]`, the mean over all heads of
        these layers. Row i belongs to the token after `target_ids[:, i]`.
    """
    _, scores = model.decoder_output(
        {"source_ids": source_ids, "target_ids": target_ids},
        training=False,
        return_attention_scores=True,
    )
    return mean_cross_attention(scores, num_layers)


def mean_cross_attention(scores, num_layers=NUM_LAYERS):
    """Averages cross-attention over the heads of the last `num_layers` layers.

    `scores` are those of `Decoder.call`. Returns float32 `[batch, target_length,
    source_length]`.
    """
    check_at_least("num_layers", num_layers, 1)
    cross_scores = [cross for _, cross in scores[-num_layers:]]
    return ops.mean(ops.stack(cross_scores, axis=1), axis=(1, 2))


def token_surfaces(tokenizer, rows):
    """Returns the surface of each subword: its text, including the space before it.

    Rows are lists of ids without special ids. Surfaces are UTF-8 bytes.
    """
    distinct = sorted({each for row in rows for each in row})
    # The first subword of a text loses its space, so each is decoded after a letter.
    (letter,) = tokenizer.tokenize(["a"]).to_list()
    texts = tokenizer.detokenize(
        np.array([[*letter, each] for each in (tokenizer.pad_id, *distinct)], "int32")
    ).numpy()
    surfaces = {
        each: text.removeprefix(texts[0])
        for each, text in zip(distinct, texts[1:], strict=True)
    }
    # A single byte of a longer character is not written. Some tokenizers remove a lone
    # space at the end of a text, where it separates words.
    unclear = [each for each, text in surfaces.items() if not text]
    if unclear and hasattr(tokenizer, "piece_bytes"):
        # Some KerasHub tokenizers cannot return the bytes and raise this error.
        with contextlib.suppress(DataError):
            bytes_of = tokenizer.piece_bytes()
            surfaces |= {each: bytes_of[each] for each in unclear}
    return [[surfaces[each] for each in row] for row in rows]


def encode_with_surfaces(tokenizer, texts):
    """Returns three lists with one entry per text.

    They are its ids without special ids, the surfaces of the ids, and the number of ids
    before the text. The latter form the language prefix of some Marian models, which is
    not in the text.
    """
    rows = encode_texts(tokenizer, [*texts, ""])
    *surfaces, prefix = token_surfaces(tokenizer, rows)
    prefix_lengths = [
        count_added(row, prefix, text)
        for row, text in zip(surfaces, texts, strict=True)
    ]
    return rows[:-1], surfaces, prefix_lengths


def count_added(row, prefix, text):
    """Returns the number of subwords that a tokenizer has put before a text.

    Row and prefix are the surfaces of the text and of an empty text. If the text itself
    begins with the prefix, the tokenizer has added nothing.
    """
    own = b"".join(prefix).strip()
    if own and text.encode("utf-8", "replace").startswith(own):
        return 0
    pairs = zip(row, prefix, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def join_characters(row):
    """Joins subwords, given their surfaces, into units of whole characters.

    A subword may be a single byte of a character. Returns the text of each unit, and
    the index of each subword's unit. The signature `attend` of exported models joins
    subwords in the same way.
    """
    units, unit_of = [], []
    for place, surface in enumerate(row):
        # In UTF-8, a character continues with bytes of the form 10xxxxxx.
        continues = 0x80 <= (surface or b"a")[0] < 0xC0
        # Encoding adds a space before the text, possibly as a separate subword.
        if place and (continues or (place == 1 and row[0] == b" ")):
            units[-1] += surface
        else:
            units.append(surface)
        unit_of.append(len(units) - 1)
    return units, unit_of


def attention_of_units(scores, target_units, source_units):
    """Computes the attention between units from the attention between subwords.

    Attention to a unit is the sum over its subwords. Attention from a unit is the mean
    over them. `scores` and the result are `[..., targets, sources]`, and the units are
    the index of each subword's unit.
    """
    rows, columns = (
        np.eye(max(units, default=-1) + 1, dtype=scores.dtype)[units]
        for units in (target_units, source_units)
    )
    return (rows / rows.sum(axis=0)).T @ scores @ columns


def words_of(row):
    """Returns the index of each subword's word, from 0, given the subwords' surfaces.

    Words are separated by ASCII whitespace. A subword of whitespace belongs to the
    next word, or after the last word to -1. A subword that touches several words
    belongs to the last of them.
    """
    words = []
    num_words = 0
    in_word = False
    for surface in row:
        parts = surface.split()
        if parts:
            # The first part may continue the word of the previous subword.
            num_words += len(parts) - (in_word and not surface[:1].isspace())
        if surface:
            in_word = not surface[-1:].isspace()
        words.append(num_words - 1 if parts or in_word else num_words)
    return [word if word < num_words else -1 for word in words]


def align_words(scores, source_words, target_words):
    """Aligns each target word to the source word with the most attention.

    Args:
        scores: float `[target subwords, source subwords]`.
        source_words: The index of each source subword's word, from `words_of`.
        target_words: The same for the target.

    Returns:
        List of (source word, target word), one per target word in order. Empty if the
        source has no word. Ties go to the first source word.
    """
    num_words = max(target_words, default=-1) + 1, max(source_words, default=-1) + 1
    if 0 in num_words:
        return []
    # The extra last row and column collect subwords outside of words (-1).
    summed = np.zeros([count + 1 for count in num_words])
    np.add.at(summed, np.ix_(target_words, source_words), scores)
    source_of_target = np.argmax(summed[:-1, :-1], axis=1)
    return [(int(source), target) for target, source in enumerate(source_of_target)]


def align_subwords(scores, source, target, prefix_length=0):
    """Aligns the words of a sentence pair by the attention between its subwords.

    Args:
        scores: float `[rows, columns]`. The first rows belong to the subwords of the
            target, and the first columns to the subwords of the source. Others are
            ignored.
        source: List of bytes, the surfaces of the source's subwords.
        target: List of bytes, the surfaces of the target's subwords.
        prefix_length: Number of source subwords before the text, which belong to no
            word.

    Returns:
        List of (source word, target word) (see `align_words`).
    """
    source, scores = source[prefix_length:], scores[:, prefix_length:]
    (source, source_units), (target, target_units) = map(
        join_characters, (source, target)
    )
    scores = scores[: len(target_units), : len(source_units)]
    scores = attention_of_units(scores, target_units, source_units)
    return align_words(scores, words_of(source), words_of(target))


def format_pharaoh(pairs):
    """Formats an alignment as `source-target` pairs separated by spaces."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def alignable_pairs(sources, targets, max_lengths, warn):
    """Returns the indices of pairs of ids in which neither side is empty or too long.

    The maximum lengths of source and target include one special id each. `warn` is
    called with the index of each pair with a side that is too long, and a message.
    """
    indices = []
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if len(source) >= max_lengths[0] or len(target) >= max_lengths[1]:
            warn(
                index,
                "the alignment is left empty, because a side is too long. Source: "
                f"{len(source)} subwords, at most {max_lengths[0] - 1} are allowed. "
                f"Translation: {len(target)}, at most {max_lengths[1] - 1}.",
            )
        elif source and target:
            indices.append(index)
    return indices
