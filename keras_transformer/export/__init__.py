"""Export to SavedModels and presets."""

from keras_transformer._imports import lazy_names

_NAMES = {
    "ExportedTranslator": "exported_translator",
    "export_preset": "preset",
    "export_saved_model": "saved_model",
    "export_translator": "saved_model",
    "model_card": "card",
    "run_metadata": "card",
}

__all__ = list(_NAMES)

__getattr__, __dir__ = lazy_names(__name__, (), _NAMES)
