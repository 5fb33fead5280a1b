"""Evaluation: sacreBLEU scores, the paper's BLEU, perplexity, significance tests."""

from keras_transformer.evaluation.compound_split import compound_split_bleu
from keras_transformer.evaluation.compound_split import compound_split_tokens
from keras_transformer.evaluation.perplexity import PairScorer
from keras_transformer.evaluation.perplexity import perplexity
from keras_transformer.evaluation.scores import Result
from keras_transformer.evaluation.scores import bleu
from keras_transformer.evaluation.scores import chrf
from keras_transformer.evaluation.scores import ter
from keras_transformer.evaluation.seeds import Spread
from keras_transformer.evaluation.seeds import bleu_interval
from keras_transformer.evaluation.seeds import compare_seeds
from keras_transformer.evaluation.seeds import spread
from keras_transformer.evaluation.significance import Comparison
from keras_transformer.evaluation.significance import SystemScore
from keras_transformer.evaluation.significance import compare_systems

__all__ = [
    "Comparison",
    "PairScorer",
    "Result",
    "Spread",
    "SystemScore",
    "bleu",
    "bleu_interval",
    "chrf",
    "compare_seeds",
    "compare_systems",
    "compound_split_bleu",
    "compound_split_tokens",
    "perplexity",
    "spread",
    "ter",
]
