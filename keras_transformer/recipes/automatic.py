"""Choice of values for recipe keys that are `auto`, given the text and the machine.

The values follow docs/how-to/train-on-your-data.md. A resumed run keeps the values of
its first start, because they are in its `config.yaml`.
"""

import os
from typing import NamedTuple

from keras_transformer.errors import RecipeError
from keras_transformer.presets import PRESETS, change_preset
from keras_transformer.recipes.data_sections import DATA_KINDS
from keras_transformer.recipes.machine import format_bytes
from keras_transformer.recipes.memory import training_memory
from keras_transformer.recipes.training_text import TextSize

AUTO = "auto"
# Keys that may be `auto`, in the order of choice: later ones depend on earlier ones.
AUTOMATIC_KEYS = (
    "model.preset",
    "model.dropout",
    "tokenizer.vocabulary_size",
    "training.batch_tokens",
    "training.gradient_accumulation_steps",
    "training.parallel_parts",
    "training.steps",
    "training.warmup_steps",
    "training.learning_rate",
    "training.checkpoint_steps",
    "training.validation_steps",
    "training.mixed_precision",
)
# Maximum fraction of the memory that the estimate of `training_memory` may take.
_MEMORY_SHARE = 0.6
_MAX_ACCUMULATION = 64
# Bytes of text per subword, for estimates.
TOKEN_BYTES = 4
# Size to assume if the text cannot be measured. If it cannot be read, training reports
# the reason later.
UNKNOWN_TEXT = TextSize(pairs=30_000, bytes=2_000_000, characters=100, words=30_000)


class SizeDefaults(NamedTuple):
    """Training settings for models of one size."""

    batch_tokens: int
    max_steps: int
    min_steps: int
    epochs: int  # length of training, within the limits max_steps and min_steps
    learning_rate: float  # peak of inverse_sqrt
    warmup_steps: int


_TINY = SizeDefaults(4096, 10_000, 1_000, 100, 0.005, 1_000)
_SMALL = SizeDefaults(8192, 30_000, 3_000, 60, 0.002, 2_000)
# The paper's values, and the peak of its schedule: (512 * 4000)^-0.5 for d_model 512.
_BASE = SizeDefaults(25_000, 100_000, 10_000, 40, 0.0007, 4_000)


class Choice(NamedTuple):
    """A value that was chosen for a key, and why."""

    key: str
    value: object
    reason: str

    def __str__(self):
        value = "null" if self.value is None else self.value
        return f"{self.key}: {value} ({self.reason})"


# Kinds of data for which settings can be chosen. Text that `measure_training_text` does
# not measure counts as `UNKNOWN_TEXT`.
TEXT_KINDS = ("files", "tsv", "csv", "jsonl", "hf", "records")


def automatic_keys(values: dict) -> list[str]:
    """Returns the dotted keys of a recipe whose value is `auto`.

    Args:
        values: Sections by name.

    Raises:
        RecipeError: If there are such keys and `data.kind` is valid, but not one of
            `TEXT_KINDS`.
    """
    found = [key for key in AUTOMATIC_KEYS if _get(values, key) == AUTO]
    data = values.get("data")
    kind = data.get("kind", "files") if isinstance(data, dict) else "files"
    # The check of the whole recipe reports an unknown kind.
    is_known = isinstance(kind, str) and kind in DATA_KINDS
    if found and is_known and kind not in TEXT_KINDS:
        raise RecipeError(
            f"{found[0]}: auto requires text, such as data.kind: files. "
            f"Received: data.kind: {kind}"
        )
    return found


def choose(values: dict, keys, text, machine) -> list[Choice]:
    """Chooses values and stores them in a recipe's mapping.

    Args:
        values: Sections by name. Changed in place.
        keys: Dotted keys (see `automatic_keys`).
        text: `TextSize`, or `None` if the size is unknown.
        machine: `Machine` that trains the model.

    Returns:
        A `Choice` for each key.
    """
    if os.environ.get("TF_CONFIG"):
        # TF_CONFIG describes several workers. They must choose the same values, but may
        # differ in memory.
        machine = machine._replace(memory=None, gpus=machine.gpus[:1])
    plan = _Plan(values, text or UNKNOWN_TEXT, machine)
    choices = []
    for key in AUTOMATIC_KEYS:
        if key in keys:
            section, name = key.split(".")
            choice = Choice(key, *getattr(plan, name)())
            values[section][name] = choice.value
            choices.append(choice)
    return choices


class _Plan:
    """Chooses values. The method for the key `section.name` is `name`.

    These methods return `(value, reason)`. The recipe is not validated yet, so the
    values of other keys are used only if they have the right type.
    """

    def __init__(self, values, text, machine):
        self.values = values
        self.text = text
        self.machine = machine

    def preset(self):
        if self.text.pairs <= 50_000:
            return "tiny", "for up to 50,000 pairs"
        if self.text.pairs <= 500_000:
            return "small", "for up to 500,000 pairs"
        if not self.machine.gpus:
            return "small", "without a GPU; base would take weeks"
        return "base", "for more than 500,000 pairs"

    def dropout(self):
        preset = self._preset()
        return PRESETS[preset]["dropout"], f"as in the preset {preset}"

    def vocabulary_size(self):
        pairs, reason = self.text.pairs, f"for {self.text.pairs:,} pairs"
        limits = ((20_000, 4_000), (50_000, 8_000), (500_000, 16_000))
        size = next((size for max_pairs, size in limits if pairs <= max_pairs), 37_000)
        # 260 ids are special tokens or single bytes. WordPiece needs two ids per
        # character, so three per character leave room for words.
        min_size = 260 + 3 * self.text.characters
        max_size = 260 + self.text.characters + self.text.words
        if self._has_separate_vocabularies():
            # About half of the characters and words belong to each side.
            max_size = 260 + (self.text.characters + self.text.words) // 2
        if size < min_size:
            size, reason = min_size, f"{self.text.characters:,} distinct characters"
        if size > max_size:
            size, reason = max_size, f"only {self.text.words:,} distinct words"
        return size, reason

    def batch_tokens(self):
        size = self._size_class().batch_tokens
        # If the preset's batches give fewer than ten updates per epoch, choose the
        # largest power of two that gives ten. Every sentence must fit into a batch.
        min_tokens = max(1024, self._max_length() + 1)
        fitting = self._epoch_tokens() // 10
        if fitting < size:
            rounded = 1 << max(fitting, 1).bit_length() - 1
            return max(
                min_tokens, rounded
            ), f"for {self._epoch_tokens():,} tokens per epoch"
        return max(min_tokens, size), f"for the preset {self._preset()}"

    def gradient_accumulation_steps(self):
        memory = self._memory()
        if memory is None:
            return 1, "the memory is unknown"
        parts = 1
        while (
            parts < _MAX_ACCUMULATION
            and self._training_bytes(parts) > _MEMORY_SHARE * memory
        ):
            parts *= 2
        needed = format_bytes(self._training_bytes(parts))
        part = "" if parts == 1 else "a part of "
        reason = f"{part}a batch takes {needed} of {format_bytes(memory)}"
        if self._training_bytes(parts) > _MEMORY_SHARE * memory:
            reason += ", which may not be enough memory"
        return parts, reason

    def parallel_parts(self):
        cores = self.machine.cores
        if self.machine.gpus:
            return 1, "on a GPU"
        if self._accumulation() > 1 or not 2 <= cores <= 4:
            return 1, f"on {cores} CPU core(s)"
        return 2, f"on {cores} CPU cores"

    def steps(self):
        size = self._size_class()
        tokens = _positive(self._get("training.batch_tokens"), size.batch_tokens)
        epoch = max(1, self._epoch_tokens() // tokens)
        steps = min(max(size.epochs * epoch, size.min_steps), size.max_steps)
        steps = round(steps, -2)
        return steps, f"about {max(1, round(steps / epoch)):,} epochs"

    def warmup_steps(self):
        # Each stage has its own warm-up, which must fit into the shortest one.
        steps = min(self._stage_steps())
        warmup_steps = min(self._size_class().warmup_steps, steps // 10)
        return max(1, warmup_steps), f"of {steps:,} steps"

    def learning_rate(self):
        if self._get("training.schedule") != "inverse_sqrt":
            return None, "the schedule `paper` computes the rate"
        return self._size_class().learning_rate, f"for the preset {self._preset()}"

    def checkpoint_steps(self):
        # With an interval in minutes, the averaged steps would depend on the speed of
        # the machine, and short runs would average nothing.
        steps = sum(self._stage_steps())
        return min(max(50, steps // 100), 1_500), f"of {steps:,} steps"

    def validation_steps(self):
        steps = sum(self._stage_steps())
        return max(1, min(5_000, steps // 20)), f"of {steps:,} steps"

    def mixed_precision(self):
        if not self.machine.gpus:
            return None, "without a GPU"
        capability = self.machine.gpus[0].compute_capability
        if capability is None or capability < 7:
            return None, "the GPU has no fast 16-bit matrix products"
        if capability < 8:
            return "float16", f"compute capability {capability}"
        return "bfloat16", f"compute capability {capability}"

    def _get(self, key):
        return _get(self.values, key)

    def _preset(self):
        preset = self._get("model.preset")
        return preset if isinstance(preset, str) and preset in PRESETS else "base"

    def _size_class(self):
        """Returns the `SizeDefaults` for the width of the model."""
        width = self._model_sizes()["d_model"]
        return _TINY if width <= 128 else _SMALL if width <= 256 else _BASE

    def _model_sizes(self):
        """Returns the arguments of the model that determine its size."""
        model = self.values.get("model")
        given = {
            name: value
            for name, value in (model.items() if isinstance(model, dict) else ())
            if name in PRESETS["base"] and _positive(value)
        }
        sizes = change_preset(self._preset(), given)
        head_dim = sizes["d_model"] // sizes["num_heads"] or 1
        return {"key_dim": head_dim, "value_dim": head_dim, **sizes}

    def _has_separate_vocabularies(self):
        return self._get("tokenizer.shared") is False

    def _epoch_tokens(self):
        data = self.values.get("data")
        train = data.get("train") if isinstance(data, dict) else None
        is_both = isinstance(train, dict) and train.get("directions") == "both"
        return max(1, (2 if is_both else 1) * self.text.bytes // TOKEN_BYTES)

    def _max_length(self):
        data = self.values.get("data")
        longest = data.get("max_length") if isinstance(data, dict) else None
        return _positive(longest, 256)

    def _stages(self):
        """Returns the settings of each stage as mappings, or those of `training`."""
        training, stages = self.values.get("training"), self._get("training.stages")
        training = training if isinstance(training, dict) else {}
        if not isinstance(stages, list):
            return [training]
        given = [
            {name: value for name, value in stage.items() if _is_given(name, value)}
            for stage in stages
            if isinstance(stage, dict)
        ]
        return [{**training, **stage} for stage in given] or [training]

    def _stage_steps(self):
        default = self._size_class().max_steps
        return [_positive(stage.get("steps"), default) for stage in self._stages()]

    def _computed_tokens(self):
        """Returns the tokens per side that the largest batch computes."""
        default = self._size_class().batch_tokens
        return max(
            _positive(stage.get("batch_tokens"), default)
            * (2 if stage.get("consistency") else 1)
            for stage in self._stages()
        )

    def _accumulation(self):
        return _positive(self._get("training.gradient_accumulation_steps"), 1)

    def _memory(self):
        """Returns the memory of the training device in bytes, or `None` if unknown."""
        if self.machine.gpus:
            return self.machine.gpus[0].memory
        return self.machine.memory

    def _training_bytes(self, parts):
        """Returns the bytes that training takes if a batch is split into `parts`."""
        vocabulary_size = _positive(self._get("tokenizer.vocabulary_size"), 37_000)
        sizes = self._model_sizes()
        if self._has_separate_vocabularies():
            given = self._get("tokenizer.source_vocabulary_size")
            source_size = _positive(given, vocabulary_size)
            sizes["variations"] = {"source_vocabulary_size": source_size}
        return training_memory(
            sizes,
            vocabulary_size,
            self._computed_tokens() / max(1, len(self.machine.gpus)),
            self._max_length(),
            parts,
            has_average=bool(self._get("training.ema_momentum")),
        )


def _is_given(name, value):
    """Returns whether a key of a stage replaces the one in `training`."""
    return value is not None or name == "consistency"


def _positive(value, default=None):
    """Returns `value` if it is a positive integer, else `default`."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and 0 < value < 2**40 else default


def _get(values, key):
    section, name = key.split(".")
    inner = values.get(section)
    return inner.get(name) if isinstance(inner, dict) else None
