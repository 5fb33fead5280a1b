"""Registration of the package's classes with Keras without loading their modules.

Keras deserializes only registered classes. Each class is represented by a placeholder
until its module is imported. The import registers the class itself.
"""

import importlib

from keras_transformer._imports import after_import

_PACKAGE = "keras_transformer"

# The classes and functions that each module registers.
CLASSES = {
    "layers.add_norm": ("AddNorm",),
    "layers.decoder": ("Decoder",),
    "layers.decoder_layer": ("DecoderLayer",),
    "layers.dense": ("Dense",),
    "layers.encoder": ("Encoder",),
    "layers.encoder_layer": ("EncoderLayer",),
    "layers.feed_forward": ("FeedForward",),
    "layers.multi_head_attention": ("MultiHeadAttention",),
    "layers.positional_encoding": ("PositionalEncoding",),
    "layers.restricted_attention": ("RestrictedSelfAttention",),
    "layers.token_embedding": ("TokenEmbedding",),
    "numerics.activations": ("quick_gelu",),
    "numerics.dropout": ("Dropout",),
    "numerics.normalization": ("LayerNormalization",),
    "training.fused_adam": ("FusedAdam",),
    "training.losses": ("SmoothedCrossEntropy",),
    "training.metrics": ("Perplexity", "TokenAccuracy"),
    "training.schedules": (
        "InverseSquareRoot",
        "LinearCooldown",
        "PaperSchedule",
        "StagedSchedule",
    ),
    "transformer": ("Transformer",),
}


class _Unloaded:
    """Placeholder that imports its class when Keras deserializes an object."""

    def __init__(self, module, name):
        self._module = module
        self._name = name

    def from_config(self, config, *args, **kwargs):
        # Keras has already looked up this placeholder. The import registers the class
        # for later lookups, and this call is passed on to the class.
        module = importlib.import_module(f"{_PACKAGE}.{self._module}")
        return getattr(module, self._name).from_config(config, *args, **kwargs)


def _register(keras):
    # Keras calls `from_config` only on classes and returns registered functions as they
    # are, so a placeholder cannot stand in for `quick_gelu`.
    importlib.import_module(f"{_PACKAGE}.numerics.activations")
    registered = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            registered.setdefault(f"{_PACKAGE}>{name}", _Unloaded(module, name))


def register_classes():
    """Registers placeholders for all classes as soon as Keras is imported."""
    after_import("keras", _register)
