"""Models on disk: run folders, `.keras` files, and presets."""

from keras_transformer._imports import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    ("checkpoints", "info", "load", "preset"),
)
