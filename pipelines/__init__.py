"""Data pipelines from text to bucketed batches of ids.

Sources yield pairs of texts. `encode_corpus` tokenizes the pairs once, and
`training_dataset` and `evaluation_dataset` batch the ids.
"""

from keras_transformer.pipelines.batching import padding_fraction
from keras_transformer.pipelines.datasets import batch_indices
from keras_transformer.pipelines.datasets import epoch_rows
from keras_transformer.pipelines.datasets import evaluation_dataset
from keras_transformer.pipelines.datasets import steps_per_epoch
from keras_transformer.pipelines.datasets import training_dataset
from keras_transformer.pipelines.encoded_corpus import EncodedCorpus
from keras_transformer.pipelines.encoding import encode_corpus
from keras_transformer.pipelines.lines import decode_lines
from keras_transformer.pipelines.lines import read_lines
from keras_transformer.pipelines.sources.base import Pairs
from keras_transformer.pipelines.sources.base import as_pairs
from keras_transformer.pipelines.sources.directions import BothDirections
from keras_transformer.pipelines.sources.hugging_face import HuggingFacePairs
from keras_transformer.pipelines.sources.records import RecordFolder
from keras_transformer.pipelines.sources.tables import JsonLines
from keras_transformer.pipelines.sources.tables import TsvFiles
from keras_transformer.pipelines.sources.text_files import TextFiles
from keras_transformer.pipelines.sources.tfds import TfdsPairs
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.core_byte_pairs import (
    CoreOpsBytePairTokenizer,
)
from keras_transformer.pipelines.tokenizers.kerashub import KerasHubTokenizer
from keras_transformer.pipelines.tokenizers.registry import load_tokenizer
from keras_transformer.pipelines.tokenizers.registry import train_tokenizer
from keras_transformer.pipelines.tokenizers.separate import SeparateTokenizers

__all__ = [
    "BothDirections",
    "CoreOpsBytePairTokenizer",
    "EncodedCorpus",
    "HuggingFacePairs",
    "JsonLines",
    "KerasHubTokenizer",
    "Pairs",
    "RecordFolder",
    "SeparateTokenizers",
    "TextFiles",
    "TfdsPairs",
    "Tokenizer",
    "TsvFiles",
    "as_pairs",
    "batch_indices",
    "decode_lines",
    "encode_corpus",
    "epoch_rows",
    "evaluation_dataset",
    "load_tokenizer",
    "padding_fraction",
    "read_lines",
    "steps_per_epoch",
    "train_tokenizer",
    "training_dataset",
]
