"""Evaluation: sacreBLEU scores, the paper's BLEU, perplexity, significance tests."""

from keras_transformer.evaluation.compound_split import (
    compound_split_bleu,
    compound_split_tokens,
)
from keras_transformer.evaluation.perplexity import PairScorer, perplexity
from keras_transformer.evaluation.reranking import (
    UTILITIES,
    minimum_bayes_risk,
    rank_by_reverse_model,
    rank_by_utility,
)
from keras_transformer.evaluation.scores import CorpusScore, bleu, chrf, ter
from keras_transformer.evaluation.significance import (
    Comparison,
    SeedStatistics,
    SystemScore,
    bleu_interval,
    compare_seeds,
    compare_systems,
    summarize_seeds,
)

__all__ = [
    "UTILITIES",
    "Comparison",
    "CorpusScore",
    "PairScorer",
    "SeedStatistics",
    "SystemScore",
    "bleu",
    "bleu_interval",
    "chrf",
    "compare_seeds",
    "compare_systems",
    "compound_split_bleu",
    "compound_split_tokens",
    "minimum_bayes_risk",
    "perplexity",
    "rank_by_reverse_model",
    "rank_by_utility",
    "summarize_seeds",
    "ter",
]
