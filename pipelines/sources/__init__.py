"""Sources of sentence pairs: files, datasets, records, and generated phrases."""

from keras_transformer.pipelines.sources.base import Pairs
from keras_transformer.pipelines.sources.base import as_pairs
from keras_transformer.pipelines.sources.directions import BothDirections
from keras_transformer.pipelines.sources.hugging_face import HuggingFacePairs
from keras_transformer.pipelines.sources.records import RecordFolder
from keras_transformer.pipelines.sources.tables import JsonLines
from keras_transformer.pipelines.sources.tables import TsvFiles
from keras_transformer.pipelines.sources.text_files import TextFiles
from keras_transformer.pipelines.sources.tfds import TfdsPairs

__all__ = [
    "BothDirections",
    "HuggingFacePairs",
    "JsonLines",
    "Pairs",
    "RecordFolder",
    "TextFiles",
    "TfdsPairs",
    "TsvFiles",
    "as_pairs",
]
