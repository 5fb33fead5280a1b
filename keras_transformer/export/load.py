"""Exports on disk: a folder with a SavedModel per version, `1`, `2` and so on."""

import os
import pathlib
from typing import Annotated

from pydantic import BaseModel, Field

from keras_transformer.errors import ModelError
from keras_transformer.files import require_readable_path
from keras_transformer.saving.stored_weights import check_finite
from keras_transformer.untrusted import read_json, require_regular, shorten

# File with the limits, relative to the folder of a version.
LIMITS = pathlib.PurePath("assets.extra", "limits.json")
_Limit = Annotated[int, Field(ge=1, lt=2**31)]


class ExportLimits(BaseModel):
    """Content of `limits.json`. Older exports lack those that have defaults."""

    max_batch_size: _Limit  # rows
    max_source_length: _Limit  # subwords, including the end id
    end_id: int = Field(ge=0, lt=2**31)  # of a source, for warm-up requests
    low_score: float | None = None  # attribute of `Translator`
    characters: str = ""  # of the source's vocabulary
    unknown_characters: str = ""  # which it cannot spell
    languages: list[str] = []  # codes that texts of a multilingual model may name
    scripts: list[str] = []  # field of `TextOptions`
    sentences: bool = False  # field of `TextOptions`

    def text_options(self):
        """Returns the `TextOptions` that decide what is translated."""
        from keras_transformer.decoding.text import TextOptions

        scripts = tuple(self.scripts)
        return TextOptions(layout=True, sentences=self.sentences, scripts=scripts)


def read_limits(path):
    """Returns the `ExportLimits` of a version's folder."""
    if not os.path.lexists(path / LIMITS):
        raise ModelError(
            f"{path}: not an export of this package, because it has no {LIMITS}. "
            "Create one with `keras-transformer export`"
        )
    return read_json(path / LIMITS, ExportLimits, error=ModelError)


def load_saved_model(path, allow_unsafe=False):
    """Checks one version of an export and loads it with `tf.saved_model.load`.

    Returns the loaded object, and its `ExportLimits`. With `allow_unsafe`, the
    SavedModel is not checked and can run any code.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, registers the operations of the graph

    from keras_transformer.export.graph_check import check_saved_model
    from keras_transformer.native_output import hide_normalizer_message

    require_readable_path(path, ModelError)
    try:
        # Opening a named pipe would block forever. `rglob` does not follow links to
        # folders, but TensorFlow opens the files in them, so `glob` adds these files.
        require_regular([*path.rglob("*"), *path.glob("*/*")], ModelError)
        limits = read_limits(path)
        if not allow_unsafe:
            check_saved_model(path)
        with hide_normalizer_message():
            loaded = tf.saved_model.load(str(path))
        check_finite(path, loaded.signatures["serving_default"].variables)
    except ModelError:
        raise
    # Reading a damaged export can raise any exception.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from error
    return loaded, limits
