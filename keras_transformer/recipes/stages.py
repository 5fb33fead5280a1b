"""Stages of a training run, each with its own settings."""

from typing import Any, Literal, NamedTuple

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_serializer,
    model_validator,
)

from keras_transformer.recipes.data_sections import Fraction, Section

# Settings of a stage that may be null although `training` has a value.
_NULLABLE = ("consistency", "learning_rate")


class ConsistencySettings(Section):
    """R-Drop or SimCut: two passes over each batch (see `training.Consistency`)."""

    kind: Literal["rdrop", "simcut"] = "simcut"  # regularization to add to the loss
    weight: NonNegativeFloat = 3.0  # factor on the divergence, alpha in the papers
    cutoff: Fraction = 0.05  # fraction of embeddings that simcut zeroes out

    @model_validator(mode="after")
    def _check_cutoff(self):
        default = type(self).model_fields["cutoff"].default
        if self.kind == "rdrop" and self.cutoff != default:
            raise ValueError(f"cutoff={self.cutoff} requires kind: simcut")
        return self


class StageSettings(Section):
    """A stage of training.

    Missing settings are taken from `training`, or from `data.train.directions`,
    `tokenizer.dropout` and `tokenizer.segmentations`. `consistency: null` and
    `learning_rate: null` override the values in `training`.

    Each stage has its own schedule, whose steps count from the beginning of the stage.
    """

    steps: PositiveInt  # training steps of the stage
    directions: Literal["forward", "both"] | None = None  # both: also swapped pairs
    tokenizer_dropout: Fraction | None = None  # tokenizer.dropout of the stage
    segmentations: PositiveInt | None = None  # tokenizer.segmentations of the stage
    batch_tokens: PositiveInt | None = None
    schedule: Literal["paper", "inverse_sqrt"] | None = None
    learning_rate: PositiveFloat | None = None
    learning_rate_scale: PositiveFloat | None = None
    warmup_steps: PositiveInt | None = None
    cooldown_steps: NonNegativeInt | None = None
    label_smoothing: Fraction | None = None
    word_dropout: Fraction | None = None
    consistency: ConsistencySettings | None = None

    @model_serializer(mode="wrap")
    def _serialize_given(self, serialize):
        """Omits missing settings, since a null can differ from a missing setting."""
        values = serialize(self)
        return {name: values[name] for name in values if name in self.model_fields_set}

    def given(self):
        """Returns the settings that the stage does not take from elsewhere."""
        return {
            name: value
            for name, value in self
            if value is not None
            or (name in _NULLABLE and name in self.model_fields_set)
        }


class TextOptions(NamedTuple):
    """Settings for reading the training text in a stage."""

    directions: str  # "forward" or "both"
    dropout: float  # of the tokenizer
    segmentations: int
    is_default: bool = True  # whether they are those of the recipe

    @property
    def cache_name(self):
        """Name of the cache folder of the text."""
        if self.is_default:
            return "train"
        return f"train-{self.directions}-{self.dropout:g}x{self.segmentations}"


class Stage(NamedTuple):
    """A stage of a run with all of its settings."""

    start: int  # number of steps before the stage
    end: int  # number of its last step, counted from the start of the run
    settings: Any  # its `TrainingSettings`; `steps` is the length of the stage
    text_options: TextOptions


def stages_of(recipe):
    """Returns the list of a recipe's `Stage`s (see `Recipe.stages`)."""
    training, tokenizer = recipe.training, recipe.tokenizer
    directions = getattr(getattr(recipe.data, "train", None), "directions", "forward")
    default = TextOptions(directions, tokenizer.dropout, tokenizer.segmentations)
    if not training.stages:
        return [Stage(0, training.steps, training, default)]
    stages, start = [], 0
    shared = {**training.model_dump(), "stages": None}
    for number, stage in enumerate(training.stages, 1):
        given = stage.given()
        text_options = TextOptions(
            given.pop("directions", default.directions),
            given.pop("tokenizer_dropout", default.dropout),
            given.pop("segmentations", default.segmentations),
        )
        # Without dropout, all segmentations of a text are equal, so one is enough.
        if not text_options.dropout:
            text_options = text_options._replace(segmentations=1)
        text_options = text_options._replace(is_default=text_options == default)
        try:
            settings = type(training).model_validate({**shared, **given})
        except ValueError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"training.stages: stage {number}: {reason}") from None
        end = start + stage.steps
        stages.append(Stage(start, end, settings, text_options))
        start = end
    return stages
