"""Scores of a trained model on a set of pairs, and the file that stores them."""

import json
import math
from typing import NamedTuple

from keras_transformer import evaluation
from keras_transformer.evaluation.perplexity import perplexity_of
from keras_transformer.files import replace_file
from keras_transformer.saving.open import open_model

RESULT = "result.json"


class ModelScores(NamedTuple):
    """Translations and scores of a model."""

    translations: list[str]
    bleu: evaluation.Result
    perplexity: float | None  # `None` if it is infinite, as for a diverged model
    parameters: int


def score_model(folder, sources, references, **settings):
    """Scores the model of a run.

    Args:
        folder: The run folder.
        sources: List of str, the texts to translate.
        references: List of str, a translation of each source.
        settings: Arguments of `evaluation.bleu`.

    Returns:
        `ModelScores`.
    """
    translator = open_model(folder)
    translations = translator.translate(sources)
    perplexity = perplexity_of(translator.score(sources, references))
    return ModelScores(
        translations,
        evaluation.bleu(translations, references, **settings),
        perplexity if math.isfinite(perplexity) else None,
        translator.model.count_params(),
    )


def write_result(folder, result):
    """Writes a mapping to the file `RESULT` of a run."""
    with replace_file(folder / RESULT) as temporary:
        temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
