"""Dotted keys of recipes, and hints for misspelled ones."""

import difflib

from pydantic import BaseModel

from keras_transformer.recipes.data_sections import DATA_KINDS
from keras_transformer.recipes.schema import Recipe


def dotted_recipe_keys() -> list[str]:
    """Returns the dotted keys of all settings in recipes, for every kind of data.

    Keys whose value is a section are omitted.
    """
    keys = dict.fromkeys(
        key for kind in DATA_KINDS.values() for key in known_keys(Recipe, kind)
    )
    return [key for key in keys if not any(one.startswith(f"{key}.") for one in keys)]


def known_keys(model, data_class=None, prefix=""):
    """Returns the dotted keys of a section, including nested sections and their keys.

    Args:
        model: Class of the section.
        data_class: Class of the section `data`, if `model` is `Recipe`.
        prefix: Text before each key.
    """
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = data_class if prefix + name == "data" else _section(field.annotation)
        if section:
            keys += known_keys(section, data_class, f"{prefix}{name}.")
    return keys


def _section(annotation):
    options = getattr(annotation, "__args__", (annotation,))
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def changed_keys(old, new, exclude=None):
    """Returns the dotted keys in which two recipes differ.

    A nested section, such as `data.train`, counts as one key.

    Args:
        old: A `Recipe`.
        new: A `Recipe`.
        exclude: Keys to ignore, in the form of pydantic's argument `exclude`.
    """
    old, new = (recipe.model_dump(exclude=exclude) for recipe in (old, new))
    keys = []
    for section in old:
        before, after = old[section] or {}, new[section] or {}
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                keys.append(f"{section}.{key}")
    return keys


def name_hint(name, names):
    """Returns a hint with the most similar of `names`, or an empty string."""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


def key_hint(key, keys):
    """Returns a hint with the key that `key` probably means, or an empty string.

    A key with the same last component in another section takes precedence over a
    similarly spelled key.
    """
    section, _, leaf = key.rpartition(".")
    by_leaf = {}
    for other in keys:
        by_leaf.setdefault(other.rpartition(".")[2], other)
    if leaf in by_leaf:
        return f"; did you mean {by_leaf[leaf]}?"
    siblings = [other for other in keys if other.rpartition(".")[0] == section]
    matches = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    elsewhere = f"; did you mean {by_leaf[matches[0]]}?" if matches else ""
    return name_hint(key, siblings) or elsewhere
