"""sacreBLEU's scores of translations, and the perplexity of a model."""

from keras_transformer.evaluation.perplexity import perplexity
from keras_transformer.evaluation.scores import Result
from keras_transformer.evaluation.scores import bleu
from keras_transformer.evaluation.scores import chrf
from keras_transformer.evaluation.scores import ter

__all__ = ["Result", "bleu", "chrf", "perplexity", "ter"]
