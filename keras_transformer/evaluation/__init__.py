"""sacreBLEU's scores of translations, the paper's own BLEU, and perplexity."""

from keras_transformer.evaluation.compound_split import compound_split_bleu
from keras_transformer.evaluation.compound_split import compound_split_tokens
from keras_transformer.evaluation.perplexity import perplexity
from keras_transformer.evaluation.scores import Result
from keras_transformer.evaluation.scores import bleu
from keras_transformer.evaluation.scores import chrf
from keras_transformer.evaluation.scores import ter

__all__ = [
    "Result",
    "bleu",
    "chrf",
    "compound_split_bleu",
    "compound_split_tokens",
    "perplexity",
    "ter",
]
