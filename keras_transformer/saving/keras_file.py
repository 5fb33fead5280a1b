"""Checks of model files from strangers, made before Keras or TensorFlow read them.

A `.keras` file of ours is three members: settings, numbers, and when it was written.
What holds anything else, or describes more than it holds, is refused. Nothing in here
runs, imports or unpickles what a file names.
"""

import contextlib
import json
import math
import os
import re
import zipfile
from typing import NamedTuple

from keras_transformer.errors import ModelError

ALLOW_UNSAFE = (
    "if you trust it, open_model(..., allow_unsafe=True) reads it all the same"
)

_NOTE = b"tokenizer sha256 "
_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"
_MEMBERS = {_CONFIG, _WEIGHTS, "metadata.json"}
_CLASS = {
    "module": "keras_transformer.transformer",
    "class_name": "Transformer",
    "registered_name": "keras_transformer>Transformer",
}
_INPUTS = {"source_ids", "target_ids"}
_POLICIES = {"float32", "float16", "bfloat16", "float64"}
_POLICIES |= {f"mixed_{policy}" for policy in ("float16", "bfloat16")}
# The arguments of `Transformer`, by what JSON may hold for them.
_COUNTS = {"vocabulary_size", "num_layers", "d_model", "d_ff", "num_heads"}
_COUNTS_OR_NONE = {
    *("key_dim", "value_dim", "max_length", "attention_window", "output_size")
}
_FRACTIONS = {"dropout", "attention_dropout"}
_WORDS = {"name", "positions", "normalization", "activation", "score"}
_OTHERS = {"trainable", "dtype", "pad_id"}


class FileLimits(NamedTuple):
    """How much a model's files may hold.

    Attributes:
        max_bytes: of a `.keras` file.
        max_settings_bytes: of the settings in it.
        max_objects: of groups and arrays in its weights.
    """

    max_bytes: int = 8 << 30
    max_settings_bytes: int = 1 << 20
    max_objects: int = 100_000


def load_keras_file(path, allow_unsafe=False, limits=None):
    """What `keras.saving.load_model` gives for a file that `check_keras_file` passes.

    Args:
        path: a `.keras` file.
        allow_unsafe: do without the checks and without Keras's safe mode: the file
            may then run any code.
        limits: `FileLimits`. None: the defaults.

    Raises:
        ModelError: the file is refused or damaged.
    """
    import keras

    # Keras finds only what is registered.
    from keras_transformer.transformer import Transformer

    found = None if allow_unsafe else check_keras_file(path, limits)
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=not allow_unsafe)
    # A damaged archive raises whatever its reader came across.
    except Exception as error:
        reason = short(error)
        with contextlib.suppress(Exception):
            model = Transformer.from_config(found["settings"])
            model.build(dict.fromkeys(_INPUTS, (None, None)))
            expected, stored = model.count_params(), found["parameters"]
            if expected != stored:
                reason = (
                    f"its settings describe a model of {expected:,} parameters, its "
                    f"weights are {stored:,}"
                )
        raise ModelError(f"{path}: cannot be loaded: {reason}") from error


def note_tokenizer(path, fingerprint):
    """Notes in a `.keras` file, as its archive's comment, whose ids its model speaks.

    Args:
        path: the file.
        fingerprint: `Tokenizer.fingerprint()`.
    """
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = _NOTE + fingerprint.encode()


def check_tokenizer(path, fingerprint):
    """Refuses a tokenizer that is not the one noted in a `.keras` file, if one is.

    Raises:
        ModelError: with both fingerprints.
    """
    with zipfile.ZipFile(path) as archive:
        found = re.fullmatch(_NOTE + rb"([0-9a-f]{64})", archive.comment)
    noted = found[1].decode() if found else fingerprint
    if noted != fingerprint:
        raise ModelError(
            f"{path}: its model was trained with a tokenizer of SHA-256 {noted[:12]}, "
            f"the one beside it is {fingerprint[:12]}"
        )


def check_keras_file(path, limits=None):
    """Refuses what is not a `Transformer` as Keras saves one.

    Args:
        path: a `.keras` file.
        limits: `FileLimits`. None: the defaults.

    Returns:
        Mapping of `settings`, the arguments of `Transformer`, and `parameters`, the
        number of weights stored.

    Raises:
        ModelError: it holds other files, another class, an unknown or impossible
            setting, links out of itself, or less than it says it does.
    """
    limits = limits or FileLimits()
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, os.path.getsize(path), limits)
            # Keras reads weights whose checksum is wrong all the same.
            damaged = archive.testzip()
            if damaged:
                raise zipfile.BadZipFile(f"{damaged}: its checksum is wrong")
            config = _checked_config(archive.read(_CONFIG))
            with archive.open(_WEIGHTS) as file:
                size = archive.getinfo(_WEIGHTS).file_size
                stored = _checked_weights(file, size, limits)
        needed = least_parameters(config)
        if needed > stored:
            raise ModelError(
                f"its settings describe {needed:,} parameters or more, it holds "
                f"{stored:,}"
            )
        return {"settings": config, "parameters": stored}
    except ModelError as error:
        raise ModelError(f"{path}: refused: {error}; {ALLOW_UNSAFE}") from None
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from None


def least_parameters(config):
    """A bound from below of a `Transformer`'s weights: its matrices, without biases.

    Args:
        config: mapping of its constructor's arguments.
    """
    width = config["d_model"]
    keys, values = (
        config["num_heads"] * (config.get(name) or width // config["num_heads"])
        for name in ("key_dim", "value_dim")
    )
    attention = 2 * width * (keys + values)
    # Self-attention twice, cross-attention, and two feed-forward networks.
    layer = 3 * attention + 4 * width * config["d_ff"]
    learned = config.get("positions") == "learned"
    positions = 2 * (config.get("max_length") or 0) * width if learned else 0
    return config["vocabulary_size"] * width + config["num_layers"] * layer + positions


def _check_members(archive, size, limits):
    """The archive's table of contents: nothing in it is read yet."""
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
        # Keras compresses nothing, so that nothing can unfold to more than it is.
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or member.file_size != member.compress_size:
            raise ModelError(
                f"{member.filename} is compressed: {member.file_size:,} bytes out of "
                f"{member.compress_size:,}, which Keras does not do"
            )
        is_settings = member.filename != _WEIGHTS
        if is_settings and member.file_size > limits.max_settings_bytes:
            raise ModelError(
                f"{member.filename} has {member.file_size:,} bytes, more than the "
                f"{limits.max_settings_bytes:,} allowed"
            )
    if sum(member.file_size for member in members) > size:
        raise ModelError("its members overlap")


def _checked_config(content):
    """The arguments of the `Transformer` that `config.json` describes."""
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
    _check_inputs(outer.get("build_config"))
    config = outer.get("config")
    if not isinstance(config, dict):
        raise ModelError(f"{_CONFIG} has no settings")
    missing = _COUNTS - set(config)
    if missing:
        raise ModelError(f"the setting {min(missing)} is missing")
    for name, value in config.items():
        if not _is_setting(name, value):
            raise ModelError(f"the setting {shown(name)} is {shown(value)}")
    return config


def _check_inputs(build_config):
    """Shapes as `Transformer.build` takes them; Keras passes on whatever is there."""
    shapes = (build_config or {}).get("input_shape") if _is_map(build_config) else None
    right = _is_map(shapes) and set(shapes) == _INPUTS
    for shape in shapes.values() if right else ():
        right &= isinstance(shape, list) and len(shape) == 2
        right = right and all(size is None or _is_count(size) for size in shape)
    if not right:
        raise ModelError(f"{_CONFIG} has no input shapes of a Transformer")


def _is_setting(name, value):
    """Whether JSON of that kind may stand for an argument of that name."""
    if name in _COUNTS:
        return _is_count(value)
    if name in _COUNTS_OR_NONE:
        return value is None or _is_count(value)
    if name in _FRACTIONS:
        return type(value) in (int, float) and 0 <= value < 1
    if name in _WORDS:
        # A function of one's own would be an object here.
        return isinstance(value, str) and len(value) <= 100
    if name == "trainable":
        return isinstance(value, bool)
    if name == "pad_id":
        return type(value) is int and 0 <= value < 2**31
    return name == "dtype" and _is_policy(value)


def _is_policy(value):
    if isinstance(value, str):
        return value in _POLICIES
    if not _is_map(value) or value.get("class_name") != "DTypePolicy":
        return False
    inner = value.get("config")
    return (
        value.get("module") == "keras"
        and value.get("registered_name") is None
        and not set(value) - {"module", "class_name", "config", "registered_name"}
        and _is_map(inner)
        and set(inner) <= {"name", "source_name"}
        and inner.get("source_name") is None
        and isinstance(inner.get("name"), str)
        and inner["name"] in _POLICIES
    )


def _is_map(value):
    return isinstance(value, dict)


def _is_count(value):
    return type(value) is int and 0 < value < 2**31


def _checked_weights(file, size, limits):
    """The number of weights in an HDF5 file that holds plain arrays and no links out.

    Args:
        file: binary file that can seek.
        size: its bytes.
        limits: `FileLimits`.
    """
    import h5py

    count = stored = num_bytes = 0
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
                values = _checked_array(each, name)
                # The others are the states of random generators.
                stored += values if each.dtype.kind == "f" else 0
                num_bytes += values * each.dtype.itemsize
                if num_bytes > size:
                    raise ModelError(
                        f"{_WEIGHTS} has {size:,} bytes, and arrays of more than that"
                    )
    return stored


def _checked_array(array, name):
    """The number of values of a dataset whose bytes are all in its file."""
    import h5py

    if not isinstance(array, h5py.Dataset) or array.dtype.kind not in "fiu":
        raise ModelError(f"{_WEIGHTS} has {shown(name)}, which holds no numbers")
    if array.external or array.is_virtual:
        raise ModelError(f"{_WEIGHTS} takes {shown(name)} from another file")
    if array.chunks or array.id.get_create_plist().get_nfilters():
        raise ModelError(f"{_WEIGHTS} has {shown(name)} compressed or in chunks")
    return math.prod(array.shape)


def shown(value):
    """A name or value out of a file, for a message: on one line and not too long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def short(error):
    """What an error says, likewise."""
    return " ".join(str(error).split())[:200] or type(error).__name__
