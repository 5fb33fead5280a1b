"""Reads, checks and writes recipes. Each error is one line that names the key."""

import copy
import functools
import os
import pathlib
import re

from pydantic import ValidationError

from keras_transformer.errors import RecipeError
from keras_transformer.files import replace_text
from keras_transformer.recipes.automatic import TEXT_KINDS, resolve
from keras_transformer.recipes.data_sections import absolute_path, data_kind
from keras_transformer.recipes.keys import error_message, name_hint
from keras_transformer.recipes.schema import DecodingSettings, Recipe
from keras_transformer.recipes.yaml_values import dump_yaml, read_yaml
from keras_transformer.untrusted import read_text

_FOLDER = pathlib.Path(__file__).parent
_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# Sections whose missing keys are taken from the run's recipe, or else from the packaged
# recipe `files`.
_TEMPLATE_SECTIONS = ("tokenizer", "model", "training")
# Maps a dotted key to its alternative in the same section. Setting the key removes the
# alternative. A missing key is filled in only if its alternative is not given.
_ALTERNATIVES = {
    "training.checkpoint_minutes": "checkpoint_steps",
    "training.checkpoint_steps": "checkpoint_minutes",
    "training.stages": "steps",  # its default is the sum of the stages' steps
    "training.ema_momentum": "average_checkpoints",  # its default is then 1
}
# Beginning of the line `data.train` in a recipe that names no training text.
_NO_TEXT = "  train: {}"
# Part of the example command in the recipe's comment, removed if files are given.
_SET_FILES = """ \\
#     --set data.train.source=train.en --set data.train.target=train.de"""


@functools.cache
def packaged_recipes() -> dict[str, str]:
    """Returns the name and one-line description of each packaged recipe.

    Examples:
        >>> kt.recipes.packaged_recipes()["phrases"]
        'Phrases from CLDR, English to German: no data needed, minutes on two CPU cores'
    """
    described = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        first_line = path.read_text(encoding="utf-8").split("\n", 1)[0]
        described[path.stem] = first_line.lstrip("# ").strip()
    return described


def recipe_template(name, path, train=None) -> str:
    """Returns the text of a packaged recipe, as a starting point for your own.

    Args:
        name: Name of the packaged recipe.
        path: Path of the new file. It replaces the recipe's name in the example
            command.
        train: Mapping with the training files `source` and `target`. If `None`,
            `data.train` is unchanged.

    Raises:
        RecipeError: If there is no such recipe, or `train` is given but the recipe
            already names its training text.

    Examples:
        >>> files = {"source": "train.en", "target": "train.de"}
        >>> text = kt.recipes.recipe_template("files", "mine.yaml", files)
        >>> "  train: {source: train.en, target: train.de}" in text
        True
    """
    if name not in packaged_recipes():
        raise RecipeError(
            f"{name}: no packaged recipe of that name. Packaged: "
            f"{', '.join(packaged_recipes())}"
        )
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    command = "keras-transformer train"
    text = text.replace(f"{command} {name} ", f"{command} {path} ")
    if train is None:
        return text
    if _NO_TEXT not in text:
        raise RecipeError(
            f"{name}: the recipe already names its training text. Choose the recipe "
            "files, or pass no training files"
        )
    text = text.replace(_SET_FILES, "")
    files = dump_yaml(train, flow_style=True)
    return "".join(
        f"  train: {files}" if line.startswith(_NO_TEXT) else line
        for line in text.splitlines(keepends=True)
    )


def load_recipe(
    name_or_path, overrides=(), keys=None, run=None, report=None, stored=None
) -> Recipe:
    """Reads a recipe, applies overrides and checks it.

    Relative paths in `data`, `tokenizer.model`, `tokenizer.source_model` and
    `training.initial_model` are resolved against the current directory. In `data`,
    `${NAME}` is replaced by the environment variable NAME.

    If the data are text or records and the recipe has no section `model`, keys
    missing from `tokenizer`, `model` and `training` are taken from the recipe stored in
    `run`, or else from the packaged recipe `files`. Keys that are `auto` get values
    that fit the text and the machine. GPUs are found only if TensorFlow has been
    imported.

    Args:
        name_or_path: The name of a packaged recipe, the path of a YAML file, or a dict
            of a recipe's sections.
        overrides: Strings `"dotted.key=value"` with a YAML value.
        keys: Mapping of dotted keys to values, applied before `overrides`. A section
            `decoding` applies if that of the recipe has no values but the defaults.
        run: Folder that `train`, `repeat` or `ablate` writes. Once training has begun,
            missing keys and keys that are `auto` take their values from
            its `config.yaml`.
        report: Called with each line of a report on the values chosen for `auto`: a
            heading, then a line per value.
        stored: `Recipe` to use instead of the one stored in `run`.

    Returns:
        A `Recipe` with absolute paths.

    Raises:
        RecipeError: If the recipe is invalid. The message is one line with the file and
            the dotted key.

    Examples:
        >>> recipe = kt.recipes.load_recipe("phrases", ["training.steps=1500"])
        >>> recipe.training.steps
        1500
    """
    label, values = _read(name_or_path)
    describes_model = values.get("model") is not None
    for key, value in (keys or {}).items():
        if key != "decoding" or _has_default_search(values):
            _set_key(values, key, value)
    for override in overrides:
        _apply_override(values, override)
    stored = _values_of_run(run) if stored is None else stored.model_dump()
    if not describes_model:
        _add_template(values, stored)
    try:
        values["data"] = _expand_variables(values.get("data", {}), "data")
        recipe = resolve(values, stored, report)
    except (ValidationError, RecipeError) as error:
        is_invalid = isinstance(error, ValidationError)
        message = error_message(error, values) if is_invalid else str(error)
        for override in overrides:
            key = override.partition("=")[0].strip()
            if re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", message):
                label = f"--set {key}"
        raise RecipeError(f"{label}: {message}") from None
    initial = recipe.training.initial_path
    if initial:
        is_packaged = (_FOLDER.parent / "pretrained" / initial).is_dir()
        is_name = initial.startswith("hf:/") or is_packaged
        if os.path.exists(absolute_path(initial)) or not is_name:
            recipe.training.initial_model = absolute_path(recipe.training.initial_model)
    return recipe


def dump_recipe(recipe: Recipe, path) -> None:
    """Writes a recipe as YAML, with the defaults of all keys that it does not set.

    Args:
        recipe: `Recipe`.
        path: Path of the file, which is replaced.

    Raises:
        StorageError: If the disk is full.

    Examples:
        >>> recipe = kt.recipes.load_recipe("phrases", ["training.steps=1500"])
        >>> kt.recipes.dump_recipe(recipe, "mine.yaml")
        >>> kt.recipes.load_recipe("mine.yaml").training.steps
        1500
    """
    replace_text(path, dump_yaml(recipe.model_dump()))


def _read(name_or_path):
    """Returns a recipe's label for messages, and a mapping of its sections by name."""
    if isinstance(name_or_path, dict):
        return "recipe", copy.deepcopy(name_or_path)
    label = str(name_or_path)
    is_packaged = label in packaged_recipes()
    path = _FOLDER / f"{label}.yaml" if is_packaged else pathlib.Path(name_or_path)
    if not path.exists():
        names = list(packaged_recipes())
        raise RecipeError(
            f"{label}: no such file, and no packaged recipe of that name"
            f"{name_hint(label, names) or '.'} Packaged: {', '.join(names)}"
        )
    text = read_text(path, _MAX_BYTES, RecipeError)
    try:
        values = read_yaml(text)
    except RecipeError as error:
        raise RecipeError(f"{label}:{error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{label}: a recipe must be a mapping of keys to values")
    return label, values


def _has_default_search(values):
    """Returns whether a recipe's section `decoding` has only default values."""
    given, defaults = values.get("decoding") or {}, DecodingSettings().model_dump()
    return isinstance(given, dict) and defaults | given == defaults


def _values_of_run(run):
    """Returns the stored recipe of a run as a mapping.

    Returns `None` before the run has begun, or if the recipe cannot be read or lacks
    a section.
    """
    checkpoint = "checkpoints/ckpt-*.npz"
    # Of a run, and of one inside a folder of `repeat` or `ablate`.
    signs = (checkpoint, f"seed-*/{checkpoint}", "runs/*-seed*/config.yaml")
    if run is None or not any(any(pathlib.Path(run).glob(sign)) for sign in signs):
        return None
    try:
        _, values = _read(pathlib.Path(run, "config.yaml"))
    except RecipeError:
        # The command `train` reads config.yaml later and reports the error.
        return None
    is_complete = all(isinstance(values.get(name), dict) for name in _TEMPLATE_SECTIONS)
    return values if is_complete else None


def _add_template(values: dict, stored) -> None:
    """If `data.kind` is one of `TEXT_KINDS`, adds missing keys from a stored recipe.

    If `stored` is `None`, the keys are taken from the packaged recipe `files`.
    """
    data = values.get("data")
    if not isinstance(data, dict) or data_kind(data) not in TEXT_KINDS:
        return
    template = stored or _read("files")[1]
    for section in _TEMPLATE_SECTIONS:
        given = {} if values.get(section) is None else values[section]
        if isinstance(given, dict):
            added = dict(template[section])
            for name in filter(given.get, given):
                added.pop(_ALTERNATIVES.get(f"{section}.{name}"), None)
            values[section] = added | given


def _apply_override(values: dict, override: str, option="--set") -> None:
    """Sets the key of an override `"dotted.key=value"`."""
    key, separator, text = override.partition("=")
    key = key.strip()
    names = key.split(".")
    if not separator or not all(names):
        raise RecipeError(f"{option} {override}: must have the form dotted.key=value")
    try:
        value = read_yaml(text)
    except RecipeError as error:
        raise RecipeError(f"{option} {key}, line {error}") from None
    _set_key(values, key, value)


def read_decoding(overrides):
    """Returns keys of the section `decoding` from strings `"key=value"`, as a dict.

    Raises:
        RecipeError: If a key is unknown or a value is out of range.
    """
    values = {}
    for override in overrides:
        _apply_override(values, override, "--decoding")
    try:
        checked = DecodingSettings.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"--decoding: {error_message(error, values)}") from None
    return {name: getattr(checked, name) for name in values}


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
    for name in _VARIABLE.findall(value):
        if not os.environ.get(name):
            raise RecipeError(
                f"{key}: the environment variable {name} is not set, but {value} "
                f"uses it. Set {name} to the data folder, or change the path in a copy "
                "of the recipe (`keras-transformer init my.yaml --recipe RECIPE`)"
            )
    return _VARIABLE.sub(lambda match: os.environ[match[1]], value)
