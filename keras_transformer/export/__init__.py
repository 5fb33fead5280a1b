"""Models for those who serve: SavedModel."""

from keras_transformer.export.saved_model import export_saved_model

__all__ = ["export_saved_model"]
