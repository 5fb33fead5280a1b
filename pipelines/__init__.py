"""Text in, bucketed batches of ids out; no model.

Sources give pairs of texts, a tokenizer turns them into ids once
(`encode_corpus`), and `training_dataset` and `evaluation_dataset` batch those.
"""

from .batching import padding_waste
from .core_byte_pairs import CoreBytePairs
from .datasets import batch_indices
from .datasets import epoch_rows
from .datasets import evaluation_dataset
from .datasets import steps_per_epoch
from .datasets import training_dataset
from .encoding import EncodedCorpus
from .encoding import encode_corpus
from .errors import DataError
from .lines import decode_lines
from .lines import read_lines
from .records import RecordFolder
from .sources import TextFiles
from .tfds_pairs import TfdsPairs
from .tokenizer_base import Tokenizer
from .tokenizers import load_tokenizer
from .tokenizers import train_tokenizer
from .treebank import TreeFiles

__all__ = [
    "CoreBytePairs",
    "DataError",
    "EncodedCorpus",
    "RecordFolder",
    "TextFiles",
    "TfdsPairs",
    "Tokenizer",
    "TreeFiles",
    "batch_indices",
    "decode_lines",
    "encode_corpus",
    "epoch_rows",
    "evaluation_dataset",
    "load_tokenizer",
    "padding_waste",
    "read_lines",
    "steps_per_epoch",
    "train_tokenizer",
    "training_dataset",
]
