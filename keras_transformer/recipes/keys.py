"""Dotted keys of recipes, and messages about wrong ones."""

import difflib
import json

from pydantic import BaseModel, ValidationError

from keras_transformer.recipes.data_sections import CORPUS_KINDS, DATA_KINDS, data_kind
from keras_transformer.recipes.schema import Recipe, StageSettings

# Hints for keys that users set to null to switch something off.
_NULL_HINTS = {
    "training.validation_steps": ". To train without validation, set data.validation "
    "to null"
}


def dotted_recipe_keys() -> list[str]:
    """Returns the dotted keys of all settings in recipes, for every kind of data.

    Keys whose value is a section are omitted.
    """
    keys = dict.fromkeys(
        key for kind in DATA_KINDS.values() for key in _known_keys(Recipe, kind)
    )
    return [key for key in keys if not any(one.startswith(f"{key}.") for one in keys)]


def _known_keys(model, data_class=None, prefix=""):
    """Returns the dotted keys of a section's class, including those of inner sections.

    `data_class` is the class of the section `data`, if `model` is `Recipe`.
    """
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = data_class if prefix + name == "data" else _section(field.annotation)
        if section:
            keys += _known_keys(section, data_class, f"{prefix}{name}.")
    return keys


def _section(annotation):
    options = getattr(annotation, "__args__", (annotation,))
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def changed_keys(old, new, exclude=None):
    """Returns the dotted keys in which two recipes differ, mapped to the changes.

    A change is text, such as "20 -> 30". A nested section, such as `data.train`, counts
    as one key, and its change contains the keys that differ.

    Args:
        old: A `Recipe`.
        new: A `Recipe`.
        exclude: Keys to ignore, in the form of pydantic's argument `exclude`.
    """
    old, new = (recipe.model_dump(exclude=exclude) for recipe in (old, new))
    changes = {}
    for section in old:
        before, after = old[section] or {}, new[section] or {}
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                change = _describe_change(before.get(key), after.get(key))
                changes[f"{section}.{key}"] = change
    return changes


def _describe_change(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        old, new = ({key: each.get(key) for key in changed} for each in (old, new))
    old, new = (
        json.dumps(each, ensure_ascii=False, default=str) for each in (old, new)
    )
    return f"{old} -> {new}"


def describe_changes(changes) -> str:
    """Returns the result of `changed_keys` as text."""
    return ", ".join(f"{key}: {change}" for key, change in changes.items())


def name_hint(name, names):
    """Returns a hint with the most similar of `names`, or an empty string."""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f". Did you mean {matches[0]}?" if matches else ""


# What other toolkits call these keys.
_OTHER_NAMES = {
    "epochs": "steps",
    "max_epochs": "steps",
    "lr": "learning_rate",
    "layers": "num_layers",
    "batch_size": "batch_tokens",
}


def key_named(name, keys):
    """Returns the first of the keys that ends with a name of this or other toolkits."""
    name = _OTHER_NAMES.get(name, name)
    return next((key for key in keys if key.rpartition(".")[2] == name), None)


def _key_hint(key, keys):
    """Returns a hint with the key that `key` probably means, or an empty string.

    A key with the same last component in another section takes precedence over a
    similarly spelled key.
    """
    section, _, leaf = key.rpartition(".")
    if found := key_named(leaf, keys):
        return f". Did you mean {found}?"
    by_leaf = {other.rpartition(".")[2]: other for other in reversed(keys)}
    pairs = [(other.rpartition(".")[::2], other) for other in keys]
    siblings = {name: other for (place, name), other in pairs if place == section}
    for names in (siblings, by_leaf):
        if matches := difflib.get_close_matches(leaf, names, n=1, cutoff=0.6):
            return f". Did you mean {names[matches[0]]}?"
    return ""


def error_message(error: ValidationError, values: dict) -> str:
    """Returns the message of the first error. Unknown keys come before wrong values."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    location = [str(name) for name in first["loc"]]
    # In `data`, the second name is the kind of the data.
    if location[0:1] == ["data"] and location[1:] and location[1] in DATA_KINDS:
        del location[1]
    section = ""
    if location[:2] == ["training", "stages"] and len(location) > 2:
        section = f"training.stages: stage {int(location[2]) + 1}"
        key, keys = ".".join(location[3:]), _known_keys(StageSettings)
    elif first["loc"][:3] == ("data", "mixed", "train") and len(location) > 2:
        section = f"data.train: corpus {int(location[2]) + 1}"
        kind, key = (location[3:] or [None])[0], ".".join(location[4:])
        if first["type"] == "union_tag_invalid":
            key = "kind"
        keys = _known_keys(CORPUS_KINDS[kind]) if kind else []
        if kind == "files":  # whose `train` may be omitted
            key = key.removeprefix("train.")
    if not section:
        keys = _known_keys(Recipe, _data_class(values))
        return _describe(first, ".".join(location), keys)
    if key and first["type"] == "missing":
        return f"{section}: {key} must be given"
    number = section.partition(": ")[2]
    prefix = f"{section}: " if key else section.removesuffix(number)
    return prefix + _describe(first, key or number, keys)


def _describe(error, key, keys) -> str:
    """Returns the message of one of pydantic's errors. `keys` are the valid keys."""
    received = error["input"]
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"unknown key {key}{_key_hint(key, keys)}"
    if kind == "missing":
        return f"{key} must be given, in the recipe or with --set {key}=..."
    if kind == "union_tag_invalid":
        is_corpus = len(error["loc"]) > 1
        kinds = ", ".join(CORPUS_KINDS if is_corpus else DATA_KINDS)
        name, kind = "kind" if is_corpus else "data.kind", error["ctx"]["tag"]
        return f"{name} must be one of {kinds}. Received: {kind!r}"
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{key}: {message}" if key else message
    if kind in ("model_type", "model_attributes_type"):
        message = "Input should be a section (a mapping of keys to values)"
    expected = message.removeprefix("Input should be ")
    # Other messages are sentences, such as "List should have at least 1 item".
    start = f"{key}:" if expected == message else f"{key} must be"
    shown = "null" if received is None else repr(received)
    hint = _NULL_HINTS.get(key, "") if received is None else ""
    return f"{start} {expected}. Received: {shown}{hint}"


def _data_class(values):
    data = values.get("data")
    kind = data_kind(data) if isinstance(data, dict) else None
    is_known = isinstance(kind, str) and kind in DATA_KINDS
    return DATA_KINDS[kind if is_known else "files"]
