"""Batches of texts: checks, encoding to ids, grouping by length, and padding."""

import bisect
import contextlib
import logging

import numpy as np

from keras_transformer.decoding.compiled import few_lengths
from keras_transformer.decoding.forbidden import is_in_word
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.errors import DataError, ModelError

# Limits on the texts that are encoded in one call of the tokenizer.
MAX_LINES = 4096
MAX_CHARACTERS = 1 << 22
# Whitespace as defined by Unicode or Python, plus zero-width spaces.
WHITESPACE = "".join(
    map(
        chr,
        [
            *range(0x9, 0xE),
            *range(0x1C, 0x21),
            *(0x85, 0xA0, 0x1680),
            *range(0x2000, 0x200C),
            *(0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF),
        ],
    )
)


def log_warning(index, text):
    """Logs a warning about the line at `index`. The message counts lines from 1."""
    logging.getLogger("keras_transformer").warning("line %d: %s", index + 1, text)


def check_texts(texts, name="lines"):
    """Checks that the argument `name` contains only `str`, and returns it as a list."""
    if isinstance(texts, (str, bytes, bytearray)):
        raise ValueError(
            f"`{name}` must be a list of str. Received: a single "
            f"{type(texts).__name__}. Pass [text] instead."
        )
    try:
        texts = list(texts)
    except TypeError:
        raise ValueError(
            f"`{name}` must be a list of str. Received: {texts!r:.80}."
        ) from None
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            hint = " Decode it, for example as UTF-8." * isinstance(text, bytes)
            raise ValueError(
                f"`{name}` must contain only str. Received: {name}[{index}]="
                f"{text!r:.80}.{hint}"
            )
    return texts


def check_pairs(first, second, names=("sources", "targets")):
    """Checks two lists of texts of the same length, and returns them as lists."""
    first, second = map(check_texts, (first, second), names)
    if len(first) != len(second):
        raise ValueError(
            f"`{names[0]}` and `{names[1]}` must have the same length. "
            f"Received: {len(first)} {names[0]} and {len(second)} {names[1]}."
        )
    return first, second


def check_compatible(model, tokenizer, target_tokenizer):
    """Checks that a model has the ids of its tokenizers and can generate the end id."""
    for size, side_tokenizer in (
        (model.source_vocabulary_size, tokenizer),
        (model.vocabulary_size, target_tokenizer),
    ):
        if side_tokenizer.vocabulary_size > size:
            raise ValueError(
                "The tokenizer must not have more ids than the model. Received: "
                f"tokenizer with {side_tokenizer.vocabulary_size} ids, "
                f"model with {size} ids."
            )
        if side_tokenizer.pad_id != model.pad_id:
            raise ValueError(
                "The tokenizer must have the padding id of the model. Received: "
                f"tokenizer with pad_id={side_tokenizer.pad_id}, "
                f"model with pad_id={model.pad_id}."
            )
    end_id = target_tokenizer.end_id
    if end_id >= model.num_outputs:
        raise ValueError(
            "The end id must be one of the model's outputs. "
            f"Received: end_id={end_id}, num_outputs={model.num_outputs}."
        )


def check_positions(model, rows, texts):
    """Checks that a model has enough learned positions for each text.

    `rows` are the ids of each text, with the end id.
    """
    limit = model.position_limit
    for row, text in zip(rows, texts, strict=True):
        if limit is not None and len(row) > limit:
            raise ModelError(
                f"the model has {limit} learned positions, but a text has "
                f"{len(row)} subwords: {text[:50]!r}"
            )


def select_target(tokenizer):
    """Returns the target tokenizer: `tokenizer.target` if set, else `tokenizer`."""
    return getattr(tokenizer, "target", tokenizer)


def group_texts(texts):
    """Yields lists of UTF-8 texts that are small enough for one tokenizer call."""
    group, size = [], 0
    for number, text in enumerate(texts, start=1):
        # UTF-8 cannot encode lone surrogates. They become question marks.
        group.append(text.encode("utf-8", "replace"))
        size += len(text)
        is_full = len(group) == MAX_LINES or size > MAX_CHARACTERS
        if is_full or number == len(texts):
            yield group
            group, size = [], 0


def encode_texts(tokenizer, texts):
    """Returns one list of ids per text, without start and end ids."""
    return [
        row
        for group in group_texts(texts)
        for row in tokenizer.tokenize(group).to_list()
    ]


def encode_with_end(tokenizer, texts):
    """Like `encode_texts`, but with the end id after each row."""
    return [[*row, tokenizer.end_id] for row in encode_texts(tokenizer, texts)]


def _encode_phrases(tokenizer, texts):
    """Like `encode_texts`, but without the language that a tokenizer may put first."""
    texts = [*(text.strip() for text in texts), ""]
    *rows, language = encode_texts(tokenizer, texts)
    return [row[len(language) :] for row in rows]


def encode_targets(translator, sources, targets):
    """Returns one list of ids per target, in the language that its source names.

    Also returns the number of ids of the language, 0 for most models.
    """
    rows = encode_texts(translator.target_tokenizer, targets)
    first_ids = getattr(translator.tokenizer, "first_ids", None)
    if first_ids is None:
        return rows, 0
    first = [each for group in group_texts(sources) for each in first_ids(group)]
    return [[int(one), *row[1:]] for one, row in zip(first, rows, strict=True)], 1


def encode_prefixes(tokenizer, prefixes, model):
    """Encodes prefixes of translations, stripped of whitespace, to lists of ids.

    Raises `ModelError` for ids that no search generates, such as the unknown id, or
    that are not among the model's outputs.
    """
    rows = _encode_phrases(tokenizer, prefixes)
    for text, row in zip(prefixes, rows, strict=True):
        if not _can_generate(tokenizer, model, row):
            raise ModelError(
                f"prefix {text.strip()!r} contains tokens that the model cannot "
                "generate. Remove them, or use a model whose outputs include them"
            )
    check_positions(model, [[*row, tokenizer.end_id] for row in rows], prefixes)
    return rows


def _spell_tokens(tokenizer):
    """Returns the bytes of each token, which some tokenizers cannot spell."""
    with contextlib.suppress(AttributeError, DataError):
        return tokenizer.piece_bytes()
    return [b""] * tokenizer.vocabulary_size


def word_edges(tokenizer):
    """Returns whether tokens begin, and end, within a word, bool `[2, vocabulary]`.

    A byte of a character beyond ASCII counts as a letter, so that a mark such as “ does
    not end a word if it is spelled by bytes.
    """
    edges = np.zeros((2, tokenizer.vocabulary_size), bool)
    for number, spelled in enumerate(_spell_tokens(tokenizer)):
        text = spelled.decode("utf-8", "replace")
        edges[:, number] = [is_in_word(each) for each in (text[:1], text[-1:])]
    return edges


class PrefixEnds:
    """Tokens that continue a prefix, if it ends inside a word.

    Ranks sort the tokens of a tokenizer by their bytes, so tokens that begin alike have
    consecutive ranks.
    """

    def __init__(self, tokenizer):
        # If tokens cannot be spelled, prefixes end with a word.
        self._spelled = _spell_tokens(tokenizer)
        order = sorted(range(len(self._spelled)), key=self._spelled.__getitem__)
        self._sorted = [self._spelled[each] for each in order]
        self.ranks = np.argsort(order).astype("int32")

    def of(self, row, prefix):
        """Returns for each token of a row the ranks of those that may replace it.

        They are pairs of start and end. Within the last word, the tokens are those that
        begin with the rest of the prefix. Ranges are empty elsewhere, or if whitespace
        follows the prefix.
        """
        ranges, rest = [], b""
        is_open = prefix == prefix.rstrip()
        for number in reversed(row):
            rest = self._spelled[number] + rest
            # This byte is invalid in UTF-8, so no text contains it.
            bounds = (rest, rest + b"\xff") if is_open and rest else (b"", b"")
            ranges.append([bisect.bisect_left(self._sorted, each) for each in bounds])
            is_open = is_open and not rest.startswith(b" ")
        return ranges[::-1]


def _can_generate(tokenizer, model, row):
    excluded = set(SpecialIds.of(tokenizer).excluded_ids())
    return max(row, default=0) < model.num_outputs and not excluded & {*row}


def spell_texts(tokenizer, texts):
    """Returns texts as a tokenizer spells their ids, without outer whitespace."""
    return [
        text.decode("utf-8", "replace").strip()
        for group in group_texts(texts)
        for text in tokenizer.detokenize(
            tokenizer.tokenize(group).to_tensor(tokenizer.pad_id)
        ).numpy()
    ]


def encode_required(tokenizer, required, model, automaton=None):
    """Encodes the required phrases of texts, each a list of alternatives.

    Returns, for each text, its phrases as lists of ids. Alternatives that no search
    generates are left out, and so are those that `automaton` forbids. Raises
    `ModelError` for a phrase without any other.
    """
    texts = [text for phrases in required for phrase in phrases for text in phrase]
    rows = _encode_phrases(tokenizer, texts)
    if automaton is not None and rows:
        ends = tokenizer.start_id, tokenizer.end_id
        framed = [[ends[0], *row, ends[1]] for row in rows]
        accepted = automaton.accepts(pad_rows(framed, tokenizer.pad_id))
        rows = [row if one else [] for row, one in zip(rows, accepted, strict=True)]
    rows = iter(rows)
    encoded = []
    for phrases in required:
        encoded.append([])
        for phrase in phrases:
            found = [next(rows) for _ in phrase]
            found = [row for row in found if _can_generate(tokenizer, model, row)]
            if not any(found):
                raise ModelError(
                    f"the model cannot generate the required phrase {phrase[0]!r}. "
                    "Its vocabulary must be able to spell it, and it must not "
                    "contain a forbidden phrase"
                )
            encoded[-1].append(list(filter(None, found)))
    return encoded


def batch_by_length(lengths, batch_tokens):
    """Yields batches, each a list of row indices. The shortest rows come first.

    A batch has at most `batch_tokens` positions, including padding. A longer row forms
    a batch by itself.
    """
    batch = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and few_lengths(lengths[i]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def pad_rows(rows, pad_id=0, dtype="int32"):
    """Pads lists of ids, or of other values, to an array `[rows, longest]`."""
    padded = np.full((len(rows), max(map(len, rows))), pad_id, dtype)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = row
    return padded
