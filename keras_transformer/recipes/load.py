"""Reading and writing of recipes. Each error is one line that names the key."""

import copy
import os
import pathlib
import re

from pydantic import ValidationError

from keras_transformer.errors import RecipeError
from keras_transformer.files import replace_file
from keras_transformer.recipes.automatic import (
    TEXT_KINDS,
    UNKNOWN_TEXT,
    automatic_keys,
    choose,
)
from keras_transformer.recipes.data_sections import DATA_KINDS
from keras_transformer.recipes.keys import key_hint, known_keys, name_hint
from keras_transformer.recipes.machine import find_machine
from keras_transformer.recipes.schema import Recipe
from keras_transformer.recipes.stages import StageSettings
from keras_transformer.recipes.training_text import measure_training_text
from keras_transformer.recipes.yaml_values import dump_yaml, read_yaml
from keras_transformer.untrusted import read_text

_FOLDER = pathlib.Path(__file__).parent
_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# Sections whose missing keys are taken from the run's recipe, or else from the shipped
# recipe `files`.
_TEMPLATE_SECTIONS = ("tokenizer", "model", "training")
# Keys outside `data` whose values are paths.
_PATHS = (("tokenizer", "model"), ("tokenizer", "source_model"))
# Maps a dotted key to its alternative in the same section. Setting the key removes the
# alternative. A missing key is filled in only if its alternative is not given.
_ALTERNATIVES = {
    "training.checkpoint_minutes": "checkpoint_steps",
    "training.checkpoint_steps": "checkpoint_minutes",
    "training.stages": "steps",  # its default is the sum of the stages' steps
    "training.ema_momentum": "average_checkpoints",  # its default is then 1
}


def shipped_recipes() -> dict[str, str]:
    """Returns the name and one-line description of each shipped recipe."""
    described = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        first_line = path.read_text(encoding="utf-8").split("\n", 1)[0]
        described[path.stem] = first_line.lstrip("# ").strip()
    return described


def load_recipe(
    name_or_path, overrides=(), keys=None, run=None, report=None, stored=None
) -> Recipe:
    """Reads a recipe, applies overrides and checks it.

    Relative paths in `data`, `tokenizer.model`, `tokenizer.source_model` and
    `training.initial_model` are resolved against the current directory. In `data`,
    `${NAME}` is replaced by the environment variable NAME.

    If `data.kind` is one of `TEXT_KINDS` and the recipe has no section `model`, keys
    missing from `tokenizer`, `model` and `training` are taken from the recipe stored in
    `run`, or else from the shipped recipe `files`. Keys that are `auto` get values that
    fit the text and the machine. GPUs are found only if TensorFlow has been imported.

    Args:
        name_or_path: The name of a shipped recipe, the path of a YAML file, or a dict
            of a recipe's sections.
        overrides: Strings `"dotted.key=value"` with a YAML value.
        keys: Mapping of dotted keys to values, applied before `overrides`.
        run: Folder that `train`, `repeat` or `ablate` writes. Once training has begun,
            missing keys (see above) and keys that are `auto` take their values from
            its `config.yaml`.
        report: Called with each line of a report on the values chosen for `auto`: a
            heading, then a line per value.
        stored: `Recipe` to use instead of the one stored in `run`.

    Returns:
        A `Recipe` with absolute paths.

    Raises:
        RecipeError: If the recipe is invalid. The message is one line with the file and
            the dotted key.
    """
    label, values = _read(name_or_path)
    describes_model = values.get("model") is not None
    for key, value in (keys or {}).items():
        _set_key(values, key, value)
    for override in overrides:
        _apply_override(values, override)
    stored = _values_of_run(run) if stored is None else stored.model_dump()
    if not describes_model:
        _add_template(values, stored)
    try:
        values["data"] = _expand_variables(values.get("data", {}), "data")
        _choose_values(values, stored, report)
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{label}: {_one_line(error, values)}") from None
    except RecipeError as error:
        raise RecipeError(f"{label}: {error}") from None
    _make_paths_absolute(recipe.data)
    for section, name in _PATHS:
        path = getattr(getattr(recipe, section), name)
        if path:
            setattr(getattr(recipe, section), name, _absolute(path))
    initial = recipe.training.initial_path
    if initial and (os.path.exists(_absolute(initial)) or not _is_model_name(initial)):
        recipe.training.initial_model = _absolute(recipe.training.initial_model)
    return recipe


def _is_model_name(text):
    """Returns whether `text` begins with `hf:/` or names a packaged model."""
    return text.startswith("hf:/") or (_FOLDER.parent / "pretrained" / text).is_dir()


def dump_recipe(recipe: Recipe, path) -> None:
    """Writes the complete resolved recipe as YAML.

    Raises:
        StorageError: If the disk is full.
    """
    text = dump_yaml(recipe.model_dump(), width=1_000)
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(name_or_path):
    """Returns a recipe's label for messages, and a mapping of its sections by name."""
    if isinstance(name_or_path, dict):
        return "recipe", copy.deepcopy(name_or_path)
    label = str(name_or_path)
    is_shipped = label in shipped_recipes()
    path = _FOLDER / f"{label}.yaml" if is_shipped else pathlib.Path(name_or_path)
    if not path.exists():
        names = list(shipped_recipes())
        raise RecipeError(
            f"{label}: no such file, and no shipped recipe of that name"
            f"{name_hint(label, names)}. Shipped: {', '.join(names)}"
        )
    text = read_text(path, _MAX_BYTES, RecipeError)
    try:
        values = read_yaml(text)
    except RecipeError as error:
        raise RecipeError(f"{label}, {error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{label}: a recipe must be a mapping of keys to values")
    return label, values


def _values_of_run(run):
    """Returns the stored recipe of a run as a mapping.

    Returns `None` before the run has begun, or if the recipe cannot be read or lacks
    a section.
    """
    if run is None or not _has_begun(pathlib.Path(run)):
        return None
    try:
        _, values = _read(pathlib.Path(run, "config.yaml"))
    except RecipeError:
        # The command `train` reads config.yaml later and reports the error.
        return None
    is_complete = all(isinstance(values.get(name), dict) for name in _TEMPLATE_SECTIONS)
    return values if is_complete else None


def _has_begun(folder):
    """Returns whether a run, or one inside a folder of `repeat` or `ablate`, began."""
    checkpoint = "checkpoints/ckpt-*.index"
    patterns = (checkpoint, f"seed-*/{checkpoint}", "runs/*-seed*/config.yaml")
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _add_template(values: dict, stored) -> None:
    """If `data.kind` is one of `TEXT_KINDS`, adds missing keys from a stored recipe.

    If `stored` is `None`, the keys are taken from the shipped recipe `files`.
    """
    data = values.get("data")
    if not isinstance(data, dict) or data.get("kind", "files") not in TEXT_KINDS:
        return
    template = stored or _read("files")[1]
    for section in _TEMPLATE_SECTIONS:
        given = values.get(section)
        if given is None:
            given = {}
        if isinstance(given, dict):
            replaced = {
                _ALTERNATIVES.get(f"{section}.{name}")
                for name, value in given.items()
                if value
            }
            added = {
                name: value
                for name, value in template[section].items()
                if name not in replaced
            }
            values[section] = {**added, **given}


def _choose_values(values: dict, stored, report) -> None:
    """Replaces each `auto` with the run's stored value, or with a newly chosen one."""
    training = values.get("training")
    has_stages = isinstance(training, dict) and training.get("stages")
    if has_stages and training.get("steps") == "auto":
        del training["steps"]  # its default is the sum of the stages' steps
    keys = automatic_keys(values)
    if not keys:
        return
    if stored is not None:
        for key in keys:
            section, name = key.split(".")
            values[section][name] = stored[section].get(name)
        return
    machine = find_machine()
    text = measure_training_text(values["data"])
    choices = choose(values, keys, text, machine)
    if report is not None:
        pairs = f"{(text or UNKNOWN_TEXT).pairs:,} pairs"
        if text is None:
            pairs = f"text of unknown size, taken as {pairs},"
        report(f"settings for {pairs} on {machine}:")
        for choice in choices:
            report(f"  {choice}")


def _apply_override(values: dict, override: str) -> None:
    """Sets the key of an override `"dotted.key=value"`."""
    key, separator, text = override.partition("=")
    key = key.strip()
    names = key.split(".")
    if not separator or not all(names):
        raise RecipeError(f"--set {override}: must have the form dotted.key=value")
    try:
        value = read_yaml(text)
    except RecipeError as error:
        raise RecipeError(f"--set {key}, {error}") from None
    _set_key(values, key, value)


def _set_key(values: dict, key: str, value) -> None:
    """Sets a dotted key. Missing sections are created."""
    names = key.split(".")
    for depth, name in enumerate(names[:-1], start=1):
        if values.get(name) is None:
            values[name] = {}
        values = values[name]
        if not isinstance(values, dict):
            raise RecipeError(
                f"--set {key}: {'.'.join(names[:depth])} is a value, not a section"
            )
    if key in _ALTERNATIVES and value is not None:
        values.pop(_ALTERNATIVES[key], None)
    values[names[-1]] = value


def _expand_variables(value, key):
    if isinstance(value, dict):
        return {
            name: _expand_variables(item, f"{key}.{name}")
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_expand_variables(item, key) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match):
        name = match.group(1)
        if not os.environ.get(name):
            raise RecipeError(
                f"{key}: the environment variable {name} is not set, but {value} "
                f"uses it. Set {name} to the data folder, or pass --set {key}=PATH"
            )
        return os.environ[name]

    return _VARIABLE.sub(replacement, value)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _make_paths_absolute(data) -> None:
    if data.kind in ("files", "records"):
        splits = [data.train, data.validation, data.test]
        if data.kind == "records":
            data.train = _absolute(splits.pop(0))
        for pair in filter(None, splits):
            pair.source = [_absolute(path) for path in pair.source]
            pair.target = [_absolute(path) for path in pair.target]
    elif data.kind in ("tsv", "csv", "jsonl"):
        for split in ("train", "validation", "test"):
            paths = getattr(data, split)
            setattr(data, split, paths and [_absolute(path) for path in paths])
    elif data.kind == "hf" and os.path.isdir(_absolute(data.name)):
        data.name = _absolute(data.name)
    elif data.kind == "trees":
        for split in filter(None, (data.train, data.validation, data.test)):
            split.trees = [_absolute(path) for path in split.trees]
    elif data.kind == "tfds" and data.data_dir and "://" not in data.data_dir:
        data.data_dir = _absolute(data.data_dir)


def _one_line(error: ValidationError, values: dict) -> str:
    """Returns the message of the first error. Unknown keys come before wrong values."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    location = _location(first["loc"])
    if location[:2] == ["training", "stages"] and len(location) > 2:
        stage, key = f"stage {int(location[2]) + 1}", ".".join(location[3:])
        if first["type"] == "missing":
            return f"training.stages: {stage}: {key} must be given"
        prefix = f"training.stages: {stage}: " if key else "training.stages: "
        keys = known_keys(StageSettings)
        return prefix + _describe(first, key or stage, keys, values)
    keys = known_keys(Recipe, _data_class(values))
    return _describe(first, ".".join(location), keys, values)


def _describe(error, key, keys, values) -> str:
    """Returns the message of one of pydantic's errors.

    Args:
        error: Details of the error.
        key: The key with the error.
        keys: Valid keys, among which to find the one that was meant.
        values: Sections by name.
    """
    received = error["input"]
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"unknown key {key}{key_hint(key, keys)}"
    if kind == "missing":
        return f"{key} must be given, in the recipe or with --set {key}=..."
    if kind == "union_tag_invalid":
        kinds = ", ".join(DATA_KINDS)
        kind = values["data"]["kind"]
        return f"data.kind must be one of {kinds}. Received: {kind!r}"
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{key}: {message}" if key else message
    if kind in ("model_type", "model_attributes_type"):
        message = "Input should be a section (a mapping of keys to values)"
    expected = message.removeprefix("Input should be ")
    # Other messages are sentences, such as "List should have at least 1 item".
    start = f"{key}:" if expected == message else f"{key} must be"
    return f"{start} {expected}. Received: {received!r}"


def _location(loc):
    """Returns the key names of a pydantic error location.

    In `data`, the second name of a location is the kind of the data. It is removed.
    """
    is_kind = len(loc) > 1 and loc[0] == "data" and loc[1] in DATA_KINDS
    return [str(name) for name in (loc[:1] + loc[2:] if is_kind else loc)]


def _data_class(values):
    data = values.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    is_known = isinstance(kind, str) and kind in DATA_KINDS
    return DATA_KINDS[kind if is_known else "files"]
