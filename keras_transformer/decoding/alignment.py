"""Word alignments out of the decoder's attention over the source (section 3.2.3)."""

import numpy as np
from keras import ops

# On Multi30k's validation pairs, against statistical alignments of both directions,
# two models of four layers erred least by the mean of the last two, and by the row
# that predicts a token rather than the one that reads it.
NUM_LAYERS = 2


def alignment_scores(model, source_ids, target_ids, num_layers=NUM_LAYERS):
    """How much the model looks at each source token to predict each target token.

    Args:
        model: `Transformer`.
        source_ids: int32 [batch, source_length], ids and the end id, then padding.
        target_ids: int32 [batch, target_length], the start id and ids, then padding.
        num_layers: int, how many of the decoder's last layers count.

    Returns:
        float32 [batch, target_length, source_length], the mean over heads of these
        layers. Row i is for the token after `target_ids[:, i]`.
    """
    _, scores = model.decoder_output(
        {"source_ids": source_ids, "target_ids": target_ids},
        training=False,
        return_attention_scores=True,
    )
    return mean_cross_attention(scores, num_layers)


def mean_cross_attention(scores, num_layers=NUM_LAYERS):
    """Averages cross-attention over the heads of the last layers.

    Args:
        scores: The scores of each decoder layer, see `Decoder`.
        num_layers: Number of the decoder's last layers that are averaged.

    Returns:
        float32 `[batch, target_length, source_length]`.
    """
    cross_scores = [cross for _, cross in scores[-num_layers:]]
    return ops.mean(ops.stack(cross_scores, axis=1), axis=(1, 2))


def surfaces(tokenizer, rows):
    """What each sub-word writes into the text, the space before it included.

    Args:
        tokenizer: whose ids they are.
        rows: lists of int ids that stand for text.

    Returns:
        Lists of bytes, as `rows`.
    """
    distinct = sorted({each for row in rows for each in row})
    # A text's first sub-word loses its space, so that each comes after a letter.
    (letter,) = tokenizer.tokenize(["a"]).to_list()
    texts = tokenizer.detokenize(
        np.array([[*letter, each] for each in (tokenizer.pad_id, *distinct)], "int32")
    ).numpy()
    written = {
        each: text.removeprefix(texts[0])
        for each, text in zip(distinct, texts[1:], strict=True)
    }
    return [[written[each] for each in row] for row in rows]


def words_of(row):
    """The word that each sub-word belongs to.

    Words are what ASCII white space separates. Space on its own belongs to the word
    after it, and a sub-word that touches several words to the last of them.

    Args:
        row: list of bytes, the surfaces of a text's sub-words in order.

    Returns:
        List of int, indices of words from 0; -1 for space after the last word.
    """
    words = []
    num_words = 0
    in_word = False
    for surface in row:
        parts = surface.split()
        if parts:
            num_words += len(parts) - (in_word and not surface[:1].isspace())
        if surface:
            in_word = not surface[-1:].isspace()
        words.append(num_words - 1 if parts or in_word else num_words)
    return [word if word < num_words else -1 for word in words]


def aligned_words(scores, source_words, target_words):
    """For each target word the source word that its sub-words look at most.

    Args:
        scores: float [target sub-words, source sub-words].
        source_words: the word of each source sub-word, from `words_of`.
        target_words: the word of each target sub-word.

    Returns:
        List of (source word, target word), sorted by target word: one pair for each
        target word, none if the source has no word. Of equals the first is taken.
    """
    num_words = max(target_words, default=-1) + 1, max(source_words, default=-1) + 1
    if 0 in num_words:
        return []
    # One row and one column more, the last ones, for what is in no word (-1).
    summed = np.zeros([count + 1 for count in num_words])
    np.add.at(summed, np.ix_(target_words, source_words), scores)
    source_of_target = np.argmax(summed[:-1, :-1], axis=1)
    return [(int(source), target) for target, source in enumerate(source_of_target)]


def pharaoh(pairs):
    """Alignments as text: `source-target` for each pair, separated by spaces."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def alignable(pairs, longest, warn):
    """Indices of the pairs that have sub-words on both sides, and not too many.

    Args:
        pairs: list of (source ids, target ids, number of the line).
        longest: how many ids of each side are aligned, source's end and target's start
            counted.
        warn: function that is called with a text for each line that is left out.
    """
    rows = []
    too_long = {}
    for i, (source, target, number) in enumerate(pairs):
        if len(source) + 1 > longest[0] or len(target) + 1 > longest[1]:
            too_long[number] = len(source), len(target)
        elif source and target:
            rows.append(i)
    for number, lengths in too_long.items():
        warn(
            f"line {number}: {lengths[0]} sub-words and {lengths[1]} of its "
            "translation are more than can be aligned; left without alignments"
        )
    return rows
