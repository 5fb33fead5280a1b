"""What a tokenizer stores about text: its normalization, and facts of training text."""

import functools
import itertools
import unicodedata

import tensorflow as tf
from pydantic import BaseModel, ConfigDict, field_validator

# White space as defined by Unicode or Python.
SPACES = r"[\t-\r\x1c-\x20\x{85}\x{a0}\p{Z}]+"
# Characters without width and control characters. Joiners, which some scripts need, and
# visible signs such as U+06DD are kept.
_INVISIBLE = (
    r"[\x00-\x08\x0e-\x1b\x7f-\x{84}\x{86}-\x{9f}\x{ad}\x{61c}\x{180e}\x{200b}"
    r"\x{200e}\x{200f}\x{202a}-\x{202e}\x{2060}-\x{206f}\x{feff}\x{fff9}-\x{fffb}]+"
)
_CHUNK = 8192  # number of texts
_MAX_SCALAR = 0x30000  # no character from here on has a canonical decomposition


class TextSettings(BaseModel):
    """Settings of text that are stored with a tokenizer, as `text.json`.

    Attributes:
        normalization: Whether texts are normalized before they are split into subwords:
            white space, invisible characters, and Unicode's form NFC.
        sentences: Whether the training text has one sentence per line.
        capitals: Whether both sides of the training text have capitals.
        scripts: Scripts of the source side of the training text, by their Unicode
            names, such as "Latin". If empty, they are unknown.
        words: Words of the source side that usually have capitals, such as names.
        numbers: Whether the training text has lines of digits without letters. If it
            does not, such lines stay as they are.

    Examples:
        >>> settings = kt.pipelines.TextSettings(normalization=True)
        >>> tokenizer = kt.pipelines.train_tokenizer(
        ...     "bpe", ["a dog"], vocabulary_size=270, text=settings
        ... )
        >>> ids = tokenizer.tokenize(["a\\u00a0 dog\\u200b"])
        >>> tokenizer.detokenize(ids).numpy()[0].decode()
        'a dog'
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    normalization: bool = False
    sentences: bool = False
    capitals: bool = False
    scripts: list[str] = []
    words: list[str] = []
    numbers: bool = False

    @field_validator("scripts")
    @classmethod
    def _check_scripts(cls, scripts):
        try:
            for name in scripts:
                tf.strings.regex_full_match("", rf"\p{{{name}}}")
        except tf.errors.InvalidArgumentError:
            raise ValueError(
                "must be scripts such as Latin, Cyrillic and Han"
            ) from None
        return scripts


def clean(strings):
    """Removes what is invisible from texts, a string tensor `[batch]`.

    A run of white space becomes one space. Outer white space, control characters and
    characters without width are removed.
    """
    strings = tf.convert_to_tensor(strings, tf.string)
    strings = tf.strings.regex_replace(strings, _INVISIBLE, "")
    return tf.strings.strip(tf.strings.regex_replace(strings, SPACES, " "))


def normalize(strings):
    """Cleans texts, a string tensor `[batch]`, and composes characters (NFC)."""
    strings = clean(strings)
    return compose(strings) if tf.executing_eagerly() else _compose_in_graph(strings)


def normalize_texts(texts, settings):
    """Yields texts, an iterable of str, normalized if the `TextSettings` require it."""
    if settings is None or not settings.normalization:
        yield from texts
        return
    texts = iter(texts)
    while chunk := [each.encode() for each in itertools.islice(texts, _CHUNK)]:
        yield from (each.decode() for each in normalize(chunk).numpy())


def compose(strings):
    """Converts texts, a string tensor `[batch]`, to Unicode's form NFC.

    TensorFlow has no such operation, and servers may lack tensorflow-text.
    """
    tables = _tables()
    rest = tf.strings.regex_replace(strings, tables["may_change"], "")
    places = tf.where(rest != strings)
    if tf.executing_eagerly() and not len(places):
        return strings
    decoded = tf.strings.unicode_decode(tf.gather_nd(strings, places), "UTF-8")
    # Each character is decomposed, and marks are sorted by their combining class.
    found = _lookup(tables["decomposed"], decoded.flat_values, -1)
    parts = tf.gather(tf.constant(tables["parts"]), tf.maximum(found, 0))
    alone = tf.pad(decoded.flat_values[:, None], [[0, 0], [0, 3]])
    parts = tf.where(found[:, None] < 0, alone, parts)
    # Zero is padding, and the control character itself is not composed.
    is_used = (parts > 0) | (tf.range(4) == 0)
    codes = tf.boolean_mask(parts, is_used)
    rows = tf.boolean_mask(tf.tile(decoded.value_rowids()[:, None], [1, 4]), is_used)
    classes = _lookup(tables["classes"], codes, 0)
    order = tf.argsort(_starters(classes, rows) * 256 + classes, stable=True)
    codes, classes = tf.gather(codes, order), tf.gather(classes, order)

    def compose_once(codes, classes, rows, _):
        starter_of = _starters(classes, rows)
        places = tf.range(tf.size(codes))
        before = tf.maximum(places - 1, 0)
        first = tf.math.unsorted_segment_min(places, starter_of, tf.size(codes))
        starts = tf.gather(first, starter_of)
        # A starter may be composed with the starter right before it.
        is_mark = classes > 0
        starts = tf.where(is_mark, starts, before)
        class_before = tf.gather(classes, before)
        # A mark of the same class in between blocks a mark.
        is_open = (before == starts) | (class_before < classes)
        same_row = tf.gather(rows, starts) == rows
        start_codes = tf.gather(codes, starts)
        pair = tf.cast(start_codes, tf.int64) * 2**32 + tf.cast(codes, tf.int64)
        composed = _lookup(tables["pairs"], pair, -1)
        composed = tf.maximum(composed, _compose_hangul(start_codes, codes))
        fits = (composed > 0) & is_open & same_row & (starts < places)
        # Of the marks that fit a starter, the first is taken.
        chosen = tf.where(fits, places, tf.size(codes))
        best = tf.math.unsorted_segment_min(chosen, starts, tf.size(codes))
        taken = fits & (tf.gather(best, starts) == places)
        where = tf.where(taken)[:, 0]
        codes = tf.tensor_scatter_nd_update(
            codes, tf.gather(starts, where)[:, None], tf.gather(composed, where)
        )
        kept = tuple(tf.boolean_mask(x, ~taken) for x in (codes, classes, rows))
        return *kept, tf.size(where) > 0

    flat = tf.TensorShape([None])
    codes, _, rows, _ = tf.while_loop(
        lambda *state: state[-1],
        compose_once,
        (codes, classes, rows, tf.size(codes) > 0),
        shape_invariants=(flat, flat, flat, tf.TensorShape([])),
    )
    ragged = tf.RaggedTensor.from_value_rowids(
        codes, rows, tf.size(places, tf.int64), validate=False
    )
    composed = tf.strings.unicode_encode(ragged, "UTF-8")
    return tf.tensor_scatter_nd_update(strings, places, composed)


# The signatures of an export, which all tokenize texts, share one graph.
_compose_in_graph = tf.function(
    compose, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
)


def _compose_hangul(left, right):
    """Composes syllables of Korean (section 3.12 of the Unicode Standard), or -1."""
    leading, vowel = left - 0x1100, right - 0x1161
    is_open = (leading >= 0) & (leading < 19) & (vowel >= 0) & (vowel < 21)
    syllable, trailing = left - 0xAC00, right - 0x11A7
    is_closed = (syllable >= 0) & (syllable < 11172) & (syllable % 28 == 0)
    is_closed &= (trailing > 0) & (trailing < 28)
    composed = tf.where(is_closed, left + trailing, -1)
    return tf.where(is_open, 0xAC00 + (leading * 21 + vowel) * 28, composed)


def _starters(classes, rows):
    """Returns the number of each character's starter, int32 `[characters]`.

    Each row begins with a starter, also if that is a mark.
    """
    begins = rows != tf.concat([[-1], rows], axis=0)[:-1]
    return tf.cumsum(tf.cast((classes == 0) | begins, tf.int32)) - 1


def _lookup(table, keys, default):
    """Looks up integers in a sorted table: two arrays, keys and values."""
    table_keys, values = (tf.constant(each) for each in table)
    keys = tf.cast(keys, tf.int64)
    places = tf.searchsorted(table_keys, keys)
    places = tf.minimum(places, len(table[0]) - 1)
    found = tf.gather(table_keys, places) == keys
    return tf.where(found, tf.gather(values, places), default)


@functools.cache
def _tables():
    """Returns Unicode's combining classes, decompositions and compositions."""
    import numpy as np

    characters = [*map(chr, range(0xD800)), *map(chr, range(0xE000, _MAX_SCALAR))]
    classes, decomposed, pairs, unstable = {}, {}, {}, []
    for character in characters:
        code = ord(character)
        if combining := unicodedata.combining(character):
            classes[code] = combining
        full = unicodedata.normalize("NFD", character)
        is_stable = unicodedata.normalize("NFC", character) == character
        if full == character or 0xAC00 <= code < 0xD7A4:
            continue
        decomposed[code] = [*map(ord, full)]
        if is_stable:
            left = unicodedata.normalize("NFC", full[:-1])
            pairs[ord(left) * 2**32 + ord(full[-1])] = code
        else:
            unstable.append(code)

    def table(mapping):
        keys = np.array(sorted(mapping), np.int64)
        return keys, np.array([mapping[key] for key in sorted(mapping)], np.int32)

    parts = np.zeros((len(decomposed), 4), np.int32)
    for number, code in enumerate(sorted(decomposed)):
        parts[number, : len(decomposed[code])] = decomposed[code]
    numbers = {code: number for number, code in enumerate(sorted(decomposed))}
    codes = "".join(rf"\x{{{code:x}}}" for code in unstable)
    return {
        "classes": table(classes),
        "decomposed": table(numbers),
        "parts": parts,
        "pairs": table(pairs),
        # Medial and final jamo are letters.
        "may_change": rf"[\p{{M}}\x{{1161}}-\x{{11ff}}{codes}]+",
    }
