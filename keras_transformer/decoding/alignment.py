"""Word alignments from cross-attention (section 3.2.3 of the paper)."""

import contextlib
import itertools
import re

import numpy as np
from keras import ops

from keras_transformer.decoding.batches import pad_rows
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

    Examples:
        >>> model = kt.Transformer(10, num_layers=2, d_model=8, d_ff=8, num_heads=2)
        >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
        >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
        >>> print(kt.decoding.alignment_scores(model, source_ids, target_ids).shape)
        (1, 2, 3)
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


def count_added(row, prefix, text):
    """Returns the number of units that a tokenizer has put before a text.

    These form the language prefix of some Marian models. Row and prefix are the units
    of the text and of an empty text. If the text itself begins with the prefix, the
    tokenizer has added nothing.
    """
    own = b"".join(prefix).strip()
    if own and text.encode("utf-8", "replace").startswith(own):
        return 0
    pairs = zip(row, prefix, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def continues_character(surface):
    """Returns whether a subword begins within a character, given its surface."""
    # In UTF-8, a character continues with bytes of the form 10xxxxxx.
    return 0x80 <= (surface or b"a")[0] < 0xC0


def join_units(rows):
    """Joins subwords, given their surfaces, into units of whole characters.

    Returns a list of the texts of each row's units, and their membership, float32
    `[rows, longest, units]` (see `join_characters`).
    """
    # Imported here because it loads TensorFlow.
    from keras_transformer.decoding.text import join_characters

    continues = [list(map(continues_character, row)) for row in rows]
    texts, membership = join_characters(
        pad_rows(rows, b"", object),
        pad_rows(continues, False, bool),
        list(map(len, rows)),
    )
    membership = membership.numpy()
    counts = np.count_nonzero(membership.any(axis=1), axis=1)
    pairs = zip(texts.numpy(), counts, strict=True)
    return [list(row[:count]) for row, count in pairs], membership


def attend_units(scores, sources, targets):
    """Computes the attention between units from the attention between subwords.

    `scores` are float32 `[pairs, target_length, source_length]`. `sources` and
    `targets` are rows of surfaces, to which the first scores belong. Returns for each
    pair its source units, its target units, and their attention.
    """
    from keras_transformer.decoding.text import compute_unit_attention

    (sources, source_membership), (targets, target_membership) = map(
        join_units, (sources, targets)
    )
    scores = scores[:, : target_membership.shape[1], : source_membership.shape[1]]
    attention = compute_unit_attention(scores, target_membership, source_membership)
    return [
        (source, target, each[: len(target), : len(source)])
        for source, target, each in zip(
            sources, targets, np.asarray(attention), strict=True
        )
    ]


def index_words(row):
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

    `scores` are float `[target subwords, source subwords]`, and the words are those of
    each subword, from `index_words`. Returns (source word, target word) of each target
    word in order, or nothing if the source has no word. Ties go to the first one.
    """
    num_words = max(target_words, default=-1) + 1, max(source_words, default=-1) + 1
    if 0 in num_words:
        return []
    # The extra last row and column collect subwords outside of words (-1).
    summed = np.zeros([count + 1 for count in num_words])
    np.add.at(summed, np.ix_(target_words, source_words), scores)
    source_of_target = np.argmax(summed[:-1, :-1], axis=1)
    return [(int(source), target) for target, source in enumerate(source_of_target)]


def align_units(source, target, attention, prefix, text):
    """Aligns the words of a source and its translation by attention between units.

    `prefix` are the units of an empty source, and `text` is the source (see
    `count_added`). What a tokenizer puts before the source belongs to no word.
    """
    start = count_added(source, prefix, text)
    has_languages = prefix and not b"".join(prefix).strip()
    if has_languages:  # the target begins with its language, too
        target, attention = target[1:], attention[1:]
    words = index_words(source[start:]), index_words(target)
    pairs = align_words(attention[:, start:], *words)
    if has_languages:
        # Languages that the text names have no units, but are words of it.
        found = re.match(r">>[^<>]*<< *", text)
        num_words = len(f"{found[0]}.".split()) - 1 if found else 0
        pairs = [(source + num_words, target) for source, target in pairs]
    return pairs


def format_pharaoh(pairs):
    """Formats an alignment as Pharaoh does: pairs `source-target`, with spaces.

    Returns:
        Str, such as `"0-0 1-2"`.

    Examples:
        >>> kt.decoding.format_pharaoh([(0, 0), (2, 1)])
        '0-0 2-1'
    """
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
