"""Recipe keys and their types, with the defaults of section 5 of the paper.

Comments in `files.yaml` describe most keys, and the docstring of `Transformer` those of
the model. Comments here describe the other keys.
"""

import contextlib
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_serializer,
    model_validator,
)

from keras_transformer.arguments import (
    DEFAULTS,
    PROJECTIONS,
    TIMESCALES,
    ModelArguments,
    Variations,
    with_head_dims,
)
from keras_transformer.errors import install_hint
from keras_transformer.recipes.data_sections import (
    DATA_KINDS,
    FilePath,
    Fraction,
    Section,
    Seed,
    Text,
    data_kind,
)
from keras_transformer.sizes import SIZES, change_size

# Tokenizers of sacreBLEU.
BLEU_TOKENIZERS = (
    "13a",
    "none",
    "intl",
    "char",
    "zh",
    "ja-mecab",
    "ko-mecab",
    "flores101",
    "flores200",
    "spBLEU-1K",
)
# Extras of this package that install the dependencies of some of these tokenizers.
_BLEU_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


def bleu_problem(name):
    """Returns why sacreBLEU cannot use one of `BLEU_TOKENIZERS` here, or `None`."""
    from sacrebleu.metrics import BLEU

    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        # A package is missing, or sacreBLEU could not download a file.
        is_missing = name in _BLEU_EXTRAS and not isinstance(error, OSError)
        extra = f"first run {install_hint(_BLEU_EXTRAS[name])}" if is_missing else ""
        return extra or str(error)
    return None


# Larger beams exhaust the memory of any machine.
_BeamSize = Annotated[int, Field(ge=1, le=10_000)]


class VariationSettings(Section, Variations):
    """Details of other toolkits' models; see `Variations`."""

    @model_validator(mode="after")
    def _check_values(self):
        self.__post_init__()
        return self


# Keys of the section `model` that are not arguments of `Transformer` but set some.
_SHORT_FORMS = ("size", "start", "timescales")
# Start id of all tokenizers except imported Marian ones, whose start id is their last
# id.
_START_ID = 2


class ModelSettings(Section, ModelArguments):
    """A size and the arguments of `Transformer` that differ from it.

    Missing keys have the values of the size. If `d_model` or `num_heads` is given,
    `key_dim` and `value_dim` default to `d_model / num_heads`. `start: zeros` sets
    `variations.zero_start_id`, and `timescales` sets `variations.timescales`.
    """

    # name of a size: tiny, small, base, big, parsing, or a row of Table 3, A1 to E
    size: str = "base"
    # first input of the decoder: a learned vector, or zeros as in Marian; null: learned
    start: Literal["learned", "zeros"] | None = None
    # frequencies of sinusoids: those of the paper, or of tensor2tensor; null: paper
    timescales: Literal[TIMESCALES] | None = None
    variations: VariationSettings | None = None  # details in which toolkits differ

    @model_validator(mode="before")
    @classmethod
    def _apply_size(cls, values: Any):
        if not isinstance(values, dict):
            return values
        size = values.get("size", "base")
        if not isinstance(size, str) or size not in SIZES:
            raise ValueError(
                f"size must be one of {', '.join(SIZES)}. Received: {size!r}"
            )
        return change_size(size, values)

    @model_validator(mode="after")
    def _check_consistency(self):
        if self.positions == "learned" and self.max_length is None:
            raise ValueError("positions: learned requires max_length")
        changes = self.variations.changes() if self.variations else {}
        for name in ("timescales", "first_position"):
            if name in changes and self.positions != "sinusoidal":
                raise ValueError(f"variations.{name} requires positions: sinusoidal")
        sizes = with_head_dims(vars(self))
        for name in {"key_dim", "value_dim"} - self.model_fields_set:
            setattr(self, name, sizes[name])
        return self

    @property
    def has_size(self) -> bool:
        """Whether the sizes, but perhaps not the dropout rates, are those of `size`."""
        given = SIZES[self.size]
        return all(
            getattr(self, name) == given[name] for name in {*given} - {*DROPOUT_RATES}
        )

    def constructor_arguments(self) -> dict:
        """Returns the keyword arguments of `Transformer`, except `vocabulary_size`."""
        arguments = self.model_dump(exclude={*_SHORT_FORMS, "variations"})
        # Like `Transformer.get_config`, keep only fields that differ from the paper.
        changes = self.variations and self.variations.changes()
        return {**arguments, "variations": changes or None}


# Models can exchange weights if all arguments except the dropout rates match.
MODEL_ARGUMENTS = tuple(DEFAULTS)
DROPOUT_RATES = ("dropout", "attention_dropout")
ARCHITECTURE = tuple(name for name in MODEL_ARGUMENTS if name not in DROPOUT_RATES)


class TokenizerSettings(Section):
    """Settings of the vocabulary.

    If `shared` is true, source and target have one vocabulary, learned from both. If it
    is false, each side has its own vocabulary and embeddings, and `vocabulary_size` and
    `model` apply to the target.
    """

    kind: Literal["bpe", "word_piece", "marian", "fairseq"] = "bpe"
    vocabulary_size: Annotated[int, Field(gt=4)] = 37_000
    shared: bool = True
    source_vocabulary_size: Annotated[int, Field(gt=4)] | None = None
    split_digits: bool = False
    model: FilePath | None = None
    source_model: FilePath | None = None
    bpe_dropout: Fraction = 0.0
    num_segmentations: PositiveInt = 1

    @model_validator(mode="after")
    def _check_dropout(self):
        if self.model and self.kind != "bpe":
            raise ValueError("model is a SentencePiece model, so kind must be bpe")
        if self.bpe_dropout and self.kind != "bpe":
            raise ValueError(
                "bpe_dropout skips merges of byte pairs, so kind must be bpe"
            )
        if self.num_segmentations > 1 and not self.bpe_dropout:
            raise ValueError("num_segmentations above 1 requires bpe_dropout above 0")
        return self

    @model_validator(mode="after")
    def _check_sides(self):
        if self.shared:
            for name in ("source_vocabulary_size", "source_model"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} requires shared: false")
            return self
        if self.kind in ("marian", "fairseq"):
            raise ValueError("shared: false requires kind: bpe or kind: word_piece")
        if (self.model is None) != (self.source_model is None):
            raise ValueError(
                "with shared: false, set both model (for the target) and source_model, "
                "or neither"
            )
        if self.source_vocabulary_size is None:
            self.source_vocabulary_size = self.vocabulary_size
        return self


# Settings of a stage that may be null although `training` has a value.
_NULLABLE = ("consistency", "learning_rate")


class ConsistencySettings(Section):
    """R-Drop or SimCut: two passes over each batch (see `training.Consistency`)."""

    kind: Literal["rdrop", "simcut"] = "simcut"  # divergence to add to the loss
    weight: NonNegativeFloat = 3.0  # factor on the divergence, alpha in the papers
    cutoff: Fraction = 0.05  # fraction of embeddings that simcut zeroes out

    @model_validator(mode="after")
    def _check_cutoff(self):
        default = type(self).model_fields["cutoff"].default
        if self.kind == "rdrop" and self.cutoff != default:
            raise ValueError(f"cutoff={self.cutoff} requires kind: simcut")
        return self


_Projections = Annotated[list[Literal[PROJECTIONS]], Field(min_length=1)]


class LoraSettings(Section):
    """Low-rank adapters, the only weights that are trained (see `add_adapters`)."""

    rank: PositiveInt = 8  # rank of the product that is added to a kernel
    alpha: PositiveFloat = 16.0  # factor on the product is alpha / rank
    # projections with adapters: those of attention, and inner and outer of feed-forward
    layers: _Projections = Field(["query", "value"])


class StageSettings(Section):
    """A stage of training.

    Missing settings are taken from `training`, or from `data.train.bidirectional`,
    `tokenizer.bpe_dropout` and `tokenizer.num_segmentations`. `consistency: null` and
    `learning_rate: null` override the values in `training`.

    Each stage has its own schedule, whose steps count from the beginning of the stage.
    """

    steps: PositiveInt  # training steps of the stage
    bidirectional: bool | None = None  # whether to train on swapped pairs, too
    bpe_dropout: Fraction | None = None  # tokenizer.bpe_dropout of the stage
    # tokenizer.num_segmentations of the stage
    num_segmentations: PositiveInt | None = None
    batch_tokens: PositiveInt | None = None
    schedule: Literal["noam", "inverse_sqrt"] | None = None
    learning_rate: PositiveFloat | None = None
    learning_rate_scale: PositiveFloat | None = None
    warmup_steps: PositiveInt | None = None
    cooldown_steps: NonNegativeInt | None = None
    label_smoothing: Fraction | None = None
    token_dropout: Fraction | None = None
    consistency: ConsistencySettings | None = None

    @model_serializer(mode="wrap")
    def _serialize_given(self, serialize):
        """Omits missing settings, since a null can differ from a missing setting."""
        values = serialize(self)
        return {name: values[name] for name in values if name in self.model_fields_set}

    def given(self):
        """Returns the settings that the stage does not take from elsewhere."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {n: v for n, v in values.items() if v is not None or n in _NULLABLE}


class TextOptions(NamedTuple):
    """Settings for reading the training text in a stage."""

    bidirectional: bool
    bpe_dropout: float
    num_segmentations: int
    is_default: bool = True  # whether they are those of the recipe

    @property
    def cache_name(self):
        """Name of the cache folder of the text."""
        if self.is_default:
            return "train"
        directions = "both" if self.bidirectional else "forward"
        return f"train-{directions}-{self.bpe_dropout:g}x{self.num_segmentations}"


class Stage(NamedTuple):
    """A stage of a run with all of its settings."""

    start: int  # number of steps before the stage
    end: int  # number of its last step, counted from the start of the run
    settings: Any  # its `TrainingSettings`; `steps` is the length of the stage
    text_options: TextOptions


BestMetric = Literal["bleu", "chrf", "f1", "perplexity"]
# The setting that turns on each metric. Perplexity is always measured.
_MEASUREMENTS = {
    "bleu": "validation_bleu",
    "chrf": "validation_bleu",
    "f1": "validation_f1",
}


class EarlyStopping(Section):
    """Condition for stopping before `steps`."""

    patience: PositiveInt = 5  # validations without improvement before training stops


class TrainingSettings(Section):
    """Training settings (section 5 of the paper)."""

    initial_model: Text | None = None
    lora: LoraSettings | None = None
    steps: PositiveInt = 100_000
    batch_tokens: PositiveInt = 25_000
    schedule: Literal["noam", "inverse_sqrt"] = "noam"
    learning_rate: PositiveFloat | None = None
    learning_rate_scale: PositiveFloat = 1.0
    warmup_steps: PositiveInt = 4_000
    cooldown_steps: NonNegativeInt = 0
    label_smoothing: Fraction = 0.1
    guided_alignment_weight: NonNegativeFloat = 0.0
    token_dropout: Fraction = 0.0
    consistency: ConsistencySettings | None = None
    optimizer: Literal["adam", "muon"] = "adam"
    weight_decay: NonNegativeFloat = 0.0
    beta_1: Fraction = 0.9
    beta_2: Fraction = 0.98
    epsilon: PositiveFloat = 1e-9
    ema_momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    gradient_accumulation_steps: PositiveInt = 1
    parallel_parts: Annotated[int, Field(ge=1, le=1_000)] = 1
    global_clipnorm: PositiveFloat | None = None
    skip_above_gradient_norm: PositiveFloat | None = None
    on_nonfinite: Literal["skip", "stop"] = "skip"
    max_consecutive_skips: PositiveInt = 10
    mixed_precision: Literal["bfloat16", "float16", "bfloat16_matmul"] | None = None
    jit_compile: Literal["auto", True, False] = "auto"
    # minutes between checkpoints; null: 10, unless checkpoint_steps is set
    checkpoint_minutes: PositiveFloat | None = None
    checkpoint_steps: PositiveInt | None = None
    keep_checkpoints: PositiveInt = 5
    average_checkpoints: PositiveInt = 5
    validation_steps: PositiveInt = 1_000
    validation_bleu: bool = True
    validation_f1: bool = True
    validation_sentences: PositiveInt | None = None
    validation_beam_size: _BeamSize = 1
    best_metric: BestMetric | None = None
    early_stopping: EarlyStopping | None = None
    seed: Seed = 1
    deterministic: bool = False
    stages: Annotated[list[StageSettings], Field(min_length=1)] | None = None

    @property
    def initial_path(self) -> str | None:
        """`initial_model`, with the seed in place of `{seed}`."""
        return self.initial_model and self.initial_model.replace(
            "{seed}", str(self.seed)
        )

    @model_validator(mode="before")
    @classmethod
    def _sum_stage_steps(cls, values: Any):
        if not isinstance(values, dict) or "steps" in values:
            return values
        stages = values.get("stages")
        # Invalid stages are reported later, with their keys.
        with contextlib.suppress(TypeError, KeyError):
            steps = sum(stage["steps"] for stage in stages)
            values = {**values, "steps": steps} if steps else values
        return values

    @model_validator(mode="after")
    def _check_consistency(self):
        total = sum(stage.steps for stage in self.stages or ())
        if self.stages and self.steps != total:
            raise ValueError(
                "steps must be omitted or equal the sum of the stages' steps. "
                f"Received: steps={self.steps}, sum={total}"
            )
        if self.stages and self.early_stopping:
            raise ValueError(
                "stages and early_stopping cannot be used together. Set only one"
            )
        if self.lora and not self.initial_model:
            raise ValueError("lora requires initial_model, whose weights stay frozen")
        if self.checkpoint_minutes and self.checkpoint_steps:
            raise ValueError(
                "checkpoint_minutes and checkpoint_steps cannot be used together. "
                "Set only one"
            )
        if not self.checkpoint_minutes and not self.checkpoint_steps:
            self.checkpoint_minutes = 10.0
        if self.ema_momentum and "average_checkpoints" not in self.model_fields_set:
            self.average_checkpoints = 1
        if self.ema_momentum and self.average_checkpoints > 1:
            raise ValueError(
                "ema_momentum and average_checkpoints both average the weights. "
                "Set average_checkpoints to 1. Received: "
                f"average_checkpoints={self.average_checkpoints}"
            )
        if self.average_checkpoints > self.keep_checkpoints:
            raise ValueError(
                "average_checkpoints must not exceed keep_checkpoints. Received: "
                f"average_checkpoints={self.average_checkpoints}, "
                f"keep_checkpoints={self.keep_checkpoints}"
            )
        if self.cooldown_steps > self.steps:
            raise ValueError(
                "cooldown_steps must not exceed steps. Received: "
                f"cooldown_steps={self.cooldown_steps}, steps={self.steps}"
            )
        # Each stage is checked with its own settings, which may set the rate.
        has_rate = self.learning_rate is not None or self.stages
        if self.schedule == "inverse_sqrt" and not has_rate:
            raise ValueError("schedule: inverse_sqrt requires learning_rate")
        if self.schedule == "noam" and self.learning_rate is not None:
            raise ValueError(
                "schedule: noam computes the learning rate. Set learning_rate_scale "
                "instead of learning_rate, or use schedule: inverse_sqrt"
            )
        if self.schedule == "inverse_sqrt" and self.learning_rate_scale != 1.0:
            raise ValueError("learning_rate_scale requires schedule: noam")
        return self


class EvaluationSettings(Section):
    """sacreBLEU settings for validation, and for commands that compute BLEU or chrF."""

    tokenize: Literal[BLEU_TOKENIZERS] = "13a"
    lowercase: bool = False


class DecodingSettings(Section):
    """Settings of beam search; see `decoding.BeamSearch`."""

    beam_size: _BeamSize = 4
    length_penalty: Annotated[float, Field(ge=0)] = 0.6
    length_penalty_kind: Literal["gnmt", "power"] = "gnmt"
    patience: PositiveFloat | None = None
    extra_length: Annotated[int, Field(ge=0, lt=2**30)] = 50
    segmentation: Literal["auto", "sentence", "line"] = "auto"
    case: Literal["auto", "keep"] = "auto"
    no_repeat_ngram_size: NonNegativeInt = 0
    repetition_penalty: PositiveFloat = 1.0
    coverage_penalty: NonNegativeFloat = 0.0
    min_length: NonNegativeInt = 0
    max_length_ratio: PositiveFloat | None = None


class Recipe(Section):
    """The settings of an experiment. All keys outside `data` have defaults.

    Its attributes are the sections `data`, `tokenizer`, `model`, `training`,
    `evaluation` and `decoding`, with the keys of recipes as attributes, such as
    `recipe.training.steps`.
    """

    data: Union[*DATA_KINDS.values()] = Field(discriminator="kind")
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    model: ModelSettings = Field(default_factory=lambda: ModelSettings(size="base"))
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    decoding: DecodingSettings = Field(default_factory=DecodingSettings)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any):
        if not isinstance(values, dict):
            return values
        values = dict(values)
        data = values.get("data")
        if isinstance(data, dict):
            kind = data_kind(data)
            # The template of `files` has keys that a mixture lacks.
            if kind == "mixed":
                data = {name: data[name] for name in data if data[name] is not None}
            values["data"] = {**data, "kind": kind}
        return values

    @property
    def stages(self) -> list[Stage]:
        """The stages of the run, one if there is no `training.stages`."""
        training, tokenizer = self.training, self.tokenizer
        train = getattr(self.data, "train", None)
        bidirectional = getattr(train, "bidirectional", False)
        default = TextOptions(
            bidirectional, tokenizer.bpe_dropout, tokenizer.num_segmentations
        )
        if not training.stages:
            return [Stage(0, training.steps, training, default)]
        stages, start = [], 0
        shared = {**training.model_dump(), "stages": None}
        for number, stage in enumerate(training.stages, 1):
            given = stage.given()
            text_options = TextOptions(
                given.pop("bidirectional", default.bidirectional),
                given.pop("bpe_dropout", default.bpe_dropout),
                given.pop("num_segmentations", default.num_segmentations),
            )
            # Without dropout, all segmentations of a text are equal, so one is enough.
            if not text_options.bpe_dropout:
                text_options = text_options._replace(num_segmentations=1)
            text_options = text_options._replace(is_default=text_options == default)
            try:
                settings = TrainingSettings.model_validate({**shared, **given})
            except ValueError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"training.stages: stage {number}: {reason}") from None
            stages.append(Stage(start, start + stage.steps, settings, text_options))
            start += stage.steps
        return stages

    @model_validator(mode="after")
    def _check_sections(self):
        self._set_short_forms()
        self._check_metric()
        self._check_kind()
        stages = self.stages
        self._check_stages(stages)
        self._check_directions(stages)
        self._set_source_vocabulary()
        return self

    def _set_short_forms(self):
        """Sets the `variations` for which `model` has short forms."""
        model, tokenizer, changes = self.model, self.tokenizer, {}
        if model.timescales is not None:
            changes["timescales"] = model.timescales
        if model.start is not None:
            is_imported = tokenizer.kind == "marian"
            start_id = tokenizer.vocabulary_size - 1 if is_imported else _START_ID
            changes["zero_start_id"] = start_id if model.start == "zeros" else None
        if changes:
            variations = model.variations or VariationSettings()
            model.variations = variations.model_copy(update=changes)

    def _check_metric(self):
        training, kind = self.training, self.data.kind
        metric = training.best_metric
        for name in ("early_stopping", "best_metric"):
            is_given = getattr(training, name) is not None
            if is_given and getattr(self.data, "validation", True) is None:
                raise ValueError(f"training.{name} requires data.validation")
        if metric in (("bleu", "chrf") if kind == "trees" else ("f1",)):
            raise ValueError(
                f"validation metric {metric} is not available with data.kind: {kind}"
            )
        needed = _MEASUREMENTS.get(metric)
        if needed and not getattr(training, needed):
            raise ValueError(f"training.best_metric: {metric} requires {needed}: true")

    def _check_kind(self):
        kind, tokenizer = self.data.kind, self.tokenizer
        if kind == "trees" and tokenizer.kind != "bpe":
            raise ValueError("data.kind: trees requires tokenizer.kind: bpe")
        if kind == "trees" and not tokenizer.shared:
            raise ValueError(
                "data.kind: trees requires tokenizer.shared: true, since one "
                "vocabulary contains words and symbols"
            )
        corpora = self.data.train if kind == "mixed" else [self.data]
        has_alignments = any(
            getattr(getattr(each, "train", None), "alignments", None)
            for each in corpora
        )
        is_guided = kind == "trees" or has_alignments
        if self.training.guided_alignment_weight and not is_guided:
            raise ValueError(
                "training.guided_alignment_weight requires data.kind: trees or "
                f"data.train.alignments. Received: data.kind: {kind}"
            )
        if has_alignments and not self.training.guided_alignment_weight:
            raise ValueError(
                "data.train.alignments requires training.guided_alignment_weight above "
                "0, such as 0.1"
            )
        changes_texts = {
            "data.train.alignments": has_alignments,
            "data.train.tag": any(getattr(each, "tag", None) for each in corpora),
            "data.noise": getattr(self.data, "noise", None),
        }
        wrong = next(filter(changes_texts.get, changes_texts), None)
        if wrong and tokenizer.kind == "fairseq":
            raise ValueError(
                f"{wrong} is not available with tokenizer.kind: fairseq, whose texts "
                "begin with a language"
            )
        if tokenizer.model and kind in ("records", "trees"):
            raise ValueError(f"tokenizer.model is not available with data.kind: {kind}")
        if kind == "records" and tokenizer.bpe_dropout:
            raise ValueError(
                "data.kind: records requires tokenizer.bpe_dropout: 0, since the text "
                "is already encoded"
            )

    def _check_stages(self, stages):
        for number, stage in enumerate(stages, 1):
            if stage.text_options.bpe_dropout and self.tokenizer.kind != "bpe":
                raise ValueError(
                    f"training.stages: stage {number}: bpe_dropout skips merges of "
                    "byte pairs, so tokenizer.kind must be bpe"
                )
            if self.data.kind == "mixed" and stage.text_options.bidirectional:
                raise ValueError(
                    f"training.stages: stage {number}: bidirectional: true must be "
                    "set in an entry of data.train"
                )
            is_fixed = self.data.kind in ("records", "trees")
            if is_fixed and not stage.text_options.is_default:
                raise ValueError(
                    f"training.stages: stage {number}: with data.kind: "
                    f"{self.data.kind}, a stage cannot change bidirectional, "
                    "bpe_dropout or num_segmentations"
                )

    def _check_directions(self, stages):
        is_bidirectional = [stage.text_options.bidirectional for stage in stages]
        for corpus in self.data.train if self.data.kind == "mixed" else ():
            train = getattr(corpus, "train", None)
            is_bidirectional.append(getattr(train, "bidirectional", False))
        if not any(is_bidirectional):
            return
        if not self.tokenizer.shared:
            raise ValueError(
                "bidirectional: true requires tokenizer.shared: true, since each "
                "language is both source and target"
            )
        if self.tokenizer.kind == "fairseq":
            raise ValueError(
                "bidirectional: true is not available with tokenizer.kind: fairseq, "
                "whose languages differ between source and target"
            )
        noise = getattr(self.data, "noise", None)
        if noise and noise.join:
            raise ValueError(
                "data.noise.join is not available with bidirectional: true, which "
                "would join pairs of opposite directions"
            )

    def _set_source_vocabulary(self):
        """Sets the number of rows of a separate source embedding matrix."""
        tokenizer, variations = self.tokenizer, self.model.variations
        size = variations and variations.source_vocabulary_size
        key = "vocabulary_size" if tokenizer.shared else "source_vocabulary_size"
        expected = getattr(tokenizer, key)
        if size not in (None, expected):
            raise ValueError(
                "model.variations.source_vocabulary_size must be null or equal "
                f"tokenizer.{key}. Received: {size} and {expected}."
            )
        if tokenizer.shared:
            return
        self.model.variations = variations or VariationSettings()
        self.model.variations.source_vocabulary_size = expected

    def validation_metric(self) -> str:
        """Returns the metric that decides which model is best, also for early stopping.

        If the settings name no metric, F1 decides for trees and BLEU for other kinds of
        data. If that metric is not measured, perplexity decides.
        """
        metric = "f1" if self.data.kind == "trees" else "bleu"
        is_measured = getattr(self.training, _MEASUREMENTS[metric])
        default = metric if is_measured else "perplexity"
        return self.training.best_metric or default
