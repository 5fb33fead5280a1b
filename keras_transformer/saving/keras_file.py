"""Reading of `.keras` files that may be untrusted.

A file of this package has three members: settings, weights, and the date. A file that
contains anything else, or whose settings describe more weights than it contains, is
refused. The checks run, import and unpickle nothing that a file names.
"""

import json
import math
import os
import re
import zipfile
from typing import Annotated
from typing import Any
from typing import NamedTuple

from pydantic import AfterValidator
from pydantic import NonNegativeInt
from pydantic import PositiveInt
from pydantic import ValidationError

from keras_transformer.errors import ModelError
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.recipes.schema import ModelSettings

ALLOW_UNSAFE = "if you trust it, pass allow_unsafe=True to open_model"

_NOTE = b"tokenizer sha256 "
_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"
_MEMBERS = {_CONFIG, _WEIGHTS, "metadata.json"}
_CLASS = {
    "module": "keras_transformer.transformer",
    "class_name": "Transformer",
    "registered_name": "keras_transformer>Transformer",
}
_INPUT_SHAPES = {"source_ids": (None, None), "target_ids": (None, None)}
_POLICIES = (
    *("float32", "float16", "bfloat16", "float64"),
    *("mixed_float16", "mixed_bfloat16"),
)


class FileLimits(NamedTuple):
    """Limits of a model's files.

    Attributes:
        max_bytes: Maximum size of a `.keras` file.
        max_settings_bytes: Maximum size of the settings in it.
        max_objects: Maximum number of groups and arrays in its weights.
    """

    max_bytes: int = 8 << 30
    max_settings_bytes: int = 1 << 20
    max_objects: int = 100_000


def read(path, allow_unsafe=False, limits=FileLimits()):
    """Reads the `Transformer` of a `.keras` file.

    Args:
        path: The file.
        allow_unsafe: Whether to skip the checks and Keras's safe mode. The file may
            then run any code, and contain a model of any class.
        limits: `FileLimits`.

    Raises:
        ModelError: If the file is refused or damaged.
    """
    settings, num_weights = (None, None) if allow_unsafe else check(path, limits)
    import keras

    # Registers the class.
    from keras_transformer.transformer import Transformer

    model = None
    try:
        if allow_unsafe:
            safe_mode = not allow_unsafe
            return keras.saving.load_model(path, compile=False, safe_mode=safe_mode)
        model = Transformer.from_config(settings)
        model.build(_INPUT_SHAPES)
        model.load_weights(path)
        return model
    # The readers of a damaged archive raise exceptions of any type.
    except Exception as error:
        reason = short(error)
        if model is not None and model.built and model.count_params() != num_weights:
            reason = (
                f"its settings describe a model of {model.count_params():,} "
                f"parameters, its weights are {num_weights:,}"
            )
        raise ModelError(f"{path}: cannot be loaded: {reason}") from error


def note_tokenizer(path, fingerprint):
    """Stores a tokenizer's fingerprint in a `.keras` file, as the archive's comment.

    Args:
        path: The file.
        fingerprint: `Tokenizer.fingerprint()`.
    """
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = _NOTE + fingerprint.encode()


def check_tokenizer(path, fingerprint):
    """Checks a tokenizer against the fingerprint in a `.keras` file, if there is one.

    Raises:
        ModelError: If they differ.
    """
    with zipfile.ZipFile(path) as archive:
        found = re.fullmatch(_NOTE + rb"([0-9a-f]{64})", archive.comment)
    noted = found[1].decode() if found else fingerprint
    if noted != fingerprint:
        raise ModelError(
            f"{path}: its model was trained with a tokenizer of SHA-256 {noted[:12]}, "
            f"the one beside it is {fingerprint[:12]}"
        )


def check(path, limits=FileLimits()):
    """Checks that a `.keras` file is a `Transformer` as Keras saves it.

    Args:
        path: The file.
        limits: `FileLimits`.

    Returns:
        `(settings, num_weights)`: the arguments of `Transformer`, and the number of
        weights in the file.

    Raises:
        ModelError: If the file contains other members, another class, an unknown or
            impossible setting, links to elsewhere, or too few weights.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, os.path.getsize(path), limits)
            # Keras ignores wrong checksums of the weights.
            damaged = archive.testzip()
            if damaged:
                raise zipfile.BadZipFile(f"{damaged}: its checksum is wrong")
            settings = _read_settings(archive.read(_CONFIG))
            with archive.open(_WEIGHTS) as file:
                size = archive.getinfo(_WEIGHTS).file_size
                num_weights = _count_weights(file, size, limits)
        needed = least_parameters(settings)
        if needed > num_weights:
            raise ModelError(
                f"its settings describe {needed:,} parameters or more, it holds "
                f"{num_weights:,}"
            )
        return settings, num_weights
    except ModelError as error:
        raise ModelError(f"{path}: refused: {error}; {ALLOW_UNSAFE}") from None
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from None


def least_parameters(settings):
    """Returns a lower bound of the weights of a `Transformer`: its matrices' sizes.

    Args:
        settings: Mapping of its constructor's arguments.
    """
    width = settings["d_model"]
    keys, values = (
        settings["num_heads"] * (settings[name] or width // settings["num_heads"])
        for name in ("key_dim", "value_dim")
    )
    attention = 2 * width * (keys + values)
    # Two self-attentions, one cross-attention, and two feed-forward networks.
    layer = 3 * attention + 4 * width * settings["d_ff"]
    learned = settings["positions"] == "learned"
    rows = settings["vocabulary_size"] + (2 * settings["max_length"] if learned else 0)
    return rows * width + settings["num_layers"] * layer


def _check_members(archive, size, limits):
    """Checks the archive's table of contents, before any member is read."""
    if size > limits.max_bytes:
        raise ModelError(
            f"{size:,} bytes are more than the {limits.max_bytes:,} allowed"
        )
    members = archive.infolist()
    names = [member.filename for member in members]
    for name in names:
        if name not in _MEMBERS:
            raise ModelError(f"holds {shown(name)}, which is no part of a model")
    for name in sorted(_MEMBERS):
        if names.count(name) != 1:
            raise ModelError(f"holds {name} {names.count(name)} times, not once")
    for member in members:
        name, num_bytes = member.filename, member.file_size
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or num_bytes != member.compress_size:
            raise ModelError(
                f"{name} is compressed: {num_bytes:,} bytes out of "
                f"{member.compress_size:,}. Keras compresses nothing"
            )
        if name != _WEIGHTS and num_bytes > limits.max_settings_bytes:
            raise ModelError(
                f"{name} has {num_bytes:,} bytes, more than the "
                f"{limits.max_settings_bytes:,} allowed"
            )
    if sum(member.file_size for member in members) > size:
        raise ModelError("its members overlap")


def _read_settings(content):
    """Returns the arguments of the `Transformer` that `config.json` describes."""
    try:
        outer = json.loads(content)
    except RecursionError:
        raise ModelError(f"{_CONFIG} is nested too deep") from None
    except ValueError:
        raise ModelError(f"{_CONFIG} is not JSON") from None
    if not isinstance(outer, dict):
        raise ModelError(f"{_CONFIG} is no object")
    for key, expected in _CLASS.items():
        if outer.get(key) != expected:
            found = outer.get("registered_name") or outer.get("class_name")
            raise ModelError(f"holds a {shown(found)}, no Transformer ({key})")
    unknown = set(outer) - {*_CLASS, "config", "build_config", "compile_config"}
    if unknown:
        raise ModelError(f"{_CONFIG} has the unknown key {shown(min(unknown))}")
    build_config = outer.get("build_config")
    shapes = build_config.get("input_shape") if isinstance(build_config, dict) else None
    is_map = isinstance(shapes, dict) and set(shapes) == set(_INPUT_SHAPES)
    if not is_map or not all(map(_is_input_shape, shapes.values())):
        raise ModelError(f"{_CONFIG} has no input shapes of a Transformer")
    return _check_settings(outer.get("config"))


def _is_input_shape(value):
    sizes = value if isinstance(value, list) else ()
    return len(sizes) == 2 and all(
        size is None or (type(size) is int and size > 0) for size in sizes
    )


def _check_policy(value):
    spellings = [
        {
            "module": "keras",
            "class_name": "DTypePolicy",
            "config": {"name": name, **source},
            "registered_name": None,
        }
        for name in _POLICIES
        for source in ({}, {"source_name": None})
    ]
    if value not in (*_POLICIES, *spellings):
        raise ValueError("must be a plain policy")
    return value


class _Settings(ModelSettings):
    """All arguments of `Transformer`: a recipe's, and those that no recipe contains."""

    vocabulary_size: PositiveInt
    output_size: PositiveInt | None = None
    pad_id: NonNegativeInt = 0
    name: str = "transformer"
    trainable: bool = True
    # Keras's two spellings: a name, or the JSON of a plain policy.
    dtype: Annotated[Any, AfterValidator(_check_policy)] = "float32"


def _check_settings(settings):
    """Returns the settings, with defaults for missing ones."""
    if not isinstance(settings, dict):
        raise ModelError(f"{_CONFIG} has no settings")
    if "score" in settings:  # version 0.1
        settings = {"score_mode": settings["score"], **settings}
        del settings["score"]
    for name, value in settings.items():
        is_large = type(value) is int and value >= 2**31
        if is_large or (isinstance(value, str) and len(value) > 100):
            raise ModelError(f"the setting {shown(name)} is {shown(value)}")
    # Missing ones have the defaults of `Transformer`, not those of a preset.
    fields = ModelSettings.model_fields
    defaults = {name: fields[name].default for name in MODEL_ARGUMENTS}
    try:
        checked = _Settings.model_validate({**defaults, **settings})
        return checked.model_dump(exclude={"preset"})
    except ValidationError as error:
        found = error.errors()[0]
    name = found["loc"][0] if found["loc"] else None
    if name in settings:
        raise ModelError(f"the setting {shown(name)} is {shown(settings[name])}")
    raise ModelError(f"the settings are refused: {name or ''} {found['msg']}")


def _count_weights(file, size, limits):
    """Counts the weights of an HDF5 file that must contain plain arrays without links.

    Args:
        file: Binary file that can seek.
        size: Its size in bytes.
        limits: `FileLimits`.
    """
    import h5py

    count = num_weights = num_bytes = 0
    seen = set()
    with h5py.File(file, "r") as root:
        groups = [root]
        while groups:
            group = groups.pop()
            for name in group:
                link = group.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    raise ModelError(f"{_WEIGHTS} has a link at {shown(name)}")
                each = group[name]
                address = h5py.h5o.get_info(each.id).addr
                count += 1
                if address in seen or count > limits.max_objects:
                    raise ModelError(
                        f"{_WEIGHTS} has {shown(name)} twice, or too many objects"
                    )
                seen.add(address)
                if isinstance(each, h5py.Group):
                    groups.append(each)
                    continue
                values = _array_size(each, name)
                # Integers are states of random generators.
                num_weights += values if each.dtype.kind == "f" else 0
                num_bytes += values * each.dtype.itemsize
                if num_bytes > size:
                    raise ModelError(
                        f"{_WEIGHTS} has {size:,} bytes, and arrays of more than that"
                    )
    return num_weights


def _array_size(array, name):
    """Returns the number of values of a dataset whose bytes must be in its file."""
    import h5py

    if not isinstance(array, h5py.Dataset) or array.dtype.kind not in "fiu":
        raise ModelError(f"{_WEIGHTS} has {shown(name)}, which holds no numbers")
    if array.external or array.is_virtual:
        raise ModelError(f"{_WEIGHTS} takes {shown(name)} from another file")
    if array.chunks or array.id.get_create_plist().get_nfilters():
        raise ModelError(f"{_WEIGHTS} has {shown(name)} compressed or in chunks")
    return math.prod(array.shape)


def shown(value):
    """Quotes a name or value from a file on one line of limited length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def short(error):
    """Returns an error's message on one line of limited length."""
    return " ".join(str(error).split())[:200] or type(error).__name__
