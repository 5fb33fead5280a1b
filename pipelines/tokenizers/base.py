"""Base class of tokenizers."""

import functools
import hashlib
import os
import pathlib

import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.files import replace_file, replace_text
from keras_transformer.pipelines.tokenizers.normalization import (
    TextSettings,
    normalize,
)
from keras_transformer.untrusted import read_json

# File next to the tokenizer's file, with its `TextSettings`.
TEXT = "text.json"
# Names of the ids 0 to 3, for vocabularies that store them.
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[START]", "[END]")


class Tokenizer(tf.Module):
    """Converts text to subword ids and back inside a TensorFlow graph (base class).

    A tokenizer is a `tf.Module`, so that an exported SavedModel can track its tables.
    The special ids are 0 (padding), 1 (unknown), 2 (start) and 3 (end), except for the
    kinds "marian" and "fairseq".

    Attributes:
        kind: "bpe", "word_piece", "marian", "fairseq" or "keras_hub". The first two are
            lossless: `detokenize` restores the text exactly.
        vocabulary_size: Number of ids, including special ids.
        pad_id: Id of padding, and `unknown_id`, `start_id` and `end_id` likewise.
        source: Tokenizer of the source side, and `target` that of the target side. If
            both sides share one, this object.
        num_outputs: If not `None`, a model predicts only the first `num_outputs` ids.
        file_name: Name of the file that `save` writes.
        text: `TextSettings`, or `None` if it was made without them.

    Examples:
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> ids = tokenizer.tokenize(["12 euros"])
        >>> pieces = tokenizer.pieces()
        >>> [pieces[each] for each in ids[0].numpy()]
        ['▁', '1', '2', '▁', 'e', 'uro', 's']
        >>> tokenizer.detokenize(ids).numpy()[0].decode()
        '12 euros'
    """

    kind: str
    vocabulary_size: int
    file_name: str
    # Limit of the file, which may come from anyone.
    _max_bytes = 64 << 20
    _content: bytes  # of the file
    pad_id = 0
    unknown_id = 1
    start_id = 2
    end_id = 3
    num_outputs: int | None = None
    text: TextSettings | None = None
    _normalize = staticmethod(normalize)  # if `text.normalization` is true

    def __new__(cls, *args, **kwargs):
        tokenizer = super().__new__(cls)
        # TensorFlow would track and export an attribute that is set in the usual way.
        object.__setattr__(tokenizer, "_arguments", (args, kwargs))
        return tokenizer

    def __reduce__(self):
        # Another process needs tables and operations of its own.
        args, kwargs = self._arguments
        state = {} if self.text is None else {"text": self.text}
        return functools.partial(type(self), **kwargs), args, state

    @property
    def source(self) -> "Tokenizer":
        """The tokenizer of the source side. If both sides share one, this object."""
        return self

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target side. If both sides share one, this object."""
        return self

    def tokenize(self, strings):
        """Splits texts into subwords.

        Args:
            strings: string tensor `[batch]`, UTF-8.

        Returns:
            RaggedTensor int32 `[batch, (length)]` without start and end ids.
        """
        raise NotImplementedError

    def sample(self, strings, dropout, seed):
        """Splits texts into subwords at random (BPE-dropout), for training only.

        Each merge of two subwords is skipped with probability `dropout`. A model thus
        sees words in many segmentations (Provilkov et al., ACL 2020). A `dropout` of
        0.05 lengthens texts by a fifth.

        Args:
            strings: List of str.
            dropout: Probability in [0, 1). With 0, the result matches `tokenize`.
            seed: Non-negative integer. Equal seeds give equal results on any machine.

        Returns:
            RaggedTensor int32 `[batch, (length)]` without start and end ids.

        Raises:
            DataError: If the tokenizer has no merges.
        """
        raise DataError(
            "tokenizer.bpe_dropout requires `tokenizer.kind: bpe`. "
            f"Received: {self.kind}"
        )

    def detokenize(self, ids):
        """Joins subwords to text. Invalid ids do not raise an error.

        Args:
            ids: RaggedTensor or dense int tensor `[batch, length]`. Padding ids, start
                ids and ids outside the vocabulary are skipped, as is everything from a
                row's first end id on.

        Returns:
            string tensor `[batch]`, UTF-8.
        """
        return self.join(self._text_ids(ids))

    def pieces(self) -> list[str]:
        """Returns the subwords in the order of their ids, as in the saved file."""
        raise NotImplementedError

    def piece_bytes(self) -> list[bytes]:
        """Returns the bytes that each id adds to a text, in the order of the ids.

        Forbidden and required phrases need them. An id that encodes one byte of a
        character adds this byte. Special ids add nothing. If the tokenizer is lossless,
        the joined bytes of a text's ids are a space and the text, except where a BPE
        tokenizer escapes U+2581 or U+F8FE.

        Raises:
            DataError: If the bytes are unknown, as by default.
        """
        raise DataError(f"the bytes of {self.kind} subwords are unknown")

    def characters(self) -> frozenset[str]:
        """Returns the characters in subwords that are not single bytes.

        There are none if the bytes of the subwords are unknown.
        """
        try:
            bytes_of = self.piece_bytes()
        except DataError:
            return frozenset()
        spelled = zip(self.pieces(), bytes_of, strict=True)
        found = (each for piece, each in spelled if each[1:] or each == piece.encode())
        return frozenset().union(*(each.decode("utf-8", "ignore") for each in found))

    def unknown_characters(self) -> frozenset[str]:
        """Returns the Latin, Greek and Cyrillic letters, and `&`, that lack subwords.

        A capital whose lowercase letter is known is not one of them.
        """
        letters = filter(str.isalpha, map(chr, [*range(0x530), *range(0x1E00, 0x2000)]))
        texts = sorted({*letters, "&"} - self.characters())
        forms = [self.tokenize([*x]).to_list() for x in (texts, map(str.lower, texts))]
        return frozenset(
            text
            for text, *rows in zip(texts, *forms, strict=True)
            if all(self.unknown_id in row for row in rows)
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer into `folder`, from which `load_tokenizer` loads it."""
        os.makedirs(folder, exist_ok=True)
        with replace_file(os.path.join(folder, self.file_name)) as temporary:
            temporary.write_bytes(self._content)
        if self.text is not None:
            replace_text(os.path.join(folder, TEXT), self.text.model_dump_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Loads the tokenizer from the file that `save` wrote.

        Returns:
            Tokenizer of the class on which this is called.

        Raises:
            DataError: If the file is damaged or too large.
        """
        with open(path, "rb") as file:
            content = file.read(cls._max_bytes + 1)
        try:
            if len(content) > cls._max_bytes:
                raise DataError(
                    f"the file exceeds the limit of {cls._max_bytes:,} bytes"
                )
            tokenizer = cls._parse(content)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        settings = pathlib.Path(path).with_name(TEXT)
        if settings.is_file():
            tokenizer.text = read_json(settings, TextSettings, error=DataError)
        return tokenizer

    @classmethod
    def _parse(cls, content: bytes) -> "Tokenizer":
        return cls(content)

    def fingerprint(self) -> str:
        """Returns a str that identifies the tokenizer: equal ones produce equal ids.

        By default, it is a hash of what `save` writes. `encode_corpus` encodes a
        corpus again, and `Translator` refuses a stored model, if it has changed.
        """
        return hashlib.sha256(self._content + self._text_content()).hexdigest()

    def _text_content(self):
        if self.text is None:
            return b""
        # These settings are newer than some stored vocabularies.
        newer = {name for name in ("words", "numbers") if not getattr(self.text, name)}
        return self.text.model_dump_json(exclude=newer).encode()

    def normalized(self, strings):
        """Normalizes a string tensor `[batch]` if the settings require it.

        Returns:
            string `[batch]`.
        """
        is_normalized = self.text is not None and self.text.normalization
        return self._normalize(strings) if is_normalized else strings

    def join(self, ids):
        """Joins ids to texts for `detokenize`, which has removed the special ids.

        Args:
            ids: RaggedTensor int32 `[batch, (length)]`, ids of the vocabulary.

        Returns:
            string tensor `[batch]`, UTF-8.
        """
        # By default, `_surfaces` has the bytes of each id.
        surfaces = tf.gather(self._surfaces, ids.flat_values)
        strings = well_formed(
            tf.strings.unsorted_segment_join(surfaces, ids.value_rowids(), ids.nrows())
        )
        # `tokenize` added this space.
        return tf.strings.regex_replace(strings, "^ ", "", replace_global=False)

    def _text_ids(self, ids):
        """Removes ids that are not text: RaggedTensor int32 `[batch, (length)]`."""
        if isinstance(ids, tf.RaggedTensor):
            flat_ids, splits = ids.flat_values, tf.cast(ids.row_splits, tf.int64)
        else:
            num_rows, length = tf.unstack(tf.shape(ids, tf.int64))
            flat_ids = tf.reshape(ids, [-1])
            splits = tf.range(num_rows + 1) * length
        # `value_rowids` would take ten times as many operations.
        places = tf.range(1, tf.size(flat_ids, tf.int64) + 1)
        rows = tf.raw_ops.LowerBound(
            sorted_inputs=splits[None, 1:], values=places[None], out_type=tf.int64
        )[0]
        is_end = tf.cast(flat_ids == self.end_id, tf.int32)
        ends_before = tf.cumsum(is_end, exclusive=True)
        # Number of end ids before each row. An empty last row starts after the last id,
        # so one entry is appended.
        at_row_start = tf.gather(tf.concat([ends_before, [0]], 0), splits[:-1])
        in_text = ends_before + is_end == tf.gather(at_row_start, rows)
        in_range = (flat_ids >= 0) & (flat_ids < self.vocabulary_size)
        special = (flat_ids == self.pad_id) | (flat_ids == self.start_id)
        kept = tf.where(in_text & in_range & ~special)[:, 0]
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(tf.gather(flat_ids, kept), tf.int32),
            tf.gather(rows, kept),
            nrows=tf.size(splits, tf.int64) - 1,
            validate=False,
        )


def lookup_table(mapping, default, key_type=tf.string, value_type=tf.int32):
    """Creates a table of the values of keys, with `default` for all other keys."""
    initializer = tf.lookup.KeyValueTensorInitializer(
        [*mapping], [*mapping.values()], key_type, value_type
    )
    return tf.lookup.StaticHashTable(initializer, default)


def well_formed(strings):
    """Removes bytes that form no character, which a model can generate."""
    return tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="ignore")
