"""Tokenizers of models whose source and target have separate vocabularies."""

import hashlib
import os

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import Tokenizer

# Subfolders in which `save` stores the two tokenizers.
SIDE_FOLDERS = ("source", "target")


class SeparateTokenizers(Tokenizer):
    """Source tokenizer, whose attribute `target` is the target tokenizer.

    `save` and `fingerprint` apply to both tokenizers, all other methods to the source.

    Args:
        source: `Tokenizer` of the source.
        target: `Tokenizer` of the target, of the same kind.

    Raises:
        DataError: If the kinds differ.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        super().__init__()
        if source.kind != target.kind:
            raise DataError(
                "the tokenizers of source and target must be of the same kind. "
                f"Received: {source.kind} and {target.kind}."
            )
        self.kind = source.kind
        self.vocabulary_size = source.vocabulary_size
        self._source = source
        self._target = target

    @property
    def source(self):
        return self._source

    @property
    def target(self):
        return self._target

    def tokenize(self, strings):
        return self._source.tokenize(strings)

    def sample(self, strings, dropout, seed):
        return self._source.sample(strings, dropout, seed)

    def detokenize(self, ids):
        return self._source.detokenize(ids)

    def pieces(self) -> list[str]:
        return self._source.pieces()

    def piece_bytes(self) -> list[bytes]:
        return self._source.piece_bytes()

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizers into `folder/source` and `folder/target`."""
        for side, tokenizer in zip(
            SIDE_FOLDERS, (self._source, self._target), strict=True
        ):
            tokenizer.save(os.path.join(folder, side))

    def fingerprint(self) -> str:
        both = f"{self._source.fingerprint()} {self._target.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()
