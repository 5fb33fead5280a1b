"""Estimates of the sizes, memory and time of training, for `train --dry-run`."""

import itertools
import time
from types import SimpleNamespace

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.machine import (
    find_machine,
    format_bytes,
    free_memory,
    recipe_memory,
)
from keras_transformer.pipelines import Tokenizer
from keras_transformer.pipelines.encoded_corpus import (
    count_dropped,
    dropped_report,
    new_dropped,
)
from keras_transformer.recipes.automatic import (
    describe_epochs,
    measure_training_text,
    mixture_size,
    token_bytes,
)
from keras_transformer.runs.build import build_training_model
from keras_transformer.runs.corpora import check_lengths, load_pairs
from keras_transformer.saving.load import check_model
from keras_transformer.training import automatic_bfloat16, configure_threads

# Tokens per side in the batches used to measure the speed, without and with a GPU.
_MEASURED_TOKENS = 4096
_MEASURED_TOKENS_ON_GPU = 25_000
_MEASURED_STEPS = 3
# Bytes of text per second from which a vocabulary is learned, and that are encoded, on
# two CPU cores, and the maximum number of texts to learn from.
_LEARNED_BYTES, _ENCODED_BYTES = 8e6, 2.6e6
_LEARNING_SECONDS = 4  # for the merges of a small text
_LEARNED_TEXTS = 1_000_000
_OFFSET_BYTES = 8  # per pair and side
# Number of pairs at the beginning of the text that are read and checked.
_CHECKED_PAIRS = 10_000
# Assumed number of tokens per sentence if the size of the text is unknown.
_LENGTH = 32


def plan_training(recipe):
    """Estimates the memory, disk space and time that training a recipe takes.

    The function reads the beginning of the text as training does, but writes nothing.
    It measures the speed with a few training steps on random ids. The time does not
    include validation. The preparation of the text is that on two CPU cores.

    Args:
        recipe: A `Recipe`.

    Returns:
        Mapping of names, such as `"memory"`, to text to print.

    Raises:
        DataError: If the text cannot be read, or its first pairs cannot be used.
        ModelError: If the recipe's model settings are invalid.
        RecipeError: If the text can be longer than the learned positions.
    """
    check_model(recipe)
    check_lengths(recipe)
    settings, tokenizer = recipe.training, recipe.tokenizer
    machine = find_machine()
    configure_threads(settings.parallel_parts, machine.cores)
    first = _FirstPairs()
    text = _text_size(recipe.data, first)
    model = _training_model(recipe)
    parameters = model.transformer.count_params()
    with automatic_bfloat16(settings.mixed_precision == "bfloat16_matmul"):
        rate = _tokens_per_second(model, recipe, text, bool(machine.gpus))
    num_devices = max(1, len(machine.gpus))
    seconds = _computed_tokens(recipe.stages) / (rate * num_devices)
    vocabulary = f"{tokenizer.vocabulary_size:,}"
    if not tokenizer.shared:
        source_size = tokenizer.source_vocabulary_size
        vocabulary = f"{source_size:,} source and {vocabulary} target"
    # For each parameter, a checkpoint stores the weight, two Adam slots and, with
    # `ema_momentum`, the average, in 4 bytes each. The best and the final model store
    # only the weight.
    checkpoint_bytes = 12 if settings.ema_momentum is None else 16
    disk = (checkpoint_bytes * settings.keep_checkpoints + 8) * parameters
    data = f"not measured (data.kind: {recipe.data.kind})"
    stored = measure_training_text(_without_copies(recipe.data))
    preparation = "not measured"
    if stored:
        texts = {each.text_options for each in recipe.stages}
        copies = sum(
            each.num_segmentations * (2 if each.bidirectional else 1) for each in texts
        )
        id_bytes = 2 if tokenizer.vocabulary_size <= 1 << 16 else 4
        tokens = stored.bytes / token_bytes(tokenizer.vocabulary_size)
        disk += round(copies * 2 * (id_bytes * tokens + _OFFSET_BYTES * stored.pairs))
        share = min(1, _LEARNED_TEXTS / max(1, 2 * stored.pairs))
        learning = _LEARNING_SECONDS + 2 * share * stored.bytes / _LEARNED_BYTES
        encoding = copies * 2 * stored.bytes / _ENCODED_BYTES
        preparation = f"about {_format_duration(encoding)} to encode the text"
        if not settings.initial_model:
            vocabulary_time = _format_duration(learning)
            preparation += f", after {vocabulary_time} for the vocabulary"
    if text:
        tokens = int(text.bytes / token_bytes(tokenizer.vocabulary_size))
        pairs = f"{text.pairs:,} pairs"
        if recipe.data.kind == "mixed":
            pairs += f" per epoch of {len(recipe.data.train)} corpora"
        if getattr(recipe.data, "noise", None):
            pairs += ", with noisy copies"
        data = f"{pairs}, about {tokens:,} tokens per side"
    return {
        "machine": str(machine),
        "data": data,
        **first.describe_dropped(),
        "vocabulary": f"{vocabulary} subwords ({tokenizer.kind})",
        "model": f"{parameters:,} parameters ({_describe_sizes(recipe.model)})",
        "batch": _describe_batch(settings),
        "steps": _describe_steps(recipe, text),
        "memory": _describe_memory(recipe_memory(recipe, num_devices), machine),
        "disk": f"about {format_bytes(disk)} for checkpoints, models and encoded text",
        "speed": f"{rate:,.0f} tokens/s per device, measured with random ids",
        "preparation": preparation,
        "time": f"about {_format_duration(seconds)}, without validation",
    }


class _FirstPairs:
    """Counts of the pairs at the beginning of each training text."""

    def __init__(self):
        self._num_read = 0
        self._dropped = new_dropped()

    def count(self, pairs):
        """Reads the first pairs and returns the share that training keeps.

        Lengths are not checked, because they depend on the vocabulary.
        """
        num_read = num_dropped = 0
        for number, pair in enumerate(itertools.islice(pairs, _CHECKED_PAIRS), 1):
            num_read += 1
            is_good = [text is not None and bool(text.strip()) for text in pair]
            if all(is_good):
                continue
            num_dropped += 1
            reason = "invalid_utf8" if None in pair else "empty"
            count_dropped(self._dropped, reason, pairs, number, is_good[0])
        self._num_read += num_read
        if num_dropped == num_read:
            raise DataError(
                f"no training examples in the first {num_read:,} pairs: "
                f"{dropped_report(self._dropped)}"
            )
        return 1 - num_dropped / num_read

    def describe_dropped(self):
        """Returns a line of the plan as a mapping, empty if no pairs were read."""
        if not self._num_read:
            return {}
        report = dropped_report(self._dropped) or "none"
        checked = f"of the first {self._num_read:,} pairs, without checking lengths"
        return {"dropped": f"{checked}: {report}"}


def _text_size(data, first):
    """Returns the `TextSize` of the training text, or `None` if it is not measured.

    As in training, pairs with an empty side do not count. Their number is extrapolated
    from the first pairs, which `first` counts. Datasets that would have to be
    downloaded are not read.
    """
    if data.kind == "mixed":
        sizes = [_text_size(each, first) for each in data.train]
        return None if None in sizes else mixture_size(data, sizes)
    if data.kind == "tfds":
        return None
    if data.kind == "hf":
        data = data.model_copy(update={"streaming": True})
    splits = load_pairs(data)
    next(iter(splits.get("validation", ())), None)
    pairs, size = splits["train"], measure_training_text(data)
    tokenizer = pairs.tokenizer()
    if tokenizer is not None:
        next(pairs.id_chunks(tokenizer))
        return size
    share = first.count(pairs)
    return size and size._replace(pairs=round(share * size.pairs))


def _without_copies(data):
    """Returns a section `data` whose text is as large as the encoded one."""
    changes = {"noise": None} if getattr(data, "noise", None) else {}
    if data.kind == "mixed":
        corpora = (each.model_copy(update={"weight": 1.0}) for each in data.train)
        changes["train"] = [*corpora]
    return data.model_copy(update=changes)


def _training_model(recipe):
    """Builds the training model with a stand-in for the tokenizer of the run."""
    tokenizer = SimpleNamespace(
        vocabulary_size=recipe.tokenizer.vocabulary_size,
        num_outputs=None,
        num_symbols=lambda: None,
        pad_id=Tokenizer.pad_id,
    )
    # Random ids have no alignments, and only one micro-batch is timed.
    changes = {"guided_alignment_weight": 0.0, "gradient_accumulation_steps": 1}
    settings = recipe.training.model_copy(update=changes)
    return build_training_model(
        recipe.model_copy(update={"training": settings}), tokenizer
    )


def _tokens_per_second(model, recipe, text, has_gpu):
    """Measures the training speed, in tokens per side per second."""
    settings, max_length = recipe.training, recipe.data.max_length
    length = min(_LENGTH, max_length)
    target_size = recipe.tokenizer.vocabulary_size
    if text and text.pairs:
        tokens = text.bytes / token_bytes(target_size)
        length = int(np.clip(tokens / text.pairs, 4, max_length))
    limit = _MEASURED_TOKENS_ON_GPU if has_gpu else _MEASURED_TOKENS
    tokens = min(settings.batch_tokens // settings.gradient_accumulation_steps, limit)
    shape = max(settings.parallel_parts, tokens // length), length
    rng = np.random.default_rng(0)
    source_size = recipe.tokenizer.source_vocabulary_size or target_size
    # Ids below 4 are special.
    source = rng.integers(4, source_size, shape, np.int32)
    target = rng.integers(4, target_size, shape, np.int32)
    inputs, times = {"source_ids": source, "target_ids": target}, []
    for _ in range(1 + _MEASURED_STEPS):
        model.train_on_batch(inputs, target)  # waits for the device
        times.append(time.perf_counter())
    # The first step compiles, so time runs from its end.
    return source.size / float(np.median(np.diff(times)))


def _describe_sizes(model):
    name = f"{model.size}: " if model.has_size else ""
    layers, heads = (
        f"{count} {noun}{'s' * (count > 1)}"
        for count, noun in ((model.num_layers, "layer"), (model.num_heads, "head"))
    )
    return f"{name}{layers}, d_model {model.d_model}, d_ff {model.d_ff}, {heads}"


def _describe_batch(settings):
    numbers = {
        "sequential": settings.gradient_accumulation_steps,
        "parallel": settings.parallel_parts,
    }
    parts = [f"{number} {kind}" for kind, number in numbers.items() if number > 1]
    split = f", split into {' x '.join(parts)} parts" if parts else ""
    return f"{settings.batch_tokens:,} tokens per side{split}"


def _describe_steps(recipe, text):
    steps, stages = f"{recipe.training.steps:,}", recipe.stages
    if recipe.training.stages:
        steps += f" (stages: {' + '.join(f'{s.settings.steps:,}' for s in stages)})"
    if not text or not text.bytes:
        return steps
    return f"{steps}, about {describe_epochs(recipe, text)}"


def _computed_tokens(stages):
    """Returns the tokens per side of a run, weighted by their computing time.

    A stage with consistency computes each batch twice. The weights are relative to the
    first stage, with which the speed is measured.
    """

    settings = [stage.settings for stage in stages]
    passes = [2 if each.consistency else 1 for each in settings]
    tokens = [each.steps * each.batch_tokens for each in settings]
    return np.dot(passes, tokens) / passes[0]


def _describe_memory(memory, machine):
    text = f"about {format_bytes(memory)}"
    if machine.gpus:
        total = machine.gpus[0].memory
        text += f" of {format_bytes(total)}" if total else ""
        return f"{text} per GPU"
    total, free = format_bytes(machine.memory), format_bytes(free_memory())
    return f"{text} of {total} ({free} free)"


def _format_duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
