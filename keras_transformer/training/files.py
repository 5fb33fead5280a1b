"""Files that appear whole or not at all; kept for those who import it from here."""

from keras_transformer.storage import replace_file

__all__ = ["replace_file"]
