"""Reading of models that may be untrusted: `.keras` files and presets.

Both have the same content: settings, weights and metadata, in an archive or a folder. A
model is refused if it contains anything else, or if its settings describe more weights
than it contains. The checks never run, import or unpickle anything that a file names.
What Keras checks while it reads the weights, such as links, is not checked here.
"""

import contextlib
import json
import os
import pathlib
import tempfile
import zipfile
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from keras_transformer.arguments import count_parameters
from keras_transformer.errors import ModelError
from keras_transformer.files import remove_tree, replace_file
from keras_transformer.recipes.data_sections import Section
from keras_transformer.recipes.schema import ModelSettings
from keras_transformer.saving.names import PRESET_CONFIG, PRESET_WEIGHTS, ModelSource
from keras_transformer.saving.stored_weights import count_stored_parameters
from keras_transformer.untrusted import (
    MAX_JSON_BYTES,
    parse_json,
    quote,
    read_bytes,
    read_json,
    require_regular,
    shorten,
)

ALLOW_UNSAFE = "If you trust the file, pass `allow_unsafe`"
METADATA = "metadata.json"
INPUT_SHAPES = {"source_ids": (None, None), "target_ids": (None, None)}
_MAX_BYTES = 8 << 30  # of a file of weights
_POLICIES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "mixed_float16",
    "mixed_bfloat16",
)


def _check_policy(value):
    """Returns the name of one of `_POLICIES`, given as its name or as Keras's JSON."""
    policy = value["config"] if isinstance(value, dict) and "config" in value else value
    name = policy.get("name") if isinstance(policy, dict) else policy
    plain = {"module": "keras", "class_name": "DTypePolicy", "registered_name": None}
    configs = [{"name": name}, {"name": name, "source_name": None}]
    accepted = [name, *({**plain, "config": each} for each in configs)]
    if name not in _POLICIES or value not in accepted:
        raise ValueError(f"must be one of {', '.join(_POLICIES)}, without options")
    return name


class _Settings(ModelSettings):
    """All arguments of `Transformer`, including those that no recipe contains."""

    size: None = None  # a file has no size
    vocabulary_size: PositiveInt
    output_size: PositiveInt | None = None
    pad_id: NonNegativeInt = 0
    name: str = "transformer"
    trainable: bool = True
    trainable_layers: dict[str, bool] | None = None
    dtype: Annotated[Any, AfterValidator(_check_policy)] = "float32"

    @model_validator(mode="before")
    @classmethod
    def _apply_size(cls, values: Any):
        # Overrides `ModelSettings._apply_size`, because a file has no size. Limits the
        # values instead.
        for name, value in values.items() if isinstance(values, dict) else ():
            # Keras and TensorFlow fail on sizes beyond int32.
            if type(value) is int and value >= 2**31:
                raise ValueError(f"{quote(name)} must be below 2**31")
            if isinstance(value, str) and len(value) > 100:
                raise ValueError(f"{quote(name)} must have at most 100 characters")
        return values


class SerializedModel(Section):
    """`config.json`, as Keras writes it for a `Transformer`."""

    class_name: Literal["Transformer"]
    module: Literal["keras_transformer.transformer"]
    registered_name: Literal["keras_transformer>Transformer"]
    config: _Settings
    build_config: Any = None  # not read
    compile_config: Any = None  # not read


class Metadata(BaseModel):
    """`metadata.json`, which may have more keys."""

    description: str = ""
    date_saved: str | None = None
    keras_version: str | None = None
    tokenizer_sha256: str | None = None  # `Tokenizer.fingerprint()`

    def origin(self):
        """Returns the date and the version of Keras as one text, or `None`."""
        date = self.date_saved and self.date_saved.replace("@", " ")
        return date and f"{date}, Keras {self.keras_version}"


class StoredModel(NamedTuple):
    """A stored model that has passed the checks but is not loaded."""

    settings: dict  # arguments of `Transformer`
    num_parameters: int
    metadata: Metadata
    weights: pathlib.Path


@contextlib.contextmanager
def open_checked(source, hint=ALLOW_UNSAFE):
    """Yields the `StoredModel` of a `ModelSource`.

    The archive of a `.keras` file is opened and read once. Its weights are extracted,
    because HDF5 seeks backward, and an archive then reads them again from the start.
    """
    if source.kind == "preset":
        yield check_preset(source.path)
        return
    path = source.weights
    with contextlib.ExitStack() as stack:
        with _refuse(path, hint):
            archive = stack.enter_context(zipfile.ZipFile(path))
            _check_members(archive, os.path.getsize(path))
            config, metadata = map(archive.read, (PRESET_CONFIG, METADATA))
            settings = _read_settings(config)
            metadata = parse_json(metadata, Metadata, METADATA, ModelError)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            # This also verifies the checksum.
            weights = pathlib.Path(archive.extract(PRESET_WEIGHTS, folder))
            stored = StoredModel(settings, _count(settings, weights), metadata, weights)
        yield stored


def check_preset(folder):
    """Returns the `StoredModel` of a preset."""
    folder = pathlib.Path(folder)
    weights = folder / PRESET_WEIGHTS
    with _refuse(folder):
        config = read_bytes(folder / PRESET_CONFIG, MAX_JSON_BYTES, ModelError)
        settings = _read_settings(config)
        require_regular([weights], ModelError)
        metadata = read_metadata(folder)
        return StoredModel(settings, _count(settings, weights), metadata, weights)


def read_metadata(folder):
    """Returns the `Metadata` of a preset, which may be missing."""
    path = pathlib.Path(folder) / METADATA
    if not path.exists():
        return Metadata()
    return read_json(path, Metadata, error=ModelError)


@contextlib.contextmanager
def _refuse(path, hint=None):
    """Converts all errors to a `ModelError` that names the path."""
    try:
        yield
    except ModelError as error:
        advice = f". {hint}" if hint else ""
        raise ModelError(f"{path}: refused: {error}{advice}") from None
    # Reading a damaged file can raise any exception.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from error


def _check_members(archive, size):
    """Checks the archive's table of contents, before any member is read."""
    expected = {PRESET_CONFIG, PRESET_WEIGHTS, METADATA}
    names = archive.namelist()
    for name in sorted(expected.symmetric_difference(names)):
        if name in expected:
            raise ModelError(f"{name} is missing")
        raise ModelError(
            f"the archive contains {quote(name)}, which is not part of a model"
        )
    if len(names) > len(expected):
        raise ModelError("the archive contains a file twice")
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    # Keras stores members uncompressed, and they cannot overlap.
    if sum(sizes.values()) > size:
        raise ModelError(
            f"its members have {sum(sizes.values()):,} bytes, but the file has only "
            f"{size:,}"
        )
    for name in (PRESET_CONFIG, METADATA):
        if sizes[name] > MAX_JSON_BYTES:
            raise ModelError(f"{name} must have at most {MAX_JSON_BYTES:,} bytes")


def _read_settings(content):
    """Returns the arguments of the `Transformer` that `config.json` describes."""
    outer = parse_json(content, SerializedModel, PRESET_CONFIG, ModelError)
    return outer.config.constructor_arguments()


def _count(settings, weights):
    """Returns the number of parameters in a file, which must fit the settings."""
    size = weights.stat().st_size
    if size > _MAX_BYTES:
        raise ModelError(
            f"{weights.name} has {size:,} bytes, but at most {_MAX_BYTES:,} are allowed"
        )
    num_parameters = count_stored_parameters(weights)
    check_size(count_parameters(settings), num_parameters)
    return num_parameters


def build_for_loading(model):
    """Builds a model whose weights are loaded next, without drawing random ones."""
    from keras_transformer.layers.base import zero_matrices

    with zero_matrices():
        model.build(INPUT_SHAPES)


def load_stored(path, stored, model_class=None, **changes):
    """Builds a `Transformer` with changed settings, and loads the stored weights."""
    from keras_transformer.transformer import Transformer

    # Wrong changes are a mistake of the caller.
    with contextlib.nullcontext() if changes else _refuse(path):
        model = (model_class or Transformer).from_config({**stored.settings, **changes})
    with _refuse(path):
        build_for_loading(model)
        check_size(model.count_params(), stored.num_parameters)
        model.load_weights(stored.weights)
    return model


def read(path, allow_unsafe=False, fingerprint=None):
    """Reads the model of a `.keras` file, and compares its tokenizer's fingerprint.

    With `allow_unsafe`, the file can run any code, and may contain a model of any
    class. Without `fingerprint`, nothing is compared.
    """
    import keras

    # This import also registers the class, as `keras.saving.load_model` requires.
    import keras_transformer.transformer  # noqa: F401

    path = pathlib.Path(path)
    if allow_unsafe:
        with _refuse(path), zipfile.ZipFile(path) as archive:
            metadata = parse_json(archive.read(METADATA), Metadata, METADATA)
        _check_fingerprint(path, metadata, fingerprint)
        with _refuse(path):
            return keras.saving.load_model(path, compile=False, safe_mode=False)
    with open_checked(ModelSource("file", path, path, None)) as stored:
        _check_fingerprint(path, stored.metadata, fingerprint)
        return load_stored(path, stored)


def save_model(model, path, fingerprint=None):
    """Saves a model as a `.keras` file, with its tokenizer's fingerprint if given.

    Keras would write the archive from a second copy of all weights in memory. So it
    writes a folder instead, whose files then become an archive.
    """
    with replace_file(path) as temporary:
        folder = temporary.with_suffix("")
        try:
            model.save(folder, zipped=False)
            metadata = json.loads((folder / METADATA).read_bytes())
            if fingerprint is not None:
                metadata["tokenizer_sha256"] = fingerprint
            with zipfile.ZipFile(temporary, "w") as archive:
                archive.writestr(METADATA, json.dumps(metadata))
                for name in (PRESET_CONFIG, PRESET_WEIGHTS):
                    archive.write(folder / name, name)
        except OSError as error:
            if error.filename is not None:
                error.filename = temporary  # which `replace_file` replaces
            raise
        finally:
            remove_tree(folder)


def _check_fingerprint(path, metadata, fingerprint):
    stored = metadata.tokenizer_sha256
    if fingerprint is not None and stored not in (None, fingerprint):
        raise ModelError(
            f"{path}: the model was trained with another tokenizer, whose SHA-256 "
            f"begins with {quote(stored[:12])}. The tokenizer next to the file has "
            f"{fingerprint[:12]}. Copy the tokenizer from the model's run, or undo "
            "changes to text.json"
        )


def check_vocabularies(path, model, tokenizer):
    """Checks that model and tokenizer have the same number of ids, on both sides."""
    expected = model.source_vocabulary_size, model.vocabulary_size
    found = tokenizer.vocabulary_size, tokenizer.target.vocabulary_size
    if found != expected:
        found, expected = (
            f"{sizes[0]} source and {sizes[1]} target"
            if sizes[0] != sizes[1]
            else sizes[0]
            for sizes in (found, expected)
        )
        raise ModelError(
            f"{path}: the model has {expected} subwords, but the tokenizer has "
            f"{found}. Copy the tokenizer from the model's run"
        )


def check_size(needed, found):
    """Raises a `ModelError` if a file has fewer parameters than a model needs."""
    if needed > found:
        raise ModelError(
            f"the settings describe {needed:,} parameters, but the file "
            f"contains {found:,}. Copy the file again"
        )
