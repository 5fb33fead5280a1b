"""Opening an export: a SavedModel that translates as it was exported."""

import hashlib
import json
import logging
import pathlib

from keras_transformer.errors import ModelError
from keras_transformer.saving.keras_file import short

# In a version's folder.
LIMITS = pathlib.PurePath("assets.extra", "limits.json")


def max_batch_size(path):
    """Rows that a batch of the version in `path` may have, None where unknown."""
    try:
        limits = json.loads((path / LIMITS).read_text(encoding="utf-8"))
        return int(limits["max_batch_size"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def newest_version(path):
    """The folder at or below `path` that holds `saved_model.pb`, or None."""
    if (path / "saved_model.pb").is_file():
        return path
    versions = [
        folder
        for folder in path.iterdir()
        if folder.name.isdecimal() and (folder / "saved_model.pb").is_file()
    ]
    return max(versions, key=lambda folder: int(folder.name), default=None)


def load_saved_model(path, allow_unsafe=False):
    """What `tf.saved_model.load` gives for a version's folder.

    Args:
        path: the folder.
        allow_unsafe: whether to do without `check_saved_model`.

    Raises:
        ModelError: it is damaged, refused, or no export.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, its operations are in the graph

    from keras_transformer.saving.graph_check import check_saved_model

    try:
        if not allow_unsafe:
            check_saved_model(path)
        loaded = tf.saved_model.load(str(path))
        loaded.signatures["serving_default"]
    except ModelError as error:
        raise ModelError(str(error)) from error
    # A damaged export raises whatever its readers came across.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from error
    return loaded


def open_saved_model(path, warn=None, allow_unsafe=False, parallel_batches=1):
    """The model in a version's folder, see `models.open_model`."""
    loaded = load_saved_model(path, allow_unsafe)
    serve = loaded.signatures["serving_default"]
    return ExportedModel(path, loaded, serve, warn, parallel_batches)


class ExportedModel:
    """What searches as it was exported; see `models.open_model`."""

    batch_size = 64

    def __init__(self, path, loaded, serve, warn=None, parallel_batches=1):
        self.path = path
        self._warn = warn or logging.getLogger("keras_transformer").warning
        self._parallel_batches = parallel_batches
        self._loaded = loaded  # its variables live as long as this
        self._serve = serve
        self.batch_size = min(self.batch_size, max_batch_size(path) or self.batch_size)
        ((_, inputs),) = [serve.structured_input_signature]
        (self._input_name,) = inputs

    def translate(
        self,
        lines,
        beam_size=None,
        length_penalty=None,
        n_best=1,
        first_line=1,
        prefixes=None,
        forbidden=(),
        patience=None,
    ):
        if prefixes is not None or forbidden:
            raise ModelError(
                f"{self.path}: a SavedModel takes neither prefixes nor forbidden "
                "words; use the run's folder or the .keras file"
            )
        for name, value in (
            ("beam size", beam_size),
            ("length penalty", length_penalty),
            ("patience", patience),
            ("n-best list", None if n_best == 1 else n_best),
        ):
            if value is not None:
                raise ModelError(
                    f"{self.path}: a SavedModel's {name} is fixed when it is exported; "
                    "use the run's folder"
                )
        import numpy as np
        import tensorflow as tf

        from keras_transformer.decoding import Translation
        from keras_transformer.decoding.compiled import side_by_side

        results = [None] * len(lines)
        cut = []
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))

        def serve_batch(rows):
            # Lone surrogates, which no tensor can hold, become question marks.
            batch = tf.constant([lines[row].encode("utf-8", "replace") for row in rows])
            return self._serve(**{self._input_name: batch})

        batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]
        for rows, outputs in side_by_side(serve_batch, batches, self._parallel_batches):
            texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
            for row, text, score in zip(rows, texts, scores, strict=True):
                text = text.decode("utf-8", "replace")
                results[row] = [Translation(text, float(score))]
            # Older exports do not tell.
            for row in np.flatnonzero(outputs.get("truncated", [])):
                cut.append(first_line + rows[row])
        for number in sorted(cut):
            self._warn(
                f"line {number}: longer than the export reads; the rest is left out"
            )
        return results

    def sample(self, lines, num_samples=1, **_):
        raise ModelError(
            f"{self.path}: a SavedModel does not draw at random; use the run's folder "
            "or the .keras file"
        )

    def fingerprint(self):
        digest = hashlib.sha256((self.path / "saved_model.pb").read_bytes())
        for path in sorted((self.path / "variables").iterdir()):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def parse(self, sentences, *_, **__):
        raise ModelError(
            f"{self.path}: a SavedModel translates and does not parse; use the run's "
            "folder or the .keras file in it"
        )

    def score(self, sources, targets):
        raise ModelError(
            f"{self.path}: a SavedModel cannot score given translations; use the run's "
            "folder or the .keras file"
        )

    def align(self, sources, targets, line_numbers=None):
        raise ModelError(
            f"{self.path}: a SavedModel gives no alignments; use the run's folder or "
            "the .keras file"
        )

    def attention(self, source, target):
        raise ModelError(
            f"{self.path}: a SavedModel does not tell where it looks; use the run's "
            "folder or the .keras file"
        )

    def export(self, folder, *_, **__):
        raise ModelError(f"{self.path}: is exported already")

    def export_ctranslate2(self, folder, quantization="none"):
        raise ModelError(f"{self.path}: is exported already; use the run's folder")
