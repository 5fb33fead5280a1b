"""What every tokenizer has in common."""

import os

import tensorflow as tf

from keras_transformer.errors import DataError


class Tokenizer(tf.Module):
    """Text to sub-word ids and back, losslessly and inside a TensorFlow graph.

    A `tf.Module`, so that an export can track its tables. Ids are the same in every
    kind: 0 padding, 1 unknown, 2 start, 3 end.

    Attributes:
        kind: "bpe" or "word_piece".
        vocabulary_size: the number of ids, the special ones among them.
    """

    kind: str
    vocabulary_size: int
    pad_id = 0
    unknown_id = 1
    start_id = 2
    end_id = 3

    def tokenize(self, strings):
        """Split texts into sub-words.

        Args:
            strings: string tensor [batch], UTF-8.

        Returns:
            RaggedTensor int32 [batch, (length)] without start and end ids.
        """

    def sample(self, strings, dropout, seed):
        """Split texts into sub-words at random: BPE-dropout, for training only.

        Each merge of two sub-words is left out with a probability, so that a model
        sees words in many segmentations (Provilkov et al., ACL 2020).

        Args:
            strings: list of str.
            dropout: the probability, in [0, 1). 0: as `tokenize`.
            seed: the result is a function of the arguments.

        Returns:
            RaggedTensor int32 [batch, (length)] without start and end ids.

        Raises:
            DataError: the tokenizer has no merges to leave out.
        """
        raise DataError(f"tokenizer.dropout needs byte pairs, not {self.kind}.")

    def detokenize(self, ids):
        """Join sub-words to text; never raises, whatever the ids.

        Args:
            ids: RaggedTensor or dense int tensor [batch, length]. Padding and start
                ids are skipped, as are ids outside the vocabulary; a row stops
                before its first end id.

        Returns:
            string tensor [batch], UTF-8.
        """
        return self._join(self._text_ids(ids))

    def pieces(self) -> list[str]:
        """The sub-words in the order of their ids, as the tokenizer's file has them."""

    def piece_bytes(self) -> list[bytes]:
        """What each id writes into a text, in the order of the ids.

        A character that the vocabulary lacks is written byte by byte. Special ids
        write nothing. The bytes of a text's ids, joined, are a space and the text
        (but where `BytePairTokenizer` hides a U+2581 or U+F8FE).
        """

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer into `folder`, to be read by `load_tokenizer`."""

    def fingerprint(self) -> str:
        """A hash that is equal for tokenizers that give equal ids."""

    def _join(self, ids):
        """Texts of ids that all stand for text, RaggedTensor int32 to [batch]."""

    def _text_ids(self, ids):
        """Keep what stands for text: RaggedTensor int32 [batch, (length)]."""
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(tf.convert_to_tensor(ids))
        flat_ids, rows = ids.flat_values, ids.value_rowids()
        is_end = tf.cast(flat_ids == self.end_id, tf.int32)
        ends_before = tf.cumsum(is_end, exclusive=True)
        # How many ends stand before each row begins; an empty row may be the last.
        at_row_start = tf.gather(tf.concat([ends_before, [0]], 0), ids.row_starts())
        in_text = ends_before + is_end == tf.gather(at_row_start, rows)
        in_range = (flat_ids >= 0) & (flat_ids < self.vocabulary_size)
        special = (flat_ids == self.pad_id) | (flat_ids == self.start_id)
        kept = tf.where(in_text & in_range & ~special)[:, 0]
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(tf.gather(flat_ids, kept), tf.int32),
            tf.gather(rows, kept),
            nrows=ids.nrows(),
            validate=False,
        )


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
