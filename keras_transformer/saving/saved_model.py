"""Translation with an exported SavedModel, whose search settings are fixed."""

import hashlib
import os
import pathlib
from typing import Annotated

from pydantic import BaseModel
from pydantic import Field

from keras_transformer.errors import ModelError
from keras_transformer.untrusted import read_json
from keras_transformer.untrusted import require_regular
from keras_transformer.untrusted import short

# Path in a version's folder.
LIMITS = pathlib.PurePath("assets.extra", "limits.json")


class _Limits(BaseModel):
    """Content of `limits.json`."""

    max_batch_size: Annotated[int, Field(ge=1, lt=2**31)]


def max_batch_size(path):
    """Returns the maximum batch size of the version in `path`.

    Exports of early versions have no limits. Their maximum is `None`.

    Raises:
        ModelError: If the limits cannot be read.
    """
    path = path / LIMITS
    if not os.path.lexists(path):
        return None
    return read_json(path, _Limits, error=ModelError).max_batch_size


def newest_version(path):
    """Returns the folder at or below `path` that contains an export, or `None`."""
    if (path / "saved_model.pb").is_file():
        return path
    versions = [
        folder
        for folder in path.iterdir()
        if folder.name.isdecimal() and (folder / "saved_model.pb").is_file()
    ]
    return max(versions, key=lambda folder: int(folder.name), default=None)


def load_saved_model(path, allow_unsafe=False):
    """Returns the result of `tf.saved_model.load` for a version's folder.

    Args:
        path: The folder.
        allow_unsafe: Whether to skip `check_saved_model`.

    Raises:
        ModelError: If it is damaged, refused, or not an export.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, registers the operations of the graph

    from keras_transformer.saving.graph_check import check_saved_model

    try:
        # TensorFlow would wait for a pipe.
        require_regular([*path.iterdir(), *(path / "variables").glob("*")], ModelError)
        if not allow_unsafe:
            check_saved_model(path)
        loaded = tf.saved_model.load(str(path))
        loaded.signatures["serving_default"]
    except ModelError:
        raise
    # The readers of a damaged export raise exceptions of any type.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from error
    return loaded


class ExportedTranslator:
    """Translates text with an export, whose search settings are fixed.

    It has the methods of `Translator` that an export supports.

    Args:
        path: The version's folder.
        allow_unsafe: Whether to skip `check_saved_model`.
        parallel_parts: Number of batches that are searched in parallel.
        warn: Same as in `Translator`.

    Raises:
        ModelError: If the export is damaged or refused.
    """

    batch_size = 64
    data = None  # an export does not contain the recipe

    def __init__(self, path, allow_unsafe=False, parallel_parts=1, warn=None):
        from keras_transformer.decoding.batches import log_warning

        self.path = path
        self.warn = warn or log_warning
        self.parallel_parts = parallel_parts
        self.batch_size = min(self.batch_size, max_batch_size(path) or self.batch_size)
        # The signature's variables live as long as the loaded object.
        self._loaded = load_saved_model(path, allow_unsafe)
        self._serve = self._loaded.signatures["serving_default"]
        _, inputs = self._serve.structured_input_signature
        (self._input_name,) = inputs

    def translate(self, lines):
        """Same as `Translator.translate`."""
        return [best.text for (best,) in self.n_best(lines)]

    def n_best(self, lines, n=1):
        """Like `Translator.n_best`, but returns the best translation only.

        Raises:
            ValueError: If `lines` is not a list of str.
            ModelError: If `n` is not 1.
        """
        import numpy as np
        import tensorflow as tf

        from keras_transformer.decoding.batches import check_texts
        from keras_transformer.decoding.compiled import parallel_map
        from keras_transformer.decoding.segments import Translation

        if n != 1:
            raise ModelError(
                f"{self.path}: a SavedModel returns one translation per line. For an "
                "n-best list, use the run's folder."
            )
        lines = check_texts(lines)
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]

        def translate_batch(rows):
            # Tensors cannot hold lone surrogates; they become question marks.
            batch = tf.constant([lines[row].encode("utf-8", "replace") for row in rows])
            return self._serve(**{self._input_name: batch})

        found = [None] * len(lines)
        cut = []
        for rows, outputs in parallel_map(
            translate_batch, batches, self.parallel_parts
        ):
            texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
            for row, text, score in zip(rows, texts, scores, strict=True):
                text = text.decode("utf-8", "replace")
                found[row] = [Translation(text, float(score))]
            # Exports of early versions lack this output.
            cut += [rows[i] for i in np.flatnonzero(outputs.get("truncated", []))]
        for row in sorted(cut):
            self.warn(
                row, "longer than the export's max_source_length. The rest was cut off."
            )
        return found

    def fingerprint(self):
        """Returns a hash of the graph and the weights, as hexadecimal digits."""
        digest = hashlib.sha256((self.path / "saved_model.pb").read_bytes())
        for path in sorted((self.path / "variables").iterdir()):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()
