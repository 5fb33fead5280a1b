"""Tokenizer for models trained with the Marian toolkit.

Each side (source and target) has its own splitter and vocabulary. The splitter, a
SentencePiece model, splits a text into pieces. The vocabulary maps the pieces to the
ids of the Marian model. Marian has no ids for padding and start, so they get the two
ids after the vocabulary.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Literal

import tensorflow as tf
import tensorflow_text
from pydantic import BaseModel, ConfigDict

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import Tokenizer, lookup_table
from keras_transformer.pipelines.tokenizers.byte_pairs import SentencePieceSplitter
from keras_transformer.pipelines.tokenizers.model_check import (
    MAX_MODEL_BYTES,
    SPACE_MARK,
    check_sentencepiece_model,
    piece_ids,
    spelled_bytes,
)
from keras_transformer.pipelines.tokenizers.normalization import SPACES, clean

END_PIECE, UNKNOWN, PADDING, START = "</s>", "<unk>", "<pad>", "<s>"
# Same replacements as in the preprocessing script of OPUS-MT, which turns even a
# full-width 1 into a quotation mark.
_OPUS_REPLACEMENTS = {
    **dict(zip("，、∶：？）！（；～％━〈〉【】’", ",,::?)!(;~%-<>[]'", strict=True)),
    **dict(zip("０２３４５６７８９", "023456789", strict=True)),
    **dict.fromkeys("”“《》」「１", '"'),
    "…": "...",
}
_OPUS = (
    *((f"{character} *", ". ") for character in "。．"),
    *_OPUS_REPLACEMENTS.items(),
    (r"\p{C}", " "),
    ("  +", " "),
    ("^ | $", ""),
)
NORMALIZATIONS = {"opus": _OPUS}


class _Side(BaseModel):
    model_config = ConfigDict(strict=True)

    pieces: list[str]
    model: str | None  # in Base64


class _Target(_Side):
    pieces: list[str] | None  # `None` for the source's vocabulary
    model: str | None  # "source" for the source's model


class _File(BaseModel):
    """Content of a tokenizer file."""

    model_config = ConfigDict(strict=True)

    kind: Literal["marian"]
    normalization: str | None
    language: str | None
    prefixes: bool
    source: _Side
    target: _Target


class MarianSide(Tokenizer):
    """Tokenizer of one side: its splitter and its vocabulary.

    Both sides have `num_pieces` ids before padding and start. The names of added pieces
    differ from `pieces` and from `reserved`, the pieces of the other side.
    """

    kind = "marian"
    # Characters keep the form with which the model was trained.
    _normalize = staticmethod(clean)

    def __init__(self, pieces, model, num_pieces, normalization, reserved):
        super().__init__()
        numbers = piece_ids(pieces)
        for piece in (END_PIECE, UNKNOWN):
            if piece not in numbers:
                raise DataError(f"the vocabulary must contain {piece}")
        if normalization not in (None, *NORMALIZATIONS):
            raise DataError(
                f"normalization must be one of {', '.join(NORMALIZATIONS)}. "
                f"Received: {normalization!r}"
            )
        self.end_id, self.unknown_id = numbers[END_PIECE], numbers[UNKNOWN]
        self.pad_id, self.start_id = num_pieces, num_pieces + 1
        self.vocabulary_size = num_pieces + 2
        self.num_outputs = len(pieces)
        self.normalization = normalization
        self._pieces = tuple(pieces)
        unused = [f"<unused{number}>" for number in range(num_pieces - len(pieces))]
        self._added_pieces = [*unused, PADDING, START]
        taken = {*pieces, *reserved}
        for number, name in enumerate(self._added_pieces):
            while name in taken:
                name += "_"
            self._added_pieces[number] = name
        self.model = model  # content of a SentencePiece model file, or `None`
        # The characters `</s>` in a text must not become the end id.
        del numbers[END_PIECE]
        try:
            ids = {piece.encode(): number for piece, number in numbers.items()}
        except UnicodeEncodeError:
            raise DataError(
                "the vocabulary contains a subword that is not valid text"
            ) from None
        self._numbers = lookup_table(ids, self.unknown_id)
        self._bytes = {}
        if model is not None:
            checked = check_sentencepiece_model(model)
            self._splitter = SentencePieceSplitter(model, tf.string)
            self._bytes = {
                piece.piece: spelled_bytes(piece)
                for piece in checked.pieces
                if piece.type == piece.BYTE
            }
        self._surfaces = tf.constant(self.piece_bytes())

    def tokenize(self, strings):
        return self._lookup(self._split(self.normalized(strings)))

    def normalized(self, strings):
        strings = tf.convert_to_tensor(super().normalized(strings), tf.string)
        for pattern, replacement in NORMALIZATIONS.get(self.normalization, ()):
            strings = tf.strings.regex_replace(strings, pattern, replacement)
        return strings

    def _split(self, strings):
        """Splits a string tensor `[batch]` into a RaggedTensor `[batch, (length)]`."""
        if self.model is None:
            return tensorflow_text.regex_split(strings, " +")
        return self._splitter(strings)

    def _lookup(self, pieces):
        return pieces.with_flat_values(self._numbers.lookup(pieces.flat_values))

    def join(self, ids):
        strings = super().join(ids)
        if self.model is None:
            return strings
        return strip(strings)

    def pieces(self) -> list[str]:
        return [*self._pieces, *self._added_pieces]

    def piece_bytes(self) -> list[bytes]:
        space = " " if self.model is None else ""
        found = [
            self._bytes.get(piece, (space + piece.replace(SPACE_MARK, " ")).encode())
            for piece in self._pieces
        ]
        found[self.end_id] = b""
        return found + [b""] * (self.vocabulary_size - len(found))

    def fingerprint(self) -> str:
        fields = self._fields()
        if self.normalization is not None:
            fields.setdefault("normalization", self.normalization)
        if self.text is not None and self.text.normalization:
            fields["clean"] = True
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def _fields(self):
        model = None if self.model is None else base64.b64encode(self.model).decode()
        return {"pieces": list(self._pieces), "model": model}


class MarianTokenizer(MarianSide):
    """Tokenizer of the source side, with a property `target` for the target side.

    A language prefix such as `>>fra<<` at the beginning of a text is one piece. It
    selects the target language of OPUS-MT's multilingual models. The rest of the text
    is split. Hugging Face's `transformers.MarianTokenizer` behaves the same, except
    that it converts `</s>`, `<unk>` and `<pad>` in a text to special ids.

    Args:
        source: `(pieces, model)` of the source: the vocabulary in the order of its ids,
            with `</s>` and `<unk>`, and the content of a SentencePiece model file. If
            that is `None`, texts are split at spaces.
        target: `(pieces, model)` of the target.
        normalization: A key of `NORMALIZATIONS`, the replacements to make in texts
            before they are split. If `None`, texts are not changed.
        language: Target language. `"fra"`, for example, puts the language prefix
            `>>fra<<` and a space before each text that does not begin with a language
            prefix of the vocabulary. If `None`, texts are not changed.
        prefixes: Whether a language prefix is one piece. Ignored if the source has no
            SentencePiece model.

    Raises:
        DataError: If a side is invalid, or the vocabulary lacks the target language.
    """

    file_name = "tokenizer.marian"
    _max_bytes = 4 * MAX_MODEL_BYTES

    def __init__(
        self, source, target, normalization=None, language=None, prefixes=True
    ):
        num_pieces = max(len(source[0]), len(target[0]))
        super().__init__(*source, num_pieces, normalization, target[0])
        self._target = MarianSide(*target, num_pieces, normalization, source[0])
        if language is not None and f">>{language}<<" not in source[0]:
            known = ", ".join(languages(source[0])) or "none"
            raise DataError(
                f"the vocabulary has no target language {language!r}. It has: {known}"
            )
        self.language = language
        self._prefixes = prefixes and self.model is not None
        fields = self._fields()
        self._content = json.dumps(fields, ensure_ascii=False, indent=1).encode()

    @property
    def target(self):
        self._target.text = self.text
        return self._target

    def tokenize(self, strings):
        strings = self.normalized(strings)
        if self.language is not None:
            prefix, texts = self.split_language_prefix(strings)
            prefix = tf.where(prefix == "", f">>{self.language}<< ", prefix)
            strings = tf.strings.join([prefix, texts])
        if not self._prefixes:
            return self._lookup(self._split(strings))
        pattern = "(?s)^(>>.*?<<)"
        rest = tf.strings.regex_replace(strings, pattern, "", replace_global=False)
        has_prefix = rest != strings
        prefixes = tf.strings.regex_replace(strings, f"{pattern}.*", r"\1")
        prefixes = tf.RaggedTensor.from_row_lengths(
            tf.gather(prefixes, tf.where(has_prefix)[:, 0]),
            tf.cast(has_prefix, tf.int64),
            validate=False,
        )
        return self._lookup(tf.concat([prefixes, self._split(rest)], axis=1))

    def split_language_prefix(self, strings):
        """Splits off a known language prefix, such as `>>fra<<`, from each text.

        Returns the prefixes, each followed by a space, or "" if there is none, and the
        texts without them, both string `[batch]`.
        """
        prefix = tf.strings.regex_replace(strings, r"(?s)^(>>[^<>]*<<).*", r"\1")
        rest = tf.strings.regex_replace(strings, "^>>[^<>]*<< *", "")
        is_known = (rest != strings) & (self._numbers.lookup(prefix) != self.unknown_id)
        prefixes = tf.where(is_known, tf.strings.join([prefix, " "]), "")
        return prefixes, tf.where(is_known, rest, strings)

    def _fields(self):
        # A shared vocabulary is stored once.
        target = dict(self._target._fields())
        if target["pieces"] == list(self._pieces):
            target["pieces"] = None
        if self._target.model == self.model:
            target["model"] = "source" if self.model is not None else None
        return {
            "kind": self.kind,
            "normalization": self.normalization,
            "language": self.language,
            "prefixes": self._prefixes,
            "source": super()._fields(),
            "target": target,
        }

    @classmethod
    def _parse(cls, content):
        try:
            file = _File.model_validate_json(content)
            source, target = file.source, file.target
            model = _decode(source.model)
            other = model if target.model == "source" else _decode(target.model)
        except ValueError:
            raise DataError("not a Marian tokenizer") from None
        sides = (source.pieces, model), (target.pieces or source.pieces, other)
        return cls(*sides, file.normalization, file.language, file.prefixes)


def strip(strings):
    """Removes spaces around the texts of a string tensor, as `str.strip` does."""
    return tf.strings.regex_replace(strings, f"^{SPACES}|{SPACES}$", "")


def _decode(model: str | None) -> bytes | None:
    return None if model is None else base64.b64decode(model, validate=True)


def languages(pieces: Sequence[str]) -> list[str]:
    """Returns the target languages of a multilingual vocabulary, such as "fra"."""
    return [piece[2:-2] for piece in pieces if piece[:2] == ">>" and piece[-2:] == "<<"]
