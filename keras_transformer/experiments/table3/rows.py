"""Recipes for the rows of the paper's Table 3.

The paper labels its groups of rows with the letters A to E. Here, the rows of a group
are also numbered, such as `C2`. Group E has a single row, `E`.
"""

from typing import NamedTuple

from keras_transformer.errors import RecipeError
from keras_transformer.presets import PRESETS, TRAINING_PRESETS, WIDTHS
from keras_transformer.recipes import Recipe


class PaperRow(NamedTuple):
    """A row's results in Table 3, on newstest2013.

    Attributes:
        perplexity: Perplexity per subword.
        bleu: BLEU.
        millions: Parameters in millions, or `None` if the table does not list them.
    """

    perplexity: float
    bleu: float
    millions: float | None


PAPER = {
    "base": PaperRow(4.92, 25.8, 65),
    "A1": PaperRow(5.29, 24.9, None),
    "A2": PaperRow(5.00, 25.5, None),
    "A3": PaperRow(4.91, 25.8, None),
    "A4": PaperRow(5.01, 25.4, None),
    "B1": PaperRow(5.16, 25.1, 58),
    "B2": PaperRow(5.01, 25.4, 60),
    "C1": PaperRow(6.11, 23.7, 36),
    "C2": PaperRow(5.19, 25.3, 50),
    "C3": PaperRow(4.88, 25.5, 80),
    "C4": PaperRow(5.75, 24.5, 28),
    "C5": PaperRow(4.66, 26.0, 168),
    "C6": PaperRow(5.12, 25.4, 53),
    "C7": PaperRow(4.75, 26.2, 90),
    "D1": PaperRow(5.77, 24.6, None),
    "D2": PaperRow(4.95, 25.5, None),
    "D3": PaperRow(4.67, 25.3, None),
    "D4": PaperRow(5.47, 25.7, None),
    "E": PaperRow(4.92, 25.7, None),
    "big": PaperRow(4.33, 26.4, 213),
}
# The big model is trained for 300,000 steps instead of 100,000.
_BIG_STEPS_FACTOR = 3


def expand_rows(names):
    """Returns row names in the order of the table.

    Args:
        names: Comma-separated names such as `"base,A,C2"`; a letter such as `A` selects
            all rows of its group.

    Raises:
        RecipeError: If a row does not exist, or none is named.
    """
    wanted = set()
    for name in filter(None, (part.strip() for part in names.split(","))):
        is_group = len(name) == 1
        found = [row for row in PAPER if row == name or (is_group and row[:-1] == name)]
        if not found:
            raise RecipeError(
                f"rows must be names in Table 3 ({', '.join(PAPER)}) or letters of its "
                f"groups, such as A. Received: {name!r}."
            )
        wanted.update(found)
    if not wanted:
        raise RecipeError("rows must name at least one row of Table 3.")
    return [row for row in PAPER if row in wanted]


def row_recipe(recipe, row, scale=1, seed=1):
    """Returns the recipe with the model and training of a row.

    Data, tokenizer, schedule, normalization and activation are unchanged. As in the
    paper, the model is the last checkpoint, without averaging. The search uses beam
    size 4 and length penalty 0.6. The row `big` is trained for three times as many
    steps as the others.

    Args:
        recipe: A `Recipe`.
        row: Name of the row.
        scale: Divisor of all widths, for smaller models. Heads, layers and dropout are
            unchanged.
        seed: Seed of the initial weights, the dropout and the data order.

    Raises:
        RecipeError: If `scale` does not divide a width.
    """
    sizes = dict(PRESETS[row])
    for name in WIDTHS:
        if sizes[name] % scale:
            raise RecipeError(
                f"row {row}: {name}={sizes[name]} is not divisible by --scale {scale}"
            )
        sizes[name] //= scale
    values = recipe.model_dump()
    kept = {name: values["model"][name] for name in ("normalization", "activation")}
    # `sizes` replaces every value in which the row differs from this preset.
    values["model"] = {**sizes, **kept, "preset": "base"}
    changes = TRAINING_PRESETS.get(row, {})
    training = {
        **values["training"],
        **changes,
        "average_checkpoints": 1,
        "ema_momentum": None,
        "seed": seed,
    }
    # A stage's own settings must not hide the changes of the row.
    stages = [{**stage, **changes} for stage in training["stages"] or ()]
    if row == "big":
        for settings in (training, *stages):
            settings["steps"] *= _BIG_STEPS_FACTOR
    values["training"] = {**training, "stages": stages or None}
    values["decoding"] = {"beam_size": 4, "length_penalty": 0.6}
    return Recipe.model_validate(values)
