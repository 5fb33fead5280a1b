"""Models on disk: run folders, `.keras` files, and presets."""

from keras_transformer._imports import lazy_names

_NAMES = {
    "ModelInfo": "info",
    "Preset": "preset",
    "TaskSettings": "preset",
    "load_preset": "preset",
    "model_info": "info",
    "save_preset": "preset",
}

__all__ = list(_NAMES)

__getattr__, __dir__ = lazy_names(
    __name__,
    ("checkpoints", "hub", "info", "keras_file", "load", "names", "preset"),
    _NAMES,
)
