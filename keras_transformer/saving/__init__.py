"""Models on disk: run folders, `.keras` files, presets, and SavedModels."""

from keras_transformer._imports import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    ("checkpoints", "info", "load", "open", "preset", "saved_model"),
)
