"""Data pipelines from text to bucketed batches of ids.

Sources yield pairs of texts. `encode_corpus` tokenizes the pairs once, and
`training_dataset` and `evaluation_dataset` batch the ids.

Names are imported on first use, so that text can be read without TensorFlow.
"""

from keras_transformer._imports import lazy_names

# Public classes and functions, and the modules that contain them.
_NAMES = {
    "BothDirections": "sources.base",
    "CoreOpsBytePairTokenizer": "tokenizers.core_byte_pairs",
    "CsvFiles": "sources.text_files",
    "EncodedCorpus": "encoded_corpus",
    "HuggingFacePairs": "sources.hubs",
    "JsonLines": "sources.text_files",
    "KerasHubTokenizer": "tokenizers.kerashub",
    "MixedPairs": "sources.mixed",
    "NoisyCorpus": "noise",
    "Pairs": "sources.base",
    "RecordFolder": "sources.records",
    "SeparateTokenizers": "tokenizers.registry",
    "TextFiles": "sources.text_files",
    "TextSettings": "tokenizers.normalization",
    "TfdsPairs": "sources.hubs",
    "Tokenizer": "tokenizers.base",
    "TrainingBatches": "training_batches",
    "TmxFiles": "sources.text_files",
    "TsvFiles": "sources.text_files",
    "as_pairs": "sources.base",
    "batch_indices": "datasets",
    "decode_lines": "lines",
    "encode_corpus": "encoding",
    "evaluation_dataset": "datasets",
    "load_tokenizer": "tokenizers.registry",
    "read_lines": "lines",
    "steps_per_epoch": "datasets",
    "train_tokenizer": "tokenizers.registry",
    "training_dataset": "datasets",
}

__all__ = [*_NAMES]

__getattr__, __dir__ = lazy_names(__name__, (), _NAMES)
