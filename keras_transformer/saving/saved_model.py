"""Translation with an exported SavedModel.

An export is a folder with a SavedModel per version, in the subfolders `1`, `2` and so
on.
"""

import functools
import hashlib
import os
import pathlib
from typing import Annotated

from pydantic import BaseModel, Field

from keras_transformer.errors import NOT_FINITE, ModelError
from keras_transformer.files import require_readable_path
from keras_transformer.saving.stored_weights import check_finite
from keras_transformer.untrusted import read_json, require_regular, shorten

# File with the limits, relative to the folder of a version.
LIMITS = pathlib.PurePath("assets.extra", "limits.json")


_Limit = Annotated[int, Field(ge=1, lt=2**31)]


class ExportLimits(BaseModel):
    """Content of `limits.json`.

    Attributes:
        max_batch_size: Maximum number of rows per batch.
        max_source_length: Maximum number of subwords of a source, including the end id.
        end_id: End id of a source, for warm-up requests.
    """

    max_batch_size: _Limit
    max_source_length: _Limit
    end_id: int = Field(ge=0, lt=2**31)


def read_limits(path):
    """Returns the `ExportLimits` of a version's folder, or `None` if it has none.

    Raises:
        ModelError: If the limits cannot be read.
    """
    path = path / LIMITS
    if not os.path.lexists(path):
        return None
    return read_json(path, ExportLimits, error=ModelError)


def limit_batch_size(path, batch_size):
    """Returns `batch_size`, or the maximum batch size of the export if smaller.

    Raises:
        ModelError: If the limits cannot be read.
    """
    limits = read_limits(path)
    return min(batch_size, limits.max_batch_size) if limits else batch_size


def load_saved_model(path, allow_unsafe=False):
    """Checks an export and loads it with `tf.saved_model.load`.

    Args:
        path: Folder of one version of the export.
        allow_unsafe: Whether to skip the checks. An unchecked SavedModel can run any
            code.

    Raises:
        ModelError: If the SavedModel fails the checks, is damaged, or is not an export.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, registers the operations of the graph

    from keras_transformer.pipelines.tokenizers.library_log import (
        hide_normalizer_message,
    )
    from keras_transformer.saving.graph_check import check_saved_model

    require_readable_path(path, ModelError)
    try:
        # Opening a named pipe would block forever. `rglob` does not follow links to
        # folders, but TensorFlow opens the files in them, so `glob` adds these files.
        require_regular([*path.rglob("*"), *path.glob("*/*")], ModelError)
        if not allow_unsafe:
            check_saved_model(path)
        with hide_normalizer_message():
            loaded = tf.saved_model.load(str(path))
        if "serving_default" not in loaded.signatures:
            raise _foreign_error(path, "no signature serving_default")
        check_finite(path, loaded.signatures["serving_default"].variables)
    except ModelError:
        raise
    # Reading a damaged export can raise any exception.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from error
    return loaded


def _foreign_error(path, reason):
    """Returns the error about a SavedModel of another program."""
    return ModelError(
        f"{path}: not an export of this package, because it has {reason}. Create one "
        "with `keras-transformer export`."
    )


class ExportedTranslator:
    """Translates text with an export, whose search settings are fixed.

    It has the methods of `Translator` that an export supports.

    Args:
        path: Folder of one version of the export.
        allow_unsafe: Whether to skip the checks. An unchecked SavedModel can run any
            code.
        parallel_parts: Number of batches that are computed in parallel.
        warn: Called with a text's index and a message if a text is too long. By
            default, warnings are logged (see `Translator`).

    Raises:
        ModelError: If the SavedModel fails the checks, is damaged, or is not an export.
    """

    batch_size = 64
    data = None  # an export does not contain the recipe

    def __init__(self, path, allow_unsafe=False, parallel_parts=1, warn=None):
        from keras_transformer.decoding.batches import log_warning

        self.path = path
        self.warn = warn or log_warning
        self.parallel_parts = parallel_parts
        self.batch_size = limit_batch_size(path, self.batch_size)
        # The loaded object owns the variables. Signatures work only while it exists.
        self._loaded = load_saved_model(path, allow_unsafe)
        self._serve = self._loaded.signatures["serving_default"]
        if "translations" not in self._serve.structured_outputs:
            raise _foreign_error(path, "no output translations")
        _, inputs = self._serve.structured_input_signature
        (self._input_name,) = inputs

    def __repr__(self):
        signatures = ", ".join(sorted(self._loaded.signatures))
        return f"ExportedTranslator({self.path}: {signatures})"

    def translate(self, lines):
        """Same as `Translator.translate`."""
        return [best.text for (best,) in self.n_best(lines, 1)]

    def n_best(self, lines, n=None):
        """Like `Translator.n_best`, but without prefixes.

        `n` defaults to the beam size of the export.

        Raises:
            ValueError: If `lines` is not a list of str, or `n` is below 1.
            ModelError: If `n` exceeds the beam size of the export.
        """
        from keras_transformer.decoding.batches import check_texts
        from keras_transformer.decoding.options import check_at_least
        from keras_transformer.decoding.segments import Translation

        lines = check_texts(lines)
        serve = self._serve if n == 1 else self._signature("translate_n_best")
        # `translate_n_best` returns one column per hypothesis of the beam.
        beam_size = 1 if n == 1 else serve.structured_outputs["translations"].shape[1]
        n = beam_size if n is None else n
        check_at_least("n", n, 1)
        if n > beam_size:
            raise ModelError(
                f"{self.path}: cannot return an n-best list of {n}, because it was "
                f"exported with a beam size of {beam_size}. Export the model with a "
                "larger beam."
            )
        found, cut = [None] * len(lines), []
        for rows, outputs in self._run(serve, {self._input_name: lines}):
            columns = (outputs["translations"].numpy(), outputs["scores"].numpy())
            texts, scores = (each.reshape(len(rows), -1)[:, :n] for each in columns)
            counts = (
                outputs["counts"].numpy() if "counts" in outputs else [1] * len(rows)
            )
            for row, *ranked, count in zip(rows, texts, scores, counts, strict=True):
                pairs = list(zip(*ranked, strict=True))[:count]
                found[row] = [
                    Translation(text.decode("utf-8", "replace"), float(score))
                    for text, score in pairs
                ]
            cut += _truncated(rows, outputs)
        for row in sorted(cut):
            self.warn(row, "too long for the export. Part of it was not translated.")
        return found

    def score(self, sources, targets):
        """Like `Translator.score`, but cuts texts that are too long, with a warning."""
        from keras_transformer.decoding.batches import check_pairs
        from keras_transformer.decoding.scoring import PairScore

        sources, targets = check_pairs(sources, targets)
        found, cut = [None] * len(sources), []
        columns = {"inputs": sources, "targets": targets}
        for rows, outputs in self._run(self._signature("score"), columns):
            log_probs, counts = (
                outputs["log_probs"].numpy(),
                outputs["num_tokens"].numpy(),
            )
            for row, log_prob, count in zip(rows, log_probs, counts, strict=True):
                found[row] = PairScore(float(log_prob), int(count))
            cut += _truncated(rows, outputs)
        for row in sorted(cut):
            self.warn(row, "too long for the export. Only its beginning was scored.")
        return found

    def attend(self, sources, targets):
        """Computes the mean cross-attention of the decoder's last two layers.

        Args:
            sources: List of str.
            targets: List of str, their translations.

        Returns:
            For each pair, a tuple of the source subwords (list of str), the target
            subwords (list of str), and their attention, float32 `[target_subwords,
            source_subwords]`. Subwords that share a character are joined (see
            `decoding.alignment.join_characters`). For a pair with a text that is too
            long for the export, `None`.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
        """
        from keras_transformer.decoding.batches import check_pairs

        sources, targets = check_pairs(sources, targets)
        found = [None] * len(sources)
        columns = {"inputs": sources, "targets": targets}
        for rows, outputs in self._run(self._signature("attend"), columns):
            cut = _truncated(rows, outputs)
            names = ("source_pieces", "target_pieces", "attention")
            arrays = [outputs[name].numpy() for name in names]
            for row, *sides, attention in zip(rows, *arrays, strict=True):
                source, target = map(_decode_pieces, sides)
                if row not in cut:
                    scores = attention[: len(target), : len(source)]
                    found[row] = (source, target, scores)
        return found

    def align(self, sources, targets):
        """Like `Translator.align`, but with the length limits of the export."""
        from keras_transformer.decoding.alignment import (
            align_words,
            count_added,
            words_of,
        )

        aligned = []
        for index, found in enumerate(self.attend(sources, targets)):
            if found is None:
                self.warn(index, "too long for the export. It was not aligned.")
                aligned.append([])
                continue
            *sides, scores = found
            source, target, prefix = (
                [piece.encode() for piece in side]
                for side in (*sides, self._source_prefix)
            )
            start = count_added(source, prefix, sources[index])
            words = words_of(source[start:]), words_of(target)
            aligned.append(align_words(scores[:, start:], *words))
        return aligned

    @functools.cached_property
    def _source_prefix(self):
        """Subwords before each source: the language prefix of some Marian models.

        An empty text has no other subwords.
        """
        (found,) = self.attend([""], [""])
        return [] if found is None else found[0]

    def _signature(self, name):
        """Returns the signature `name`.

        Raises:
            ModelError: If the export lacks it. Exports made before release 0.1 can have
                fewer signatures.
        """
        if name not in self._loaded.signatures:
            raise ModelError(
                f"{self.path}: has no signature {name}. Export the model again."
            )
        return self._loaded.signatures[name]

    def _run(self, signature, columns):
        """Runs a signature on batches of texts of similar lengths.

        Args:
            signature: Function of the SavedModel.
            columns: Mapping of input names to lists of str.

        Returns:
            List of (indices of the texts, outputs) pairs in any order.
        """
        import tensorflow as tf

        from keras_transformer.decoding.compiled import parallel_map

        lengths = [max(map(len, row)) for row in zip(*columns.values(), strict=True)]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]

        def run_batch(rows):
            # UTF-8 cannot encode lone surrogates. They become question marks.
            inputs = {
                name: tf.constant([texts[i].encode("utf-8", "replace") for i in rows])
                for name, texts in columns.items()
            }
            try:
                return signature(**inputs)
            except tf.errors.InvalidArgumentError as error:
                if NOT_FINITE not in str(error):
                    raise
                raise ModelError(f"{self.path}: {NOT_FINITE}") from error

        return parallel_map(run_batch, batches, self.parallel_parts)

    def fingerprint(self):
        """Returns a hash of the graph and the weights, as hexadecimal digits."""
        digest = hashlib.sha256((self.path / "saved_model.pb").read_bytes())
        for path in sorted((self.path / "variables").iterdir()):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def _decode_pieces(pieces):
    """Returns the pieces of a row as text, without the empty ones at its end."""
    # An unknown id within the row may have an empty piece.
    size = max((index for index, piece in enumerate(pieces, 1) if piece), default=0)
    return [piece.decode("utf-8", "replace") for piece in pieces[:size]]


def _truncated(rows, outputs):
    """Returns the rows whose text the export cut.

    Exports made before release 0.1 do not report such rows.
    """
    if "truncated" not in outputs:
        return []
    is_cut = outputs["truncated"].numpy()
    return [row for row, each in zip(rows, is_cut, strict=True) if each]
