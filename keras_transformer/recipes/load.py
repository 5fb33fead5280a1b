"""Reading and writing of recipes. Each error is one line that names the key."""

import difflib
import logging
import os
import pathlib
import re

import yaml
from pydantic import BaseModel
from pydantic import ValidationError

from keras_transformer.errors import RecipeError
from keras_transformer.files import replace_file
from keras_transformer.recipes.data_sections import DATA_KINDS
from keras_transformer.recipes.renamed_keys import RENAMED_KEYS
from keras_transformer.recipes.renamed_keys import rename_keys
from keras_transformer.recipes.schema import Recipe
from keras_transformer.untrusted import read_text

logger = logging.getLogger(__name__)

_FOLDER = pathlib.Path(__file__).parent
# Limits of a recipe's size, and of its number of values with YAML aliases expanded.
_MAX_BYTES = 1 << 20
_MAX_VALUES = 10_000
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# Setting one of the two removes the other.
_ALTERNATIVES = {
    "training.checkpoint_minutes": "checkpoint_steps",
    "training.checkpoint_steps": "checkpoint_minutes",
}


class _Loader(yaml.SafeLoader):
    """Loads safe YAML: 1e-9 is a number, `no` is a word, and keys are unique."""

    def get_single_node(self):
        node = super().get_single_node()
        if node is not None:
            _count_values(node, {})
        return node

    def construct_object(self, node, deep=False):
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError("more than 64 bits")
            return value
        except (RecipeError, yaml.YAMLError):
            raise
        # Causes: day 99 of a month, `!!int` before a word, or too many digits.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            line = node.start_mark.line + 1
            raise RecipeError(f"line {line}: a value that cannot be read") from None

    def construct_mapping(self, node, deep=False):
        seen = set()
        # PyYAML reports nodes of other kinds, such as `!!set [a]`.
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise RecipeError(f"line {line}: a key must be a word, not {key!r}")
            if key in seen:
                raise RecipeError(f"line {line}: the key {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _count_values(node, counted):
    """Returns the number of values in a YAML node, with aliases expanded.

    Args:
        node: The node.
        counted: Counts of other nodes by id, `None` while a node is being counted.

    Raises:
        RecipeError: If there are too many values, or a value contains itself.
    """
    if id(node) in counted:
        count = counted[id(node)]
    else:
        counted[id(node)] = None
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        counts = [_count_values(part, counted) for part in parts]
        counted[id(node)] = count = 1 + sum(counts)
    if count is None or count > _MAX_VALUES:
        line = node.start_mark.line + 1
        raise RecipeError(f"line {line}: more than {_MAX_VALUES:,} values")
    return count


def _yaml_value(text):
    """Returns the value of YAML text.

    Raises:
        RecipeError: If it is not valid YAML, nested too deeply, too large, or a value
            cannot be read. The message begins with the line.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise RecipeError("line 1: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line, problem = error.problem_mark.line + 1, error.problem
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, error.reason
    raise RecipeError(f"line {line}: not valid YAML: {problem}")


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:bool" or first in "tTfF"
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def shipped_recipes() -> dict[str, str]:
    """Returns the name and one-line description of each shipped recipe."""
    described = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        first_line = path.read_text(encoding="utf-8").split("\n", 1)[0]
        described[path.stem] = first_line.lstrip("# ").strip()
    return described


def load_recipe(name_or_path, overrides=(), keys=None) -> Recipe:
    """Reads a recipe, applies overrides and checks it.

    Relative paths in `data`, `tokenizer.model` and `training.initial_model` are
    relative to the current directory. In `data`, `${NAME}` is replaced by the
    environment variable NAME.

    Args:
        name_or_path: The name of a shipped recipe or the path of a YAML file.
        overrides: Strings `"dotted.key=value"` with a YAML value.
        keys: Mapping of dotted keys to values, applied before `overrides`.

    Returns:
        A `Recipe` with absolute paths.

    Raises:
        RecipeError: If the recipe is invalid: one line with the file and dotted key.
    """
    label, values = _read(name_or_path)
    _rename_old_keys(values, label)
    for key, value in (keys or {}).items():
        _set(values, key, value)
    for override in overrides:
        _apply(values, override)
    try:
        values["data"] = _expand_variables(values.get("data", {}), "data")
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{label}: {_one_line(error, values)}") from None
    except RecipeError as error:
        raise RecipeError(f"{label}: {error}") from None
    _make_paths_absolute(recipe.data)
    if recipe.tokenizer.model:
        recipe.tokenizer.model = _absolute(recipe.tokenizer.model)
    if recipe.training.initial_model:
        recipe.training.initial_model = _absolute(recipe.training.initial_model)
    return recipe


def dump_recipe(recipe: Recipe, path) -> None:
    """Writes the complete resolved recipe as YAML.

    Raises:
        StorageError: If the disk is full.
    """
    text = yaml.safe_dump(
        recipe.model_dump(), sort_keys=False, allow_unicode=True, width=1_000
    )
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(name_or_path):
    label = str(name_or_path)
    is_shipped = label in shipped_recipes()
    path = _FOLDER / f"{label}.yaml" if is_shipped else pathlib.Path(name_or_path)
    if not path.exists():
        names = list(shipped_recipes())
        raise RecipeError(
            f"{label}: no such file, and no shipped recipe of that name"
            f"{_nearest(label, names)}. Shipped: {', '.join(names)}"
        )
    text = read_text(path, _MAX_BYTES, RecipeError)
    try:
        values = _yaml_value(text)
    except RecipeError as error:
        raise RecipeError(f"{label}, {error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{label}: a recipe must be a mapping of keys to values")
    return label, values


def _apply(values: dict, override: str) -> None:
    key, separator, text = override.partition("=")
    key = key.strip()
    names = key.split(".")
    if not separator or not all(names):
        raise RecipeError(f"--set {override}: must have the form dotted.key=value")
    try:
        value = _yaml_value(text)
    except RecipeError as error:
        raise RecipeError(f"--set {key}, {error}") from None
    _set(values, key, value)


def _set(values: dict, key: str, value) -> None:
    recipe = values
    if key in RENAMED_KEYS:
        _warn_of_renamed([key], f"--set {key}")
        key = RENAMED_KEYS[key]
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
    _rename_old_keys(recipe, f"--set {key}")


def _rename_old_keys(values: dict, label: str) -> None:
    try:
        renamed = rename_keys(values)
    except ValueError as error:
        raise RecipeError(f"{label}: {error}") from None
    if renamed:
        _warn_of_renamed(renamed, label)


def _warn_of_renamed(old_keys, label: str) -> None:
    changes = ", ".join(f"{key} is now {RENAMED_KEYS[key]}" for key in old_keys)
    logger.warning("%s: %s", label, changes)


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
                f"{key}: the environment variable {name} is not set (in {value}). "
                f"Set it to the folder of the data, or give --set {key}=PATH"
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
    elif data.kind in ("tsv", "jsonl"):
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
    """Returns the first error, unknown keys before wrong values."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(_location(first["loc"]))
    received = first["input"]
    kind = first["type"]
    if kind == "extra_forbidden":
        hint = _nearest_key(key, _dotted_keys(Recipe, _data_class(values)))
        return f"unknown key {key}{hint}"
    if kind == "missing":
        return f"{key} must be given, in the recipe or with --set {key}=..."
    if kind == "union_tag_invalid":
        kinds = ", ".join(DATA_KINDS)
        kind = values["data"]["kind"]
        return f"data.kind must be one of {kinds}. Received: {kind!r}"
    message = first["msg"].removeprefix("Value error, ")
    message = message.removeprefix("Input should be ")
    if kind == "value_error":
        return f"{key}: {message}" if key else message
    if kind in ("model_type", "model_attributes_type"):
        message = "a section (a mapping of keys to values)"
    return f"{key} must be {message}. Received: {received!r}"


def _location(loc):
    """Returns the names of an error's keys, without the kind of the data section."""
    is_kind = len(loc) > 1 and loc[0] == "data" and loc[1] in DATA_KINDS
    return [str(name) for name in (loc[:1] + loc[2:] if is_kind else loc)]


def _data_class(values):
    data = values.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    is_known = isinstance(kind, str) and kind in DATA_KINDS
    return DATA_KINDS[kind if is_known else "files"]


def _dotted_keys(model, data_class, prefix=""):
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = data_class if prefix + name == "data" else _section(field.annotation)
        if section:
            keys += _dotted_keys(section, data_class, f"{prefix}{name}.")
    return keys


def _section(annotation):
    options = getattr(annotation, "__args__", (annotation,))
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _nearest(name, names):
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


def _nearest_key(key, keys):
    """Returns a hint: the same name elsewhere, else a similar one."""
    section, _, leaf = key.rpartition(".")
    by_leaf = {}
    for other in keys:
        by_leaf.setdefault(other.rpartition(".")[2], other)
    if leaf in by_leaf:
        return f"; did you mean {by_leaf[leaf]}?"
    siblings = [other for other in keys if other.rpartition(".")[0] == section]
    matches = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    elsewhere = f"; did you mean {by_leaf[matches[0]]}?" if matches else ""
    return _nearest(key, siblings) or elsewhere
