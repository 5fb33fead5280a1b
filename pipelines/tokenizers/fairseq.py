"""Tokenizer of M2M100, NLLB and mBART-50, multilingual models of the toolkit fairseq.

The ids of a vocabulary are `<s>`, `<pad>`, `</s>` and `<unk>`, the pieces of a
SentencePiece model, and the languages. A source begins with its language, and so does a
target. The decoder starts with `</s>` and is then given the target language.
"""

import base64
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import tensorflow as tf
from pydantic import BaseModel, ConfigDict

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import Tokenizer, lookup_table
from keras_transformer.pipelines.tokenizers.byte_pairs import SentencePieceSplitter
from keras_transformer.pipelines.tokenizers.marian import strip
from keras_transformer.pipelines.tokenizers.model_check import (
    MAX_MODEL_BYTES,
    SPACE_MARK,
    check_sentencepiece_model,
    piece_ids,
    spelled_bytes,
)
from keras_transformer.pipelines.tokenizers.normalization import clean

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# `>>fra_Latn<<` selects the target language, `>>deu_Latn fra_Latn<<` both languages.
_PREFIX = r">>(?:([\w-]+) +)?([\w-]+)<<"
TEXT_PREFIX = re.compile(f"^ *{_PREFIX} *", re.ASCII)
# Languages between these signs that are not such a prefix.
_LIKE_PREFIX = re.compile(r" *>>([^<>]*)<<")


class _File(BaseModel):
    """Content of a tokenizer file."""

    model_config = ConfigDict(strict=True)

    kind: Literal["fairseq"]
    source: str
    target: str
    languages: dict[str, int]
    pieces: list[str | None]
    model: str  # in Base64


class FairseqTokenizer(Tokenizer):
    """Tokenizer of the source side, with a property `target` for the target side.

    `tokenize` puts the source language before each text, and that of `target` the
    target language. A text may begin with its languages: `>>fra_Latn<<` is a target
    language, and `>>deu_Latn fra_Latn<<` a source and a target language. Ids are those
    of the SentencePiece library, so `</s>` or `__fr__` in a text are ordinary
    characters.

    Args:
        pieces: Pieces of the SentencePiece model in the order of the model's ids, and
            `None` for all other ids, such as the first four.
        model: Content of the SentencePiece model file.
        languages: Id of each language code.
        source: Source language of texts that name none.
        target: Target language of texts that name none.

    Raises:
        DataError: If the model or a language id is invalid, or a language is unknown.
    """

    kind = "fairseq"
    file_name = "tokenizer.fairseq"
    _max_bytes = 4 * MAX_MODEL_BYTES
    pad_id, end_id, unknown_id, start_id = 1, 2, 3, 2
    _normalize = staticmethod(clean)

    def __init__(
        self,
        pieces: Sequence[str | None],
        model: bytes,
        languages: Mapping[str, int],
        source: str,
        target: str,
    ):
        super().__init__()
        checked = check_sentencepiece_model(model)
        numbers = piece_ids(pieces)
        # `<s>` to `<unk>` have the first ids, so a piece or a language must not.
        free = {n for n, piece in enumerate(pieces) if n > 3 and piece is None}
        if any(pieces[:4]):
            raise DataError(
                "the first four ids must have no subwords. Received: "
                f"{pieces[:4]!r:.80}"
            )
        owners = {}
        for language, number in languages.items():
            if number not in free:
                raise DataError(
                    f"the id of {language} must be above 3 and have no subword. "
                    f"Received: {number}"
                )
            if owners.setdefault(number, language) != language:
                raise DataError(
                    "each id must belong to one language. Received: "
                    f"{number} for {owners[number]} and {language}"
                )
        for language in (source, target):
            if language not in languages:
                raise DataError(unknown_language(language, languages))
        self.model, self.languages = model, dict(languages)
        self.source_language, self.target_language = source, target
        self.vocabulary_size = len(pieces)
        self._pieces = tuple(pieces)
        self._splitter = SentencePieceSplitter(model, tf.int32)
        # Ids of the model by those of SentencePiece.
        found = [numbers.get(each.piece, self.unknown_id) for each in checked.pieces]
        self._ids = tf.constant(found, tf.int32)
        self._codes = lookup_table(languages, -1)
        spelled = {each.piece: spelled_bytes(each) for each in checked.pieces}
        self._bytes = tuple(
            b""
            if piece is None
            else spelled.get(piece, piece.replace(SPACE_MARK, " ").encode())
            for piece in pieces
        )
        self._surfaces = tf.constant(self._bytes)
        fields = {
            "kind": self.kind,
            "source": source,
            "target": target,
            # TensorFlow wraps the dict, and `json` of Python 3.13 does not write that.
            "languages": dict(self.languages),
            "pieces": list(pieces),
            "model": base64.b64encode(model).decode(),
        }
        self._content = json.dumps(fields, ensure_ascii=False, indent=1).encode()
        self._target = FairseqTarget(self)

    @property
    def target(self):
        self._target.text = self.text
        return self._target

    def _text_content(self):
        # The other settings do not change ids.
        return b"clean" * (self.text is not None and self.text.normalization)

    def tokenize(self, strings):
        source, _, texts = self._languages_of(strings)
        return self._tokenize(source, texts)

    def _tokenize(self, languages, texts):
        pieces = self._splitter(self.normalized(texts))
        ids = pieces.with_flat_values(tf.gather(self._ids, pieces.flat_values))
        return tf.concat([languages[:, None], ids], axis=1)

    def first_ids(self, strings):
        """Returns the target language of each text, int32 `[batch]`.

        A search generates it first.

        Raises:
            DataError: Outside of a graph, if a text begins with an unknown language or
                with languages in another form.
        """
        if tf.executing_eagerly():
            for text in tf.convert_to_tensor(strings, tf.string).numpy():
                self.check_prefix(text.decode("utf-8", "replace"))
        return self._languages_of(strings)[1]

    def check_prefix(self, text):
        """Raises `DataError` for a text that begins with languages in a wrong way."""
        if found := TEXT_PREFIX.match(text):
            for code in filter(None, found.groups()):
                if code not in self.languages:
                    raise DataError(unknown_language(code, self.languages))
            text = text[found.end() :]
        found = _LIKE_PREFIX.match(text)
        if found and not self.languages.keys().isdisjoint(found[1].split()):
            raise DataError(
                "a text may begin with >>TARGET<< or >>SOURCE TARGET<<, once and with "
                f"no other spaces. Received: {found[0].strip()[:80]!r}"
            )

    def split_language_prefix(self, strings):
        """Splits off the languages at the beginning of each text.

        Returns the prefixes, each followed by a space, or "" if there is none, and the
        texts without them, both string `[batch]`.
        """
        strings = tf.convert_to_tensor(strings, tf.string)
        texts = self._languages_of(strings)[2]
        prefixes = tf.strings.regex_replace(strings, f"(?s)^ *({_PREFIX}).*", r"\1 ")
        return tf.where(texts == strings, "", prefixes), texts

    def _languages_of(self, strings):
        """Returns source languages, target languages, and texts without prefixes."""
        strings = tf.convert_to_tensor(strings, tf.string)
        texts = tf.strings.regex_replace(strings, f"^ *{_PREFIX} *", "")
        codes = [
            tf.strings.regex_replace(strings, f"(?s)^ *{_PREFIX}.*", rf"\{group}")
            for group in (1, 2)
        ]
        source, target = map(self._codes.lookup, codes)
        is_known = (texts != strings) & (target >= 0)
        is_known &= (codes[0] == "") | (source >= 0)
        defaults = self.source_language, self.target_language
        source, target = (
            tf.where(is_known & (ids >= 0), ids, self.languages[default])
            for ids, default in zip((source, target), defaults, strict=True)
        )
        return source, target, tf.where(is_known, texts, strings)

    def join(self, ids):
        return strip(super().join(ids))

    def pieces(self) -> list[str]:
        names = {**{n: f">>{code}<<" for code, n in self.languages.items()}}
        names |= dict(enumerate(SPECIAL))
        return [
            names.get(n, f"<unused{n}>") if piece is None else piece
            for n, piece in enumerate(self._pieces)
        ]

    def piece_bytes(self) -> list[bytes]:
        # A language is no part of the text. Of two spaces, alignments remove one, and
        # the other remains as a unit of the language.
        found = list(self._bytes)
        for number in self.languages.values():
            found[number] = b"  "
        return found

    @classmethod
    def _parse(cls, content):
        try:
            file = _File.model_validate_json(content)
            model = base64.b64decode(file.model, validate=True)
        except ValueError:
            raise DataError("not a fairseq tokenizer. Import the model again") from None
        return cls(file.pieces, model, file.languages, file.source, file.target)


class FairseqTarget(FairseqTokenizer):
    """Tokenizer of the target side, with the tables of the source side."""

    def __init__(self, source):
        Tokenizer.__init__(self)
        for name in (
            *("model", "languages", "source_language", "target_language"),
            *("vocabulary_size", "_pieces", "_splitter", "_ids", "_codes"),
            *("_bytes", "_surfaces", "_content"),
        ):
            setattr(self, name, getattr(source, name))

    @property
    def target(self):
        return self

    def tokenize(self, strings):
        _, target, texts = self._languages_of(strings)
        return self._tokenize(target, texts)


def unknown_language(code, languages):
    """Returns the message about an unknown language code, with the nearest codes."""
    # `fr` means `fra_Latn`, whatever other codes resemble it.
    name = _name(code)
    same = [
        each
        for each in languages
        if name and (_name(each).startswith(name) or name.startswith(_name(each)))
    ]
    near = same + difflib.get_close_matches(code, languages, n=5, cutoff=0.35)
    near = [*dict.fromkeys(near)][:5]
    return (
        f"the model has no language {code[:40]!r}. "
        f"{'The nearest are' if near else 'It has'}: {', '.join(near or languages)}."
    )


def _name(code):
    """Returns the first part of a language code, such as `fra` of `fra_Latn`."""
    return re.split("[_-]", code.lower())[0]
