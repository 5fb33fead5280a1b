"""Reading of `.keras` files that may be untrusted.

A file of this package is a zip archive of settings, weights, and metadata. A file is
refused if it contains anything else, or if its settings describe more weights than it
contains. The checks never run, import or unpickle anything that a file names.
"""

import io
import os
import re
import zipfile
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, NonNegativeInt, PositiveInt, model_validator

from keras_transformer.errors import ModelError
from keras_transformer.recipes.data_sections import Section
from keras_transformer.recipes.schema import ModelSettings
from keras_transformer.saving.stored_weights import WEIGHTS, count_stored_parameters
from keras_transformer.untrusted import parse_json, quote, shorten

ALLOW_UNSAFE = (
    "if you trust the file, pass --allow-unsafe (allow_unsafe=True in Python)"
)

# Start of the archive's comment (see `store_fingerprint`).
_FINGERPRINT_PREFIX = b"tokenizer sha256 "
_CONFIG = "config.json"
_POLICIES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "mixed_float16",
    "mixed_bfloat16",
)
_MEMBERS = (_CONFIG, WEIGHTS, "metadata.json")


class FileLimits(NamedTuple):
    """Limits of a model's files.

    Attributes:
        max_bytes: Maximum size of a `.keras` file or of a preset's file of weights.
        max_settings_bytes: Maximum size of each JSON file in a `.keras` file, and of a
            preset's `config.json`.
        max_objects: Maximum number of groups and arrays in the HDF5 file of weights.
    """

    max_bytes: int = 8 << 30
    max_settings_bytes: int = 1 << 20
    max_objects: int = 100_000


def _check_policy(value):
    """Returns the name of a dtype policy, given as its name or as Keras's JSON.

    Only `_POLICIES` are allowed: no quantization and no custom classes.
    """
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

    preset: None = None  # a file has no preset
    vocabulary_size: PositiveInt
    output_size: PositiveInt | None = None
    pad_id: NonNegativeInt = 0
    name: str = "transformer"
    trainable: bool = True
    trainable_layers: dict[str, bool] | None = None
    dtype: Annotated[Any, AfterValidator(_check_policy)] = "float32"

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any):
        # Overrides `ModelSettings._apply_preset`, because a file has no preset. Limits
        # the values instead.
        for name, value in values.items() if isinstance(values, dict) else ():
            # Keras and TensorFlow fail on sizes beyond int32.
            if type(value) is int and value >= 2**31:
                raise ValueError(f"{quote(name)} must be below 2**31")
            if isinstance(value, str) and len(value) > 100:
                raise ValueError(f"{quote(name)} must have at most 100 characters")
        return values


class _BuildConfig(Section):
    # The first batch may have had more keys than the model uses. None of the shapes is
    # read.
    input_shape: dict[str, list[PositiveInt | None]]


class SerializedModel(Section):
    """A `Transformer` that Keras serialized."""

    class_name: Literal["Transformer"]
    module: Literal["keras_transformer.transformer"]
    registered_name: Literal["keras_transformer>Transformer"]
    config: _Settings


class _Config(SerializedModel):
    """`config.json`, as Keras writes it for a `Transformer`."""

    build_config: _BuildConfig
    compile_config: Any = None


def read(path, allow_unsafe=False, limits=FileLimits()):
    """Reads the `Transformer` of a `.keras` file.

    Returns:
        The model, a `Transformer` unless `allow_unsafe` is true.
    """
    settings, num_parameters = (None, None) if allow_unsafe else check(path, limits)
    import keras

    # This import also registers the class, as `keras.saving.load_model` requires.
    from keras_transformer.transformer import Transformer

    try:
        if allow_unsafe:
            return keras.saving.load_model(path, compile=False, safe_mode=False)
        model = Transformer.from_config(settings)
        model.build({"source_ids": (None, None), "target_ids": (None, None)})
        load_weights(model, path, num_parameters)
        return model
    # Reading a damaged archive can raise any exception.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from error


def store_fingerprint(path, fingerprint):
    """Stores `Tokenizer.fingerprint()` in a `.keras` file, as the archive's comment."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = _FINGERPRINT_PREFIX + fingerprint.encode()


def check_tokenizer(path, fingerprint):
    """Checks a tokenizer against the fingerprint in a `.keras` file, if present."""
    with zipfile.ZipFile(path) as archive:
        found = re.fullmatch(_FINGERPRINT_PREFIX + rb"([0-9a-f]{64})", archive.comment)
    if found is None or found[1].decode() == fingerprint:
        return
    raise ModelError(
        f"{path}: the model was trained with another tokenizer, whose SHA-256 begins "
        f"with {found[1].decode()[:12]}. The tokenizer next to the file has "
        f"{fingerprint[:12]}. Copy the tokenizer from the model's run"
    )


def check(path, limits=FileLimits(), hint=ALLOW_UNSAFE):
    """Checks that a `.keras` file contains a `Transformer` as Keras saves it.

    Returns:
        `(settings, num_parameters)`: the arguments of `Transformer`, and the number of
        parameters in the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, os.path.getsize(path), limits)
            # Reading whole members verifies their checksums, which Keras does not do.
            # It is also faster: HDF5 seeks backward, and a zip archive then reads the
            # member again from its start.
            members = {name: archive.read(name) for name in archive.namelist()}
        settings = read_settings(members[_CONFIG])
        weights = members[WEIGHTS]
        num_arrays, num_parameters = count_stored_parameters(
            io.BytesIO(weights), len(weights), limits
        )
        check_size(min_arrays(settings), num_arrays, "arrays of weights")
        check_size(min_parameters(settings), num_parameters)
        return settings, num_parameters
    except ModelError as error:
        advice = f"; {hint}" if hint else ""
        raise ModelError(f"{path}: refused: {error}{advice}") from None
    # Reading a damaged archive can raise any exception.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from None


def min_arrays(settings):
    """Returns a lower bound on the number of arrays of weights with these settings."""
    encoder_layers, decoder_layers = _num_layers(settings)
    # The embeddings, four kernels per attention, and two per feed-forward network.
    return 1 + encoder_layers * (4 + 2) + decoder_layers * (2 * 4 + 2)


def _num_layers(settings):
    """Returns the number of layers of the encoder and of the decoder."""
    number = settings["num_layers"]
    variations = settings["variations"] or {}
    return number, variations.get("num_decoder_layers") or number


def min_parameters(settings):
    """Returns a lower bound on the number of parameters with these settings."""
    width = settings["d_model"]
    keys, values = (
        settings["num_heads"] * (settings[name] or width // settings["num_heads"])
        for name in ("key_dim", "value_dim")
    )
    attention = 2 * width * (keys + values)
    feed_forward = 2 * width * settings["d_ff"]
    variations = settings["variations"] or {}
    encoder_layers, decoder_layers = _num_layers(settings)
    # Rows of width `d_model`: embeddings, an output matrix and learned positions.
    rows = settings["vocabulary_size"]
    rows += variations.get("source_vocabulary_size") or 0
    if not variations.get("tied_output", True):
        rows += settings["output_size"] or settings["vocabulary_size"]
    if settings["positions"] == "learned":
        rows += 2 * settings["max_length"]
    return (
        rows * width
        + encoder_layers * (attention + feed_forward)
        + decoder_layers * (2 * attention + feed_forward)
    )


def check_size(minimum, found, unit="parameters"):
    """Raises a `ModelError` if fewer than `minimum` values were found in a file."""
    if minimum > found:
        raise ModelError(
            f"the settings describe at least {minimum:,} {unit}, but the file contains "
            f"{found:,}"
        )


def load_weights(model, path, num_stored):
    """Loads a file of weights into a model that needs all of them."""
    check_size(model.count_params(), num_stored)
    model.load_weights(path)


def _check_members(archive, size, limits):
    """Checks the archive's table of contents, before any member is read."""
    if size > limits.max_bytes:
        raise ModelError(
            f"the file has {size:,} bytes, but at most {limits.max_bytes:,} are allowed"
        )
    members = archive.infolist()
    names = [member.filename for member in members]
    for name in (*names, *_MEMBERS):
        if name not in _MEMBERS:
            raise ModelError(f"contains {quote(name)}, which is not part of a model")
        if name not in names:
            raise ModelError(f"{name} is missing")
        if names.count(name) > 1:
            raise ModelError(f"contains {name} {names.count(name)} times")
    for member in members:
        name, num_bytes = member.filename, member.file_size
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or num_bytes != member.compress_size:
            raise ModelError(
                f"{name} is compressed ({member.compress_size:,} bytes instead of "
                f"{num_bytes:,}). Keras stores members uncompressed"
            )
        if name != WEIGHTS and num_bytes > limits.max_settings_bytes:
            raise ModelError(
                f"{name} has {num_bytes:,} bytes, but at most "
                f"{limits.max_settings_bytes:,} are allowed"
            )
    if sum(member.file_size for member in members) > size:
        raise ModelError("the members of the archive overlap")


def read_settings(content, layout=_Config):
    """Returns the arguments of the `Transformer` that `config.json` describes."""
    outer = parse_json(content, layout, _CONFIG, ModelError)
    return outer.config.constructor_arguments()
