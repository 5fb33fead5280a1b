"""Estimates of a model's memory in training."""

from keras_transformer.arguments import count_parameters
from keras_transformer.recipes.stages import stages_of

# Bytes per weight for the weight, its gradient, and two slots of Adam, in float32.
_WEIGHT_BYTES = 16
_AVERAGE_BYTES = 4  # per weight, for the moving average of the weights
# Activations that a training step stores per layer and per token of one side: the
# number of vectors of width d_model, of vectors of width d_ff, and of rows of attention
# scores per head. They come from measurements with benchmarks/training_memory.py.
_VECTORS = 25
_HIDDEN_VECTORS = 4
_SCORE_ROWS = 3
# Memory of TensorFlow, its compiled graphs and the program.
_BASE_BYTES = 1_100 << 20


def training_memory(
    sizes, vocabulary_size, batch_tokens, max_length, num_parts=1, has_average=False
):
    """Estimates the bytes that training takes, in float32.

    Args:
        sizes: Mapping of arguments of `Transformer`.
        vocabulary_size: Number of subwords.
        batch_tokens: Tokens per side of a batch, counted twice with R-Drop or SimCut.
        max_length: Tokens per side of the longest pair.
        num_parts: Number of parts of a batch that are processed one after another.
        has_average: Whether training keeps a moving average of the weights.
    """
    floats = (
        _VECTORS * sizes["d_model"]
        + _HIDDEN_VECTORS * sizes["d_ff"]
        + _SCORE_ROWS * sizes["num_heads"] * max_length
    )
    weight_bytes = _WEIGHT_BYTES + has_average * _AVERAGE_BYTES
    weights = weight_bytes * count_parameters(
        {**sizes, "vocabulary_size": vocabulary_size}
    )
    tokens = batch_tokens / num_parts
    return int(_BASE_BYTES + weights + 4 * tokens * sizes["num_layers"] * floats)


def recipe_memory(recipe, num_devices=1):
    """Estimates the bytes that training a recipe takes on each device.

    Args:
        recipe: A `Recipe`.
        num_devices: Number of devices that share a batch.
    """
    stages = (stage.settings for stage in stages_of(recipe))
    # Consistency computes each batch twice.
    batches = (each.batch_tokens * (2 if each.consistency else 1) for each in stages)
    return training_memory(
        recipe.model.constructor_arguments(),
        recipe.tokenizer.vocabulary_size,
        max(batches) / num_devices,
        recipe.data.max_length,
        recipe.training.gradient_accumulation_steps,
        has_average=recipe.training.ema_momentum is not None,
    )
