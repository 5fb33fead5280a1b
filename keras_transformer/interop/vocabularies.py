"""Vocabulary files of Marian and Hugging Face.

Marian's `vocab.yml` is parsed here, without a YAML library: pieces may be any text, and
YAML libraries reject, misread, or drop some of them.
"""

import json
import re

from keras_transformer.errors import DataError, ModelError
from keras_transformer.pipelines.tokenizers.model_check import sentencepiece_pieces
from keras_transformer.untrusted import read_bytes

MAX_VOCABULARY_BYTES = 64 << 20
# The escapes in YAML that consist of a backslash and one character. The other escapes,
# \x, \u, and \U, have hexadecimal digits.
_ESCAPES = {
    **{"0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v"},
    **{"f": "\f", "r": "\r", "e": "\x1b", " ": " ", '"': '"', "/": "/", "\\": "\\"},
    **{"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"},
}
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL
)
_QUOTED = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"'((?:[^']|'')*)'", re.DOTALL),
}
_ENTRY = re.compile(r"(.*):\s+(\d{1,9})\s*", re.DOTALL)
_VALUE = re.compile(r":\s+(\d{1,9})\s*")
# Characters that YAML must escape: control characters, line separators, and others that
# PyYAML refuses.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)


def read_vocabulary(path):
    """Returns the pieces of a vocabulary whose ids are 0, 1, 2, and so on."""
    entries = read_entries(path)
    missing = next((n for n, number in enumerate(entries) if n != number), None)
    if missing is not None:
        raise ModelError(
            f"{path}: no subword has the id {missing}. Ids must be 0, 1, 2, and so on"
        )
    return tuple(entries.values())


def read_entries(path, size=None):
    """Returns the pieces of a vocabulary by id, in the order of the ids.

    The suffix determines the format: `.yml`, `.yaml`, `.json` or `.spm`. As in Marian,
    a file with any other suffix is text with one piece per line, and pieces whose id is
    not below `size` are ignored.
    """
    if path.suffix == ".fsv":
        raise ModelError(f"{path}: factored vocabularies (.fsv) are not supported")
    content = read_bytes(path, MAX_VOCABULARY_BYTES, ModelError)
    parsers = {".json": _json_entries, ".yml": _yaml_entries, ".yaml": _yaml_entries}
    parse = parsers.get(path.suffix, _line_entries)
    try:
        if path.suffix == ".spm":
            return dict(enumerate(sentencepiece_pieces(content)))
        # This codec removes a byte order mark.
        return _sort_entries(parse(content.decode("utf-8-sig")), size)
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text") from None
    except (DataError, ModelError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from None


def format_vocabulary(pieces):
    """Returns the content of `vocab.yml`, one entry per line.

    All pieces are quoted, because Marian, PyYAML, and CTranslate2 read some unquoted
    pieces differently. In single quotes, only the quote itself is escaped. Pieces with
    unprintable characters are in double quotes.
    """
    return "".join(f"{_quote(piece)}: {n}\n" for n, piece in enumerate(pieces))


def _quote(piece):
    if not _UNPRINTABLE.search(piece):
        quoted = piece.replace("'", "''")
        return f"'{quoted}'"
    if len(piece) == 1 and piece < "\u0100":
        # In pieces of one character, CTranslate2 reads \x but not \u.
        return f'"\\x{ord(piece):02X}"'
    quoted = piece.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04X}", quoted) + '"'


def _line_entries(text):
    """Yields the (id, piece) pairs of a text with one piece per line."""
    lines = _split_lines(text.removesuffix("\n")) if text else []
    for number, piece in enumerate(lines):
        if not piece:
            raise ModelError(f"line {number + 1}: must have one subword, but is empty")
        yield number, piece


def _split_lines(text):
    """Returns the lines of a text, without one carriage return at each end."""
    # `splitlines` would also split at U+2028 and similar, which pieces may contain.
    return [line.removesuffix("\r") for line in text.split("\n")]


def _sort_entries(entries, size):
    """Returns a dict of the (id, piece) pairs with ids below `size`, sorted by id."""
    pieces, ids = {}, {}
    for number, piece in entries:
        if size is not None and number >= size:
            continue
        if number in pieces:
            raise ModelError(
                f"the id {number} belongs to {pieces[number]!r:.80} and {piece!r:.80}. "
                "Each id must have one subword"
            )
        if piece in ids:
            raise ModelError(
                f"the subword {piece!r:.80} has the ids {ids[piece]} and {number}. "
                "Each subword must have one id"
            )
        pieces[number], ids[piece] = piece, number
    if not pieces:
        raise ModelError("contains no subwords")
    return dict(sorted(pieces.items()))


def _json_entries(text):
    try:
        pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    except ValueError as error:
        raise ModelError(f"not JSON: {error}") from None
    if not isinstance(pairs, list):
        raise ModelError("a vocabulary must map subwords to ids")
    for pair in pairs:
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or type(pair[1]) is not int:
            raise ModelError("a vocabulary must map subwords to ids")
        if pair[1] < 0:
            raise ModelError(
                f"the id of {pair[0]!r:.80} must be at least 0. Received: {pair[1]}"
            )
        yield pair[1], _join_surrogates(pair[0])


def _yaml_entries(text):
    """Yields (id, piece) for each line `PIECE: ID`, or line pair `? PIECE`, `: ID`."""
    lines = _split_lines(text)
    index = 0
    while index < len(lines):
        line, place = lines[index], f"line {index + 1}"
        following = lines[index + 1] if index + 1 < len(lines) else ""
        index += 1
        if not line.strip():
            continue
        value = _VALUE.fullmatch(following)
        if line.startswith("? ") and value:
            index += 1
            yield int(value[1]), _scalar(line[2:], place)
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise ModelError(f"{place}: must be PIECE: ID. Received: {line!r:.80}")
        yield int(entry[2]), _scalar(entry[1], place)


def _scalar(text, place):
    """Returns the text of a YAML scalar, which is literal if it has no quotes."""
    text = text.strip(" \t")
    if text[:1] not in ("'", '"'):
        return text
    quoted = _QUOTED[text[0]].fullmatch(text)
    if quoted is None:
        raise ModelError(
            f"{place}: a subword in quotes must end with the closing quote. "
            f"Received: {text!r:.80}"
        )
    if text[0] == "'":
        return quoted[1].replace("''", "'")
    return _join_surrogates(
        _ESCAPE.sub(lambda found: _unescape(found, place), quoted[1])
    )


def _unescape(found, place):
    kind, digits = found[1][0], found[1][1:]
    if digits:
        number = int(digits, 16)
        if number > 0x10FFFF:
            raise ModelError(f"{place}: {found[0]} is not a character")
        return chr(number)
    if kind not in _ESCAPES:
        raise ModelError(f"{place}: {found[0]!r} is not a YAML escape")
    return _ESCAPES[kind]


def _join_surrogates(piece):
    """Joins escaped surrogates, pairs of which JSON and YAML may contain."""
    try:
        return piece.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ModelError(f"the subword {piece!r:.80} is not valid text") from None
