"""Choice of values for recipe keys that are `auto`, given the text and the machine.

The values follow docs/how-to/train-on-your-data.md. A resumed run keeps the values of
its first start, because they are in its `config.yaml`.

The size of the text is estimated without TensorFlow. Files that cannot be read are
reported by `check_files`, not here.
"""

import math
import os
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeInt

from keras_transformer.errors import DataError, RecipeError
from keras_transformer.pipelines.lines import opened_lines
from keras_transformer.pipelines.sources.text_files import PAIR_LINES, TextFiles
from keras_transformer.recipes.schema import Recipe
from keras_transformer.untrusted import MAX_LOG_BYTES, read_json

# Maximum fraction of the memory that the estimate of `recipe_memory` may take.
_MEMORY_SHARE = 0.6
_MAX_ACCUMULATION = 64
# Bytes of text per subword, for estimates.
TOKEN_BYTES = 4
# Bytes of text to read from each file. The sizes of larger files are extrapolated.
_SAMPLE_BYTES = 1 << 23


class TextSize(NamedTuple):
    """Size of a parallel corpus, extrapolated from its beginning."""

    pairs: int
    bytes: int  # of the longer side
    characters: int  # distinct characters in the samples of both sides
    words: int  # distinct words in the samples of both sides


# Size to assume if the text cannot be measured.
_UNKNOWN_TEXT = TextSize(pairs=30_000, bytes=2_000_000, characters=100, words=30_000)


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

# Length of training that starts with the weights of a model.
_FINE_TUNING_EPOCHS = 10
# With fewer pairs, fine-tuning usually gives better translations than a new model.
_MIN_PAIRS = 10_000

# Kinds of data for which settings can be chosen. Text that `measure_training_text` does
# not measure counts as `_UNKNOWN_TEXT`.
TEXT_KINDS = ("files", "tsv", "csv", "jsonl", "tmx", "hf", "records", "mixed")

# The functions below choose the value of the key that their name ends with. Their
# arguments are a `Recipe` with the values chosen so far, the `TextSize` and the
# `Machine`. They return the value and the reason for it.


def _size(recipe, text, machine):
    if text.pairs <= 50_000:
        return "tiny", "for up to 50,000 pairs"
    if text.pairs <= 500_000:
        return "small", "for up to 500,000 pairs"
    if not machine.gpus:
        return "small", "without a GPU; base would take weeks"
    return "base", "for more than 500,000 pairs"


def _dropout(recipe, text, machine):
    return recipe.model.dropout, f"as in the size {recipe.model.size}"


def _vocabulary_size(recipe, text, machine):
    pairs, reason = text.pairs, f"for {text.pairs:,} pairs"
    limits = ((20_000, 4_000), (50_000, 8_000), (500_000, 16_000))
    size = next((size for max_pairs, size in limits if pairs <= max_pairs), 37_000)
    # 260 ids are special tokens or single bytes. WordPiece needs two ids per character,
    # so three per character leave room for words.
    min_size = 260 + 3 * text.characters
    # If there are two vocabularies, about half of the characters and words belong to
    # each.
    sides = 1 if recipe.tokenizer.shared else 2
    max_size = 260 + (text.characters + text.words) // sides
    if size < min_size:
        size, reason = min_size, f"{text.characters:,} distinct characters"
    if size > max_size:
        size, reason = max_size, f"only {text.words:,} distinct words"
    return size, reason


def _batch_tokens(recipe, text, machine):
    size = _size_class(recipe).batch_tokens
    epoch_tokens = _epoch_tokens(recipe, text)
    reason = f"for {_size_label(recipe)}"
    # If batches of this size give fewer than ten updates per epoch, choose the largest
    # power of two that gives ten. Every sentence must fit into a batch.
    if epoch_tokens // 10 < size:
        size = 1 << max(epoch_tokens // 10, 1).bit_length() - 1
        reason = f"for {text.pairs:,} pairs"
    return max(1024, recipe.data.max_length + 1, size), reason


def _gradient_accumulation_steps(recipe, text, machine):
    from keras_transformer.machine import format_bytes, recipe_memory

    memory = machine.gpus[0].memory if machine.gpus else machine.memory
    if memory is None:
        return 1, "the memory is unknown"

    def needed(parts):
        return recipe_memory(recipe, max(1, len(machine.gpus)), parts)

    parts = 1
    while parts < _MAX_ACCUMULATION and needed(parts) > _MEMORY_SHARE * memory:
        parts *= 2
    part = "" if parts == 1 else "a part of "
    sizes = f"{format_bytes(needed(parts))} of {format_bytes(memory)}"
    reason = f"{part}a batch takes {sizes}"
    if needed(parts) > _MEMORY_SHARE * memory:
        reason += ", which may not be enough memory"
    return parts, reason


def _parallel_parts(recipe, text, machine):
    if machine.gpus:
        return 1, "on a GPU"
    is_whole = recipe.training.gradient_accumulation_steps == 1
    if is_whole and 2 <= machine.cores <= 4:
        return 2, f"on {machine.cores} CPU cores"
    return 1, f"on {machine.cores} CPU core(s)"


def _steps(recipe, text, machine):
    size = _size_class(recipe)
    epoch = max(1, _epoch_tokens(recipe, text) // recipe.training.batch_tokens)
    steps = min(max(size.epochs * epoch, size.min_steps), size.max_steps)
    if recipe.training.initial_model:
        # Little text has few steps, so it needs a better estimate of its tokens, and
        # rounding down would cost a few epochs.
        tokens = _subwords(recipe, text, recipe.stages[0].text_options)
        needed = _FINE_TUNING_EPOCHS * tokens / recipe.training.batch_tokens
        steps = min(100 * math.ceil(needed / 100), steps)
    steps = round(steps, -2)
    training = recipe.training.model_copy(update={"steps": steps})
    recipe = recipe.model_copy(update={"training": training})
    return steps, f"about {describe_epochs(recipe, text)}"


def _warmup_steps(recipe, text, machine):
    # Each stage has its own warm-up, which must fit into the shortest one.
    steps = min(stage.settings.steps for stage in recipe.stages)
    warmup_steps = min(_size_class(recipe).warmup_steps, steps // 10)
    return max(1, warmup_steps), f"of {steps:,} steps"


def _learning_rate(recipe, text, machine):
    if recipe.training.schedule == "noam":
        return None, "the schedule `noam` computes the rate"
    rate = _size_class(recipe).learning_rate
    if recipe.training.initial_model:
        return rate / 10, f"a tenth of that of a new model of {_size_label(recipe)}"
    return rate, f"for {_size_label(recipe)}"


def _checkpoint_steps(recipe, text, machine):
    # With an interval in minutes, the averaged steps would depend on the speed of the
    # machine, and short runs would average nothing.
    steps = recipe.training.steps
    return min(max(50, steps // 100), 1_500, steps), f"of {steps:,} steps"


def _validation_steps(recipe, text, machine):
    steps = recipe.training.steps
    return min(max(50, steps // 20), 5_000, steps), f"of {steps:,} steps"


def _mixed_precision(recipe, text, machine):
    if not machine.gpus:
        return None, "without a GPU"
    capability = machine.gpus[0].compute_capability
    if capability is None or capability < 7:
        return None, "the GPU has no fast 16-bit matrix products"
    precision = "float16" if capability < 8 else "bfloat16"
    return precision, f"compute capability {capability}"


def _size_label(recipe):
    """Returns the name of the size, or the width if other sizes differ from it."""
    model = recipe.model
    return f"the size {model.size}" if model.has_size else f"d_model {model.d_model}"


def _size_class(recipe):
    """Returns the `SizeDefaults` for the width of the model."""
    width = recipe.model.d_model
    return _TINY if width <= 128 else _SMALL if width <= 256 else _BASE


def _epoch_tokens(recipe, text):
    train = getattr(recipe.data, "train", None)
    copies = 2 if getattr(train, "bidirectional", False) else 1
    return max(1, copies * text.bytes // TOKEN_BYTES)


def _subwords(recipe, text, options):
    # An epoch in both directions has each pair twice.
    copies = 2 if options.bidirectional else 1
    return copies * text.bytes / token_bytes(recipe.tokenizer.vocabulary_size)


def describe_epochs(recipe, text) -> str:
    """Estimates the number of epochs that a recipe trains on a text of a `TextSize`."""
    epochs = 0
    for stage in recipe.stages:
        tokens = _subwords(recipe, text, stage.text_options)
        epochs += stage.settings.steps * stage.settings.batch_tokens / max(1, tokens)
    shown = f"{epochs:,.0f}" if epochs >= 9.5 else f"{epochs:.1f}".removesuffix(".0")
    return f"{shown} epoch{'' if shown == '1' else 's'}"


def token_bytes(vocabulary_size) -> float:
    """Estimates the bytes of text per subword of a vocabulary.

    The line fits BPE of 4,000 to 37,000 subwords on debates, captions and everyday
    sentences in English, French and German, within 10%.
    """
    return max(TOKEN_BYTES, 3.8 + 0.45 * math.log2(vocabulary_size / 4000))


# The keys that may be `auto`, in the order of choice, since later ones depend on
# earlier ones.
_CHOICES = {
    "model.size": _size,
    "model.dropout": _dropout,
    "tokenizer.vocabulary_size": _vocabulary_size,
    "training.batch_tokens": _batch_tokens,
    "training.gradient_accumulation_steps": _gradient_accumulation_steps,
    "training.parallel_parts": _parallel_parts,
    "training.steps": _steps,
    "training.warmup_steps": _warmup_steps,
    "training.learning_rate": _learning_rate,
    "training.checkpoint_steps": _checkpoint_steps,
    "training.validation_steps": _validation_steps,
    "training.mixed_precision": _mixed_precision,
}
AUTOMATIC_KEYS = tuple(_CHOICES)


def resolve(values, stored=None, report=None):
    """Returns the `Recipe` of a mapping, with a value in place of each `auto`.

    The values are those of `stored`, the sections of the run's recipe, if it is given.
    Changes `values`. May raise pydantic's `ValidationError`.
    """
    keys = [key for key in AUTOMATIC_KEYS if _pop_auto(values, key)]
    if "training.steps" in keys and values["training"].get("stages"):
        keys.remove("training.steps")  # the default is the sum of the stages' steps
    training = values.get("training")
    if "training.learning_rate" in keys and training.get("schedule") == "inverse_sqrt":
        training["learning_rate"] = _BASE.learning_rate  # until it is chosen
    recipe = Recipe.model_validate(values)
    if not keys:
        return recipe
    if recipe.data.kind not in TEXT_KINDS:
        raise RecipeError(
            f"{keys[0]}: auto requires text, such as data.kind: files. "
            f"Received: data.kind: {recipe.data.kind}"
        )
    if stored is None:
        return _choose(values, keys, recipe, report)
    for section, name in (key.split(".") for key in keys):
        values[section][name] = stored[section].get(name)
    return Recipe.model_validate(values)


def _pop_auto(values, key):
    """Removes a key whose value is `auto`. Returns whether it was."""
    section, name = key.split(".")
    section = values.get(section)
    is_auto = isinstance(section, dict) and section.get(name) == "auto"
    return is_auto and bool(section.pop(name))


def _choose(values, keys, recipe, report):
    from keras_transformer import machine as machines

    machine, measured = machines.find_machine(), measure_training_text(recipe.data)
    text = measured or _UNKNOWN_TEXT
    if report is not None:
        pairs = f"{text.pairs:,} pairs"
        if measured is None:
            pairs = f"text of unknown size, taken as {pairs},"
        report(f"settings for {pairs} on {machine}:")
    if os.environ.get("TF_CONFIG"):
        # TF_CONFIG describes several workers. They must choose the same values, but may
        # differ in memory.
        machine = machine._replace(memory=None, gpus=machine.gpus[:1])
    for key in keys:
        section, name = key.split(".")
        value, reason = _CHOICES[key](recipe, text, machine)
        values[section][name] = value
        recipe = Recipe.model_validate(values)
        is_used = key != "training.validation_steps" or recipe.data.validation
        if report is not None and is_used:
            report(f"  {key}: {'null' if value is None else value} ({reason})")
    is_little = measured is not None and text.pairs < _MIN_PAIRS
    if report is not None and is_little and not recipe.training.initial_model:
        report(
            f"only {text.pairs:,} pairs: fine-tuning a model, such as a packaged one "
            "(train --from MODEL), usually gives better translations than a new one"
        )
    return recipe


def check_files(data) -> None:
    """Checks the text files of a recipe's section `data` without loading TensorFlow.

    Line-aligned files must have equal numbers of lines. Of other files, the first pair
    is read. Text that would have to be downloaded is not checked.

    Raises:
        DataError: If a file cannot be read or is no UTF-8 text, or if two files differ
            in their numbers of lines.
    """
    if data.kind == "mixed":
        for each in data.train:
            check_files(each)
        return
    for split in ("train", "validation"):
        files = getattr(data, split, None)
        if files and data.kind in PAIR_LINES:
            next(iter(PAIR_LINES[data.kind](files, data.source, data.target)))
        elif hasattr(files, "source"):
            alignments = getattr(files, "alignments", None)
            pairs = TextFiles(files.source, files.target, alignments)
            next(iter(pairs))
            pairs.alignments()  # compares the numbers of lines


class _Shard(BaseModel):
    name: str
    num_pairs: NonNegativeInt


class _Records(BaseModel):
    """The part of `records.json` that contains the sizes."""

    shards: list[_Shard]


def measure_training_text(data) -> TextSize | None:
    """Estimates the size of the training text, given the section `data` of a recipe.

    Returns `None` for text that cannot be read, or that would have to be downloaded.
    """
    try:
        if data.kind == "mixed":
            sizes = [measure_training_text(each) for each in data.train]
            return None if None in sizes else mixture_size(data, sizes)
        if data.kind == "records":
            return _measure_records(data.train)
        if data.kind == "files":
            return _with_noise(data, _measure(_texts_of_files(data.train)))
        if data.kind in PAIR_LINES:
            return _with_noise(data, _measure(_texts_of_tables(data)))
    except (OSError, ValueError):  # a file or one of its lines is invalid
        pass
    return None


def mixture_size(data, sizes) -> TextSize:
    """Returns the `TextSize` of an epoch, given a section `data` and its corpora's."""
    pairs = num_bytes = 0
    for corpus, size in zip(data.train, sizes, strict=True):
        train = corpus.train if corpus.kind == "files" else None
        copies = 2 if getattr(train, "bidirectional", False) else 1
        pairs += round(copies * corpus.weight * size.pairs)
        num_bytes += round(copies * corpus.weight * size.bytes)
    # The corpora share characters and words.
    characters = max(size.characters for size in sizes)
    words = max(size.words for size in sizes)
    return _with_noise(data, TextSize(pairs, num_bytes, characters, words))


def _with_noise(data, size):
    """Adds the noisy copies of an epoch to a `TextSize`."""
    noise = getattr(data, "noise", None)
    factor = 1 + (sum(noise.model_dump().values()) if noise else 0)
    pairs, num_bytes = round(factor * size.pairs), round(factor * size.bytes)
    return size._replace(pairs=pairs, bytes=num_bytes)


def _measure(samples):
    """Returns the `TextSize` of samples `(side, texts, size of the file / sample)`."""
    pairs, sizes, characters, words = [0, 0], [0, 0], set(), set()
    for side, texts, factor in samples:
        # A text that is not UTF-8 is `None`.
        text = "".join(f"{each or ''}\n" for each in texts)
        num_bytes = len(text.encode("utf-8", "replace"))
        pairs[side] += round(len(texts) * factor)
        sizes[side] += round(num_bytes * factor)
        characters.update(text)
        words.update(text.split())
    return TextSize(pairs[0], max(sizes), len(characters), len(words))


def _texts_of_files(train):
    for side, paths in enumerate((train.source, train.target)):
        for path in paths:
            yield side, *_sample(path)


def _texts_of_tables(data):
    source = PAIR_LINES[data.kind](data.train, data.source, data.target)
    for path in source.paths:
        lines, factor = _sample(path, source.is_xml)
        pairs = []
        try:
            for pair in source.parse(lines, path):
                pairs.append(pair)
        except DataError:
            # Of XML, the sample is not complete.
            if not source.is_xml or not pairs:
                raise
        for side, texts in enumerate(zip(*pairs, strict=True)):
            yield side, texts, factor


def _sample(path, is_xml=False):
    """Returns a file's first lines, and its size relative to theirs."""
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    lines, num_bytes, position = [], 0, 0
    with open(path, "rb") as file:
        for line in opened_lines(file, path, errors="drop", is_xml=is_xml):
            if file.tell() != position:  # `line` is the first one of a chunk
                if num_bytes >= _SAMPLE_BYTES:
                    return lines, os.path.getsize(path) / position
                position = file.tell()  # counts the bytes of a compressed file
            lines.append(line)
            num_bytes += len((line or "").encode()) + 1
    return lines, 1.0


def _measure_records(folder):
    """Returns the `TextSize` of a folder of encoded pairs.

    The numbers of characters and words are unknown. The number of pairs stands in for
    the number of words, so that too few words do not limit the vocabulary size.
    """
    path = os.path.join(folder, "records.json")
    shards = read_json(path, _Records, MAX_LOG_BYTES).shards
    names = [os.path.basename(shard.name) for shard in shards]
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    # Records take about two bytes per id. Both sides' ids together take about as many
    # bytes as the text of one side.
    num_pairs = sum(shard.num_pairs for shard in shards)
    return TextSize(num_pairs, size, 0, num_pairs)
