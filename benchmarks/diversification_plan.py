"""The models that data_diversification.py trains, stored in its output folder."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from diversified_text import write

from keras_transformer.errors import RecipeError
from keras_transformer.recipes.keys import changed_keys
from keras_transformer.recipes.schema import Recipe
from keras_transformer.untrusted import read_json

# Side of the text that the models of each direction translate.
DIRECTIONS = {"forward": "source", "backward": "target"}
# File with the plan, in the output folder.
SETTINGS = "settings.json"
# Options that set the fields of `Plan`, except the recipes.
_OPTIONS = {
    "seeds": "--seeds",
    "final_seeds": "--final-seeds",
    "directions": "--forward-only",
    "has_ensemble": "--ensemble",
}


class Plan(NamedTuple):
    """The models to train.

    Attributes:
        recipe: `Recipe` of the forward and backward models. Its data are pairs of plain
            text.
        final: `Recipe` of the final training run.
        seeds: Distinct ints. One model per direction is trained with each.
        final_seeds: Seeds of the final training run. If empty, `final` is trained once.
        directions: "forward", or "forward" and "backward".
        has_ensemble: Whether all models of a direction also translate together.
    """

    recipe: Recipe
    final: Recipe
    seeds: Sequence[int]
    final_seeds: Sequence[int] = ()
    directions: Sequence[str] = tuple(DIRECTIONS)
    has_ensemble: bool = False

    def translations(self):
        """Returns the names of the translations of each direction."""
        names = [*self.seeds, *(["ensemble"] if self.has_ensemble else [])]
        return {
            direction: [f"{direction}-{name}" for name in names]
            for direction in self.directions
        }


def check(plan):
    """Raises `RecipeError` if the script cannot train models with the recipe."""
    data, tokenizer = plan.recipe.data, plan.recipe.tokenizer
    if data.kind in ("trees", "records", "none"):
        raise RecipeError(
            f"data.kind must name a corpus of plain text pairs. Received: {data.kind}."
        )
    if getattr(getattr(data, "train", None), "bidirectional", False):
        raise RecipeError("data.train.bidirectional must be false. Received: true.")
    if not tokenizer.shared and "backward" in plan.directions:
        raise RecipeError(
            "tokenizer.shared must be true to train backward models. Pass "
            "--forward-only for separate vocabularies."
        )
    if plan.final_seeds and getattr(data, "test", True) is None:
        raise RecipeError("--final-seeds needs a test set. Set data.test.")


def read_plan(output):
    """Returns the `Plan` stored in `output`, or `None`.

    Raises:
        RecipeError: If it is damaged.
    """
    path = output / SETTINGS
    return read_json(path, Plan, error=RecipeError) if path.exists() else None


def claim(plan, output):
    """Stores the plan in `output`, or checks that it matches the stored one."""
    stored = read_plan(output)
    if stored is None:
        for folder in ("text", "synthetic"):
            (output / folder).mkdir(parents=True, exist_ok=True)
        values = plan._asdict()
        for name in ("recipe", "final"):
            values[name] = values[name].model_dump(mode="json")
        write(output / SETTINGS, json.dumps(values, indent=1))
        return
    changed = [*changed_keys(stored.recipe, plan.recipe)]
    finals = changed_keys(stored.final, plan.final)
    changed += [f"{key} (--set-final)" for key in finals if key not in changed]
    for name, option in _OPTIONS.items():
        # Tuples become lists in JSON.
        before, after = (json.dumps(getattr(each, name)) for each in (stored, plan))
        if before != after:
            changed.append(option)
    if changed:
        raise RecipeError(
            f"{output / SETTINGS} stores another value of {', '.join(changed)}. Choose "
            "another --output"
        )
