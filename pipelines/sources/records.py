"""Source of pairs that are already encoded as ids, in TFRecord files."""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Annotated

import tensorflow as tf
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash
from keras_transformer.pipelines.sources.base import Pairs, locate_in_files
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.registry import load_tokenizer
from keras_transformer.untrusted import MAX_LOG_BYTES, read_json, require_regular

RECORDS = "records.json"
FORMAT = 1
# Reasons to drop a pair, the keys of `dropped` in `records.json`, and their texts.
INVALID, EMPTY, REPEATED = "invalid_utf8", "empty", "repeated"
TOO_LONG, UNEVEN = "too_long", "uneven"
DROP_TEXTS = {
    INVALID: "not UTF-8 on a side",
    EMPTY: "with an empty side",
    REPEATED: "repeated",
    TOO_LONG: "longer than max_length",
    UNEVEN: "above max_ratio",
}
_CHUNK_PAIRS = 8192
# Errors raised for damaged records. TensorFlow's message quotes the record, so decoding
# the message may raise a `UnicodeDecodeError`.
_DAMAGE = (
    *(tf.errors.DataLossError, tf.errors.InvalidArgumentError),
    UnicodeDecodeError,
)


class _Shard(BaseModel):
    model_config = ConfigDict(extra="allow")

    # A name, not a path, so that it cannot refer to files outside the folder.
    name: Annotated[str, Field(pattern=r"^[\w-][\w.-]*$", max_length=255)]
    num_pairs: NonNegativeInt
    sha256: str | None = None


class _Manifest(BaseModel):
    """Content of `records.json`."""

    model_config = ConfigDict(extra="allow")

    format: int
    tokenizer: str
    shards: list[_Shard]


class RecordFolder(Pairs):
    """Folder with shards (TFRecord files of ids) and the tokenizer that produced them.

    The command `keras-transformer corpus prepare` writes such a folder. `encode_corpus`
    accepts it as a source, but iterating over it fails, because it has no texts.

    Args:
        folder: Path of the folder.

    Attributes:
        facts: Dict with the content of `records.json`.

    Raises:
        DataError: If `records.json` is missing or invalid, or a shard is missing or
            not a regular file.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = os.fspath(folder)
        path = os.path.join(self.folder, RECORDS)
        if not os.path.exists(path):
            raise DataError(
                f"{path}: no such file. Create the folder with `keras-transformer "
                "corpus prepare`"
            )
        manifest = read_json(path, _Manifest, MAX_LOG_BYTES, DataError)
        # The fingerprint contains the facts as stored, without defaults.
        self.facts = manifest.model_dump(exclude_unset=True)
        if self.facts["format"] != FORMAT:
            raise DataError(
                f"{path}: written by another version of the package. Create the folder "
                "again with this version"
            )
        self._shards = [
            (os.path.join(self.folder, shard["name"]), shard["num_pairs"])
            for shard in self.facts["shards"]
        ]
        require_regular([shard for shard, _ in self._shards], DataError)

    def tokenizer(self) -> Tokenizer:
        """Returns the tokenizer that produced the ids."""
        tokenizer = load_tokenizer(os.path.join(self.folder, "tokenizer"))
        self._check_tokenizer(tokenizer, "the one in the folder")
        return tokenizer

    def _check_tokenizer(self, tokenizer: Tokenizer, label: str) -> None:
        if tokenizer.fingerprint() != self.facts["tokenizer"]:
            raise DataError(
                f"{self.folder}: the ids come from a different tokenizer than {label}"
            )

    def id_chunks(self, tokenizer: Tokenizer) -> Iterator[list[tf.RaggedTensor]]:
        """Yields `[source_ids, target_ids]` in the order of the shards.

        Both are int32 RaggedTensors `[pairs, (length)]` without start and end ids.

        Raises:
            DataError: If a shard is missing, damaged, or has other ids than the
                tokenizer.
        """
        self._check_tokenizer(tokenizer, "the run's")
        feature = tf.io.RaggedFeature(tf.int64)
        features = {"source": feature, "target": feature}
        for path, num_pairs in self._shards:
            found = 0
            try:
                for chunk in tf.data.TFRecordDataset(path).batch(_CHUNK_PAIRS):
                    examples = tf.io.parse_example(chunk, features)
                    found += len(chunk)
                    sides = [examples["source"], examples["target"]]
                    sizes = tokenizer.vocabulary_size, tokenizer.target.vocabulary_size
                    for side, size in zip(sides, sizes, strict=True):
                        ids = side.flat_values
                        if tf.reduce_any((ids < 0) | (ids >= size)):
                            raise DataError(
                                f"{path}: has ids outside the vocabulary of {size} "
                                "ids. Run `corpus prepare` again with its tokenizer"
                            )
                    yield [tf.cast(side, tf.int32) for side in sides]
            except tf.errors.NotFoundError:
                raise DataError(f"{path}: no such file") from None
            except _DAMAGE as error:
                reason = str(getattr(error, "message", error)).partition("\n")[0]
                raise DataError(f"{path}: damaged: {reason}") from None
            if found != num_pairs:
                raise DataError(
                    f"{path}: has {found} records, but {RECORDS} lists {num_pairs}"
                )

    def fingerprint(self) -> str:
        """Returns a string that changes with the shards and their order.

        Raises:
            DataError: If a shard has changed since it was written.
        """
        facts = json.dumps(self.facts, sort_keys=True)
        hashes = [content_hash(path) for path, _ in self._shards]
        for (path, _), shard, found in zip(
            self._shards, self.facts["shards"], hashes, strict=True
        ):
            if shard.get("sha256") not in (None, found):
                raise DataError(
                    f"{path}: altered or damaged, because its SHA-256 differs from the "
                    f"one in {RECORDS}. Restore the file or create the folder again"
                )
        return hashlib.sha256(f"{facts} {hashes}".encode()).hexdigest()

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, from 1, as `shard file:record`."""
        shards = ((path, range(1, size + 1)) for path, size in self._shards)
        return locate_in_files(number, shards)


def describe_dropped(counts: dict[str, int]) -> str:
    """Returns the counts of dropped pairs with the texts of their reasons."""
    return ", ".join(
        f"{count:,} {DROP_TEXTS[reason]}" for reason, count in counts.items()
    )
