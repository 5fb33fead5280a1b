"""Training pairs that are ids already, in files of records."""

import hashlib
import json
import os
from collections.abc import Iterator

import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.registry import load_tokenizer

_FORMAT = 1
_BLOCK_PAIRS = 8192


class RecordFolder:
    """What `beam_corpus.encode_with_beam` wrote: shards of ids, and their tokenizer.

    Takes the place of a source of texts in `encode_corpus`.

    Args:
        folder: the folder.

    Attributes:
        facts: what its `records.json` says.

    Raises:
        DataError: no such corpus there.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = os.fspath(folder)
        path = os.path.join(self.folder, "records.json")
        try:
            with open(path, encoding="utf-8") as file:
                self.facts = json.load(file)
            self._shards = [
                (os.path.join(self.folder, shard["name"]), shard["num_pairs"])
                for shard in self.facts["shards"]
            ]
            known = self.facts["format"] == _FORMAT
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: no list of records, as written by keras-transformer "
                f"corpus prepare ({error!r})."
            ) from None
        if not known:
            raise DataError(f"{path}: of another version of the package.")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the ids are of.

        Raises:
            DataError: it is missing or another one.
        """
        tokenizer = load_tokenizer(os.path.join(self.folder, "tokenizer"))
        self._check_tokenizer(tokenizer, "the tokenizer there")
        return tokenizer

    def _check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        if tokenizer.fingerprint() != self.facts["tokenizer"]:
            raise DataError(f"{self.folder}: {name} is not the one of the records.")

    def id_blocks(self, tokenizer: Tokenizer) -> Iterator[list[tf.RaggedTensor]]:
        """Blocks of pairs, in the order of the shards: ids of sources and of targets.

        Each is a RaggedTensor int32 [block, (length)], without end ids.

        Args:
            tokenizer: what the ids are taken for.

        Raises:
            DataError: a shard is missing, cut off or altered, or the ids are those of
                another tokenizer.
        """
        self._check_tokenizer(tokenizer, "the run's tokenizer")
        ids = tf.io.RaggedFeature(tf.int64)
        features = {"source": ids, "target": ids}
        for path, num_pairs in self._shards:
            found = 0
            try:
                for block in tf.data.TFRecordDataset(path).batch(_BLOCK_PAIRS):
                    sides = tf.io.parse_example(block, features)
                    found += len(block)
                    sides = [sides["source"], sides["target"]]
                    for ids in (side.flat_values for side in sides):
                        if tf.reduce_any(
                            (ids < 0) | (ids >= tokenizer.vocabulary_size)
                        ):
                            raise DataError(f"{path}: ids outside of the vocabulary.")
                    yield [tf.cast(side, tf.int32) for side in sides]
            except tf.errors.NotFoundError:
                raise DataError(f"{path}: no such file.") from None
            except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
                reason = str(error.message).partition("\n")[0]
                raise DataError(
                    f"{path}: damaged after record {found}: {reason}"
                ) from None
            if found != num_pairs:
                raise DataError(
                    f"{path}: {found} records, where records.json says {num_pairs}."
                )

    def fingerprint(self) -> str:
        """A text that changes with the content and the order of the shards."""
        facts = json.dumps(self.facts, sort_keys=True)
        hashes = [content_hash(path) for path, _ in self._shards]
        return hashlib.sha256(f"{facts} {hashes}".encode()).hexdigest()

    def locate(self, number: int) -> str:
        """Name the place of a pair, counted from 1, as ``shard:record``."""
        for path, num_pairs in self._shards:
            if number <= num_pairs:
                return f"{path}:{number}"
            number -= num_pairs
        raise IndexError(f"There is no pair {number}.")
