"""Byte-pair encoding through SentencePiece (section 5.1 of the paper)."""

import functools
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError
from keras_transformer.native_output import hide_normalizer_message
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.bpe_dropout import BpeDropout
from keras_transformer.pipelines.tokenizers.model_check import (
    MAX_MODEL_BYTES,
    SPACE_MARK,
    check_sentencepiece_model,
    spelled_bytes,
)
from keras_transformer.pipelines.tokenizers.normalization import normalize_texts
from keras_transformer.signals import call_in_thread
from keras_transformer.untrusted import shorten

# SentencePiece writes a space as U+2581 and would decode a U+2581 in a text to a space.
# In texts, U+2581 is therefore escaped as U+F8FE, a private-use character, followed by
# "1". U+F8FE itself is escaped as U+F8FE followed by "0".
ESCAPE = "\uf8fe"
ESCAPED_ESCAPE = ESCAPE + "0"
ESCAPED_SPACE_MARK = ESCAPE + "1"

# Longest text, in bytes, from which SentencePiece learns. It ignores longer ones.
_MAX_TEXT_BYTES = 1 << 16
_MAX_PART = _MAX_TEXT_BYTES // 8  # characters
# A part ends at a space if possible, because no subword spans a space.
_PARTS = re.compile(rf"(?s)(.{{1,{_MAX_PART}}})(?: |\Z)|(.{{1,{_MAX_PART}}})")


class SentencePieceVocabulary(Tokenizer):
    """Base class of tokenizers with the pieces of a checked SentencePiece model."""

    kind = "bpe"
    file_name = "tokenizer.model"
    _max_bytes = MAX_MODEL_BYTES

    def __init__(self, model: bytes):
        super().__init__()
        self._content = model
        surfaces = self.piece_bytes()
        self.vocabulary_size = len(surfaces)
        # SentencePiece also decodes the unknown id to U+2047 between spaces.
        surfaces[self.unknown_id] = " \u2047 ".encode()
        self._surfaces = tf.constant(surfaces)

    @property
    def model(self) -> bytes:
        """Content of the SentencePiece model file."""
        return self._content

    @property
    def has_merges(self) -> bool:
        """Whether this is a BPE model, whose merges `sample` can skip."""
        spec = self._proto().trainer_spec
        return spec.model_type == spec.BPE

    def _proto(self) -> ModelProto:
        return ModelProto.FromString(self._content)

    def join(self, ids):
        """Joins ids, and reverses `escape_tensor`."""
        strings = super().join(ids)
        strings = tf.strings.regex_replace(strings, ESCAPED_SPACE_MARK, SPACE_MARK)
        return tf.strings.regex_replace(strings, ESCAPED_ESCAPE, ESCAPE)

    def pieces(self) -> list[str]:
        return [piece.piece for piece in self._proto().pieces]

    def num_symbols(self) -> int:
        """Returns the number of special ids and `symbols`, which precede all others."""
        pieces = enumerate(self._proto().pieces)
        return next(number for number, piece in pieces if piece.type == piece.BYTE)

    def piece_bytes(self) -> list[bytes]:
        return [spelled_bytes(piece) for piece in self._proto().pieces]


class BytePairTokenizer(SentencePieceVocabulary):
    """Tokenizer with a SentencePiece model and byte fallback: no input is unknown.

    The ids match the sentencepiece library for the same model file, except for texts
    with U+2581 or U+F8FE, which the library cannot round-trip. `model` is the file's
    content.
    """

    def __init__(self, model: bytes):
        check_sentencepiece_model(model, lossless=True)
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # If the library's error message quotes invalid UTF-8, decoding the message
        # raises a `ValueError`.
        except (RuntimeError, ValueError):
            raise DataError("not a SentencePiece model") from None
        ids = processor.pad_id(), processor.unk_id()
        ids += processor.bos_id(), processor.eos_id()
        if ids != (self.pad_id, self.unknown_id, self.start_id, self.end_id):
            raise DataError(
                "the SentencePiece model must have the ids 0 (padding), 1 (unknown), 2 "
                f"(start) and 3 (end). Received ids: {', '.join(map(str, ids))}"
            )
        splitter = SentencePieceSplitter(model, tf.int32)
        super().__init__(model)
        self._split = splitter
        self._dropout = None

    def tokenize(self, strings):
        return self._split(escape_tensor(self.normalized(strings)))

    @functools.cached_property
    def split_language_prefix(self):
        """Function that splits tags off texts, or `None` if none is reserved.

        It is like `MarianTokenizer.split_language_prefix`. The symbols of parse trees,
        whose vocabularies have no `TextSettings`, are not tags.
        """
        pieces = () if self.text is None else self._proto().pieces
        tags = [
            re.escape(piece.piece.removeprefix(SPACE_MARK))
            for piece in pieces
            if piece.type == piece.USER_DEFINED and piece.piece.startswith(SPACE_MARK)
        ]
        if not tags:
            return None
        tag = rf"(?s)^\s*({'|'.join(tags)})\s+"

        def split(strings):
            prefix = tf.strings.regex_replace(strings, f"{tag}.*", r"\1 ")
            rest = tf.strings.regex_replace(strings, tag, "")
            return tf.where(rest != strings, prefix, ""), rest

        return split

    def sample(self, strings: Sequence[str], dropout: float, seed: int):
        # The sampler is kept for later calls, because it caches the splits of words.
        if self._dropout is None:
            self._dropout = BpeDropout(self._content)
        strings = normalize_texts(strings, self.text)
        ids, lengths = self._dropout.sample(list(map(escape, strings)), dropout, seed)
        return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)


class SentencePieceSplitter(tf.Module):
    """Splits texts into ids (`out_type` is `tf.int32`) or pieces (`tf.string`)."""

    def __init__(self, model: bytes, out_type):
        super().__init__()
        self._model = model
        self._out_type = out_type
        try:
            self._load()
            self._operation.tokenize(["a"])
        except tf.errors.OpError:
            # tensorflow-text contains an older and stricter copy of the library.
            raise DataError(
                "tensorflow-text cannot read the model. Train the tokenizer again, or "
                "import the model again"
            ) from None

    def _load(self):
        # In a loaded SavedModel, operations with the same name would share one model.
        name = f"sentencepiece_{hashlib.sha256(self._model).hexdigest()[:16]}"
        with hide_normalizer_message():
            self._operation = tensorflow_text.SentencepieceTokenizer(
                self._model, self._out_type, name=name
            )

    def __call__(self, strings):
        """Splits a string tensor `[batch]` into a RaggedTensor `[batch, (length)]`."""
        try:
            return self._operation.tokenize(strings)
        except tf.errors.NotFoundError:
            # `tf.random.set_seed` deletes the resources of eager operations, so the
            # model is loaded again.
            self._load()
            return self._operation.tokenize(strings)


def train_byte_pairs(
    sentences: Iterable[str],
    vocabulary_size: int,
    split_digits: bool = False,
    character_coverage: float = 0.9999,
    symbols: Sequence[str] = (),
) -> BytePairTokenizer:
    """Trains a BPE tokenizer on text (see `train_tokenizer`).

    Characters beyond the fraction `character_coverage` of the text are encoded as
    bytes. `symbols` have their own ids at the start of a text or after a space.
    """
    model = io.BytesIO()
    try:
        train = functools.partial(
            sentencepiece.SentencePieceTrainer.train,
            sentence_iterator=_short_texts(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary_size,
            character_coverage=character_coverage,
            byte_fallback=True,
            split_digits=split_digits,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=_MAX_TEXT_BYTES,
            pad_id=Tokenizer.pad_id,
            unk_id=Tokenizer.unknown_id,
            bos_id=Tokenizer.start_id,
            eos_id=Tokenizer.end_id,
            user_defined_symbols=[SPACE_MARK + symbol for symbol in symbols],
            minloglevel=2,
        )
        call_in_thread(train)
    except RuntimeError as error:
        size, message = f"tokenizer.vocabulary_size={vocabulary_size}", str(error)
        if largest := re.search(r"set it to a value <= (\d+)", message):
            problem = (
                f"{size} is too large for this text. The largest possible value is "
                f"{largest[1]}."
            )
        elif smallest := re.search(r"than required_chars\. \d+ vs (\d+)", message):
            problem = (
                f"{size} must be at least {smallest[1]}, the number of special ids, "
                "bytes and characters."
            )
        else:
            problem = f"training byte pairs with {size} failed: {shorten(message)}"
        raise DataError(problem) from None
    return BytePairTokenizer(model.getvalue())


def _short_texts(sentences: Iterable[str]) -> Iterator[str]:
    """Yields escaped texts. Those that SentencePiece would ignore are split."""
    for text in map(escape, sentences):
        if len(text.encode()) < _MAX_TEXT_BYTES:
            yield text
        else:
            yield from (part[1] or part[2] for part in _PARTS.finditer(text))


def escape(sentence: str) -> str:
    """Escapes U+2581, SentencePiece's space mark, and the escape character U+F8FE."""
    sentence = sentence.replace(ESCAPE, ESCAPED_ESCAPE)
    return sentence.replace(SPACE_MARK, ESCAPED_SPACE_MARK)


def escape_tensor(strings):
    """Like `escape`, but takes a string tensor."""
    strings = tf.strings.regex_replace(strings, ESCAPE, ESCAPED_ESCAPE)
    return tf.strings.regex_replace(strings, SPACE_MARK, ESCAPED_SPACE_MARK)
