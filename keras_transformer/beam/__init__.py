"""Apache Beam pipelines for large corpora."""

from keras_transformer._imports import lazy_names

_NAMES = {"encode_with_apache_beam": "corpus", "run_with_apache_beam": "inference"}

__getattr__, __dir__ = lazy_names(__name__, ("corpus", "inference"), _NAMES)
