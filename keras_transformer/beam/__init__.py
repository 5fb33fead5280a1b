"""Apache Beam pipelines for large corpora."""

from keras_transformer._imports import lazy_names

__getattr__, __dir__ = lazy_names(__name__, ("corpus", "inference"))
