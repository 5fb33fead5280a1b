"""What a recipe may say, with the defaults of the paper's section 5.

Types are strict: a number in quotes or a truth value where a count belongs is a
mistake, not something to convert.
"""

from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import BeforeValidator
from pydantic import ConfigDict
from pydantic import Field
from pydantic import NonNegativeFloat
from pydantic import NonNegativeInt
from pydantic import PositiveFloat
from pydantic import PositiveInt
from pydantic import model_validator

from keras_transformer.presets import PRESETS

Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
Paths = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
BLEU_TOKENIZERS = (
    *("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab"),
    *("flores101", "flores200", "spBLEU-1K"),
)


class Section(BaseModel):
    """A mapping of the recipe: unknown keys are errors, values are not converted."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class TextPair(Section):
    """Line-aligned text files of one split, plain or .gz."""

    source: Paths
    target: Paths

    @model_validator(mode="after")
    def _as_many_files(self):
        if len(self.source) != len(self.target):
            raise ValueError(
                "source and target must name as many files. Received: "
                f"{len(self.source)} source, {len(self.target)} target"
            )
        return self


class FilesData(Section):
    """Pairs of text files."""

    kind: Literal["files"] = "files"
    train: TextPair
    validation: TextPair | None = None
    test: TextPair | None = None
    max_length: PositiveInt = 256


class RecordsData(Section):
    """A folder of training pairs that `keras-transformer corpus prepare` wrote.

    The tokenizer is the folder's, whatever the recipe's section says.
    """

    kind: Literal["records"]
    train: Text
    validation: TextPair | None = None
    test: TextPair | None = None
    max_length: PositiveInt = 256


class TfdsData(Section):
    """A translation dataset of TensorFlow Datasets; splits in TFDS's notation."""

    kind: Literal["tfds"]
    name: Text
    source_language: Text
    target_language: Text
    train: Text = "train"
    validation: Text | None = "validation"
    test: Text | None = "test"
    data_dir: Text | None = None
    max_length: PositiveInt = 256


class PhrasesData(Section):
    """The embedded phrases: CLDR's dates, numbers, units and names of two locales.

    `size` phrases in all; `held_out` of them for validation, as many for the test.
    """

    kind: Literal["phrases"]
    source_locale: Text = "en"
    target_locale: Text = "de"
    size: PositiveInt = 31_500
    held_out: PositiveInt = 500
    seed: Seed = 1
    max_length: PositiveInt = 256


class TreePaths(Section):
    """Files or folders of bracketed trees, plain or .gz."""

    trees: Paths


class WeightedTreePaths(TreePaths):
    """The same with the number of times that an epoch holds each path's trees."""

    weights: list[PositiveFloat] | None = None

    @model_validator(mode="after")
    def _as_many_weights(self):
        if self.weights is not None and len(self.weights) != len(self.trees):
            raise ValueError(
                "weights must be as many as trees has paths. Received: "
                f"{len(self.weights)} weights, {len(self.trees)} paths"
            )
        return self


class TreesData(Section):
    """Constituency trees (section 6.3): words in, brackets out.

    `words` is what stands for a word among the brackets, see `linearize`.
    """

    kind: Literal["trees"]
    train: WeightedTreePaths
    validation: TreePaths | None = None
    test: TreePaths | None = None
    words: Literal["joined", "numbers", "tags", "XX"] = "tags"
    max_length: PositiveInt = 256


DATA_KINDS = {
    "files": FilesData,
    "tfds": TfdsData,
    "phrases": PhrasesData,
    "trees": TreesData,
    "records": RecordsData,
}


class TokenizerSettings(Section):
    """The vocabulary, learnt from the training text of both sides.

    `shared` is always true: the model ties both embeddings (section 3.4).
    """

    kind: Literal["bpe", "word_piece"] = "bpe"
    vocabulary_size: Annotated[int, Field(gt=4)] = 37_000
    shared: Literal[True] = True
    split_digits: bool = False
    dropout: Fraction = 0.0
    segmentations: PositiveInt = 1

    @model_validator(mode="after")
    def _dropout_is_of_byte_pairs(self):
        if self.dropout and self.kind != "bpe":
            raise ValueError(
                "dropout leaves out merges of byte pairs: kind must be bpe"
            )
        if self.segmentations > 1 and not self.dropout:
            raise ValueError("more than one of segmentations needs a dropout above 0")
        return self


class ModelSettings(Section):
    """A preset and any argument of `Transformer` that differs from it.

    The fields hold the resolved values: the preset's where none was given.
    """

    preset: str = "base"
    num_layers: PositiveInt = 6
    d_model: PositiveInt = 512
    d_ff: PositiveInt = 2048
    num_heads: PositiveInt = 8
    key_dim: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: PositiveInt | None = None
    normalization: Literal["post", "pre"] = "post"
    activation: Text = "relu"
    attention_window: PositiveInt | None = None
    score: Literal["scaled_dot", "dot", "additive"] = "scaled_dot"

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: Any):
        if not isinstance(values, dict):
            return values
        preset = values.get("preset", "base")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise ValueError(
                f"preset must be one of {', '.join(PRESETS)}. Received: {preset!r}"
            )
        return {**PRESETS[preset], **values}

    @model_validator(mode="after")
    def _consistent(self):
        if self.positions == "learned" and self.max_length is None:
            raise ValueError("positions learned needs a max_length")
        if None in (self.key_dim, self.value_dim) and self.d_model % self.num_heads:
            raise ValueError(
                "num_heads must divide d_model unless key_dim and value_dim are given. "
                f"Received: num_heads={self.num_heads}, d_model={self.d_model}"
            )
        return self

    def constructor_arguments(self) -> dict:
        """The keyword arguments of `Transformer`, without `vocabulary_size`."""
        return self.model_dump(exclude={"preset"})


# The arguments of `Transformer` that a recipe sets. All but the dropout rates must be
# equal for weights to have the same meaning.
MODEL_ARGUMENTS = tuple(name for name in ModelSettings.model_fields if name != "preset")
DROPOUT_RATES = ("dropout", "attention_dropout")
ARCHITECTURE = tuple(name for name in MODEL_ARGUMENTS if name not in DROPOUT_RATES)


class EarlyStopping(Section):
    """Stop after `patience` validations without a better `metric`."""

    metric: Literal["bleu", "f1", "perplexity"] = "bleu"
    patience: PositiveInt = 5


class TrainingSettings(Section):
    """Section 5 of the paper; `batch_tokens` counts one side of a global batch.

    Of the validation text, `validation_sentences` at equal distances are decoded.
    `initial_model` is a run's folder or a `.keras` file, whose weights and vocabulary
    training begins with. `parallel_parts` of a batch are computed side by side on the
    cores of a CPU. `guided_alignment` weighs a loss that teaches a head of attention
    which word of a tree is next.
    """

    initial_model: Text | None = None
    steps: PositiveInt = 100_000
    batch_tokens: PositiveInt = 25_000
    schedule: Literal["paper", "inverse_sqrt"] = "paper"
    learning_rate: PositiveFloat | None = None
    learning_rate_scale: PositiveFloat = 1.0
    warmup_steps: PositiveInt = 4_000
    cooldown_steps: NonNegativeInt = 0
    label_smoothing: Fraction = 0.1
    guided_alignment: NonNegativeFloat = 0.0
    beta_1: Fraction = 0.9
    beta_2: Fraction = 0.98
    epsilon: PositiveFloat = 1e-9
    gradient_accumulation_steps: PositiveInt = 1
    parallel_parts: PositiveInt = 1
    clip_norm: PositiveFloat | None = None
    max_gradient_norm: PositiveFloat | None = None
    on_nan: Literal["skip", "stop"] = "skip"
    max_skipped: PositiveInt = 10
    mixed_precision: Literal["bfloat16", "float16", "auto_bfloat16"] | None = None
    jit_compile: Literal["auto", True, False] = "auto"
    checkpoint_minutes: PositiveFloat | None = None
    checkpoint_steps: PositiveInt | None = None
    keep: PositiveInt = 5
    average: PositiveInt = 5
    validation_steps: PositiveInt = 1_000
    validation_bleu: bool = True
    validation_f1: bool = True
    validation_sentences: PositiveInt | None = None
    validation_beam_size: PositiveInt = 1
    early_stopping: EarlyStopping | None = None
    seed: Seed = 1
    deterministic: bool = False

    @model_validator(mode="after")
    def _consistent(self):
        if self.checkpoint_minutes and self.checkpoint_steps:
            raise ValueError(
                "give one of checkpoint_minutes and checkpoint_steps, not both"
            )
        if not self.checkpoint_minutes and not self.checkpoint_steps:
            self.checkpoint_minutes = 10.0
        if self.average > self.keep:
            raise ValueError(
                "average must not exceed keep, the number of checkpoints kept. "
                f"Received: average={self.average}, keep={self.keep}"
            )
        if self.cooldown_steps > self.steps:
            raise ValueError(
                "cooldown_steps must not exceed steps. Received: "
                f"cooldown_steps={self.cooldown_steps}, steps={self.steps}"
            )
        if self.schedule == "inverse_sqrt" and self.learning_rate is None:
            raise ValueError("schedule inverse_sqrt needs a learning_rate")
        if self.schedule == "paper" and self.learning_rate is not None:
            raise ValueError(
                "schedule paper computes its own rate: give learning_rate_scale "
                "instead of learning_rate, or schedule inverse_sqrt"
            )
        if self.schedule == "inverse_sqrt" and self.learning_rate_scale != 1.0:
            raise ValueError("learning_rate_scale belongs to schedule paper")
        stopping = self.early_stopping
        for metric in ("bleu", "f1"):
            is_measured = getattr(self, f"validation_{metric}")
            if stopping and stopping.metric == metric and not is_measured:
                raise ValueError(
                    f"early_stopping on {metric} needs validation_{metric}: true"
                )
        return self


class EvaluationSettings(Section):
    """How sacreBLEU scores the decoded validation text."""

    tokenize: Literal[BLEU_TOKENIZERS] = "13a"
    lowercase: bool = False


class DecodingSettings(Section):
    """Beam search; `extra_length` is what the output may exceed the input by."""

    beam_size: PositiveInt = 4
    length_penalty: Annotated[float, Field(ge=0)] = 0.6
    length_penalty_kind: Literal["gnmt", "power"] = "gnmt"
    patience: PositiveFloat | None = None
    extra_length: NonNegativeInt = 50


class Recipe(Section):
    """One experiment. Every key has a default but the data's."""

    data: FilesData | RecordsData | TfdsData | PhrasesData | TreesData = Field(
        discriminator="kind"
    )
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    model: ModelSettings = Field(default_factory=lambda: ModelSettings(preset="base"))
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    decoding: DecodingSettings = Field(default_factory=DecodingSettings)

    @model_validator(mode="before")
    @classmethod
    def _files_by_default(cls, values: Any):
        data = values.get("data") if isinstance(values, dict) else None
        if isinstance(data, dict) and "kind" not in data:
            return {**values, "data": {"kind": "files", **data}}
        return values

    @model_validator(mode="after")
    def _validation_is_there(self):
        if (
            self.training.early_stopping
            and getattr(self.data, "validation", True) is None
        ):
            raise ValueError("training.early_stopping needs data.validation")
        return self

    @model_validator(mode="after")
    def _kinds_have_their_own(self):
        trees = self.data.kind == "trees"
        stopping = self.training.early_stopping
        if stopping and stopping.metric == ("bleu" if trees else "f1"):
            raise ValueError(
                f"training.early_stopping.metric {stopping.metric} is not measured on "
                f"data.kind {self.data.kind}"
            )
        if trees and self.tokenizer.kind != "bpe":
            raise ValueError("data.kind trees needs tokenizer.kind bpe")
        if not trees and self.training.guided_alignment:
            raise ValueError(
                "training.guided_alignment needs data.kind trees: they tell where a "
                f"target belongs. Received: {self.data.kind}"
            )
        if self.data.kind == "records" and self.tokenizer.dropout:
            raise ValueError(
                "data.kind records has its ids already: tokenizer.dropout must be 0"
            )
        return self

    def validation_metric(self) -> str:
        """What decides which model is best."""
        training = self.training
        if training.early_stopping:
            return training.early_stopping.metric
        metric = "f1" if self.data.kind == "trees" else "bleu"
        return metric if getattr(training, f"validation_{metric}") else "perplexity"
