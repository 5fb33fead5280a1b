"""Scores of a run's model: validation during training, and scores on a set of pairs."""

import math
from typing import NamedTuple

import numpy as np

from keras_transformer import evaluation, pipelines
from keras_transformer.decoding import BeamSearch, Translator
from keras_transformer.errors import DataError
from keras_transformer.evaluation.perplexity import PairScorer, compute_perplexity
from keras_transformer.opening import open_model
from keras_transformer.parsing import bracketing_score
from keras_transformer.parsing.parser import parse_sentences
from keras_transformer.recipes.schema import bleu_problem
from keras_transformer.runs.corpora import scored_texts


def build_validator(recipe, model, tokenizer, corpus, pairs, beam_size=None):
    """Returns a function that computes the model's metrics on the validation pairs.

    The metrics are perplexity, and BLEU and chrF for text or F1 for trees. `corpus` and
    `pairs` are the same pairs, encoded and as text (`Pairs` or `TreeFiles`). If
    `beam_size` is `None`, it is `training.validation_beam_size`.
    """
    settings = recipe.training
    dataset = pipelines.evaluation_dataset(corpus, settings.batch_tokens)
    rows_of = _rows_by_corpus(corpus, pairs)
    parts = {
        f"perplexity_{name}": pipelines.evaluation_dataset(
            corpus, settings.batch_tokens, rows=rows
        )
        for name, rows in rows_of.items()
    }
    num_tokens = [corpus.target_lengths[rows].sum() for rows in rows_of.values()]
    decoding = {
        **recipe.decoding.model_dump(),
        "beam_size": beam_size or settings.validation_beam_size,
    }
    translator = Translator(
        model,
        tokenizer,
        search=BeamSearch(**decoding),
        max_source_length=recipe.data.max_length,
        parallel_parts=settings.parallel_parts,
        warn=_ignore,
    )
    target = tokenizer.target
    pair_scorer = PairScorer(model, target.pad_id, target.unknown_id)
    score_outputs = None
    if recipe.data.kind == "trees":
        if settings.validation_f1:
            score_outputs = _f1_scorer(recipe, translator, pairs)
    elif settings.validation_bleu:
        score_outputs = _text_scorer(recipe, translator, pairs)

    def validate():
        metrics = {
            name: evaluation.perplexity(pair_scorer, part)
            for name, part in parts.items()
        }
        if parts:
            logs = np.log([*metrics.values()])
            total = math.exp(np.average(logs, weights=num_tokens))
        else:
            total = evaluation.perplexity(pair_scorer, dataset)
        metrics = {"perplexity": total, **metrics}
        if score_outputs is not None:
            metrics |= score_outputs()
        return metrics

    return validate


def _rows_by_corpus(corpus, pairs):
    """Returns the rows of each corpus of a mixture, by its name."""
    if not isinstance(pairs, pipelines.MixedPairs):
        return {}
    rows = np.arange(corpus.num_pairs)
    parts = pairs.parts(corpus.numbers(rows))
    found = {name: rows[parts == part] for part, name in enumerate(pairs.names)}
    # All pairs of a corpus may have been dropped.
    return {name: rows for name, rows in found.items() if len(rows)}


def _ignore(index, warning):
    """Receives the warnings of a `Translator`, of which a young model causes many."""


def validation_settings(recipe):
    """Returns the settings on which validation scores depend, as text."""
    training = recipe.training
    settings = {
        **recipe.evaluation.model_dump(),
        "sentences": training.validation_sentences,
        "beam_size": training.validation_beam_size,
        "extra_length": recipe.decoding.extra_length,
    }
    # Greedy search does not use the others.
    if training.validation_beam_size > 1:
        settings = {**recipe.decoding.model_dump(), **settings}
    return ", ".join(f"{name}={settings[name]}" for name in sorted(settings))


def _text_scorer(recipe, translator, pairs):
    """Returns a function that computes BLEU, plus chrF if it selects the best model."""
    sources, references = (
        _sample(texts, recipe.training.validation_sentences)
        for texts in scored_texts(recipe, pairs, "validation")
    )
    settings = recipe.evaluation.model_dump()
    # A missing package is reported before training starts.
    if reason := bleu_problem(settings["tokenize"]):
        raise DataError(f"evaluation.tokenize={settings['tokenize']}: {reason}")

    def score():
        outputs = translator.translate(sources, protect=())
        scores = {"bleu": evaluation.bleu(outputs, references, **settings).score}
        if recipe.validation_metric() == "chrf":
            lowercase = settings["lowercase"]
            scores["chrf"] = evaluation.chrf(outputs, references, lowercase).score
        return scores

    return score


def _f1_scorer(recipe, translator, pairs):
    """Returns a function that parses the validation sentences and computes F1."""
    trees = _sample(list(pairs.trees()), recipe.training.validation_sentences)
    sentences = [tree.words for tree in trees]

    def score():
        parses = parse_sentences(translator, sentences, recipe.data.linearization)
        return {"f1": bracketing_score(trees, [parse.tree for parse in parses]).f1}

    return score


def _sample(items, size):
    """Returns `size` evenly spaced items, or all items if `size` is `None`."""
    if size is None or size >= len(items):
        return items
    return [items[number * len(items) // size] for number in range(size)]


class ModelScores(NamedTuple):
    """Translations and scores of a model."""

    translations: list[str]
    bleu: evaluation.CorpusScore
    perplexity: float | None  # `None` if it is infinite, as for a diverged model
    parameters: int


def score_model(folder, sources, references, **settings):
    """Returns the `ModelScores` of a run. `settings` are those of `evaluation.bleu`."""
    translator = open_model(folder, warn=_ignore)
    translations = translator.translate(sources, protect=())
    perplexity = compute_perplexity(translator.score(sources, references))
    return ModelScores(
        translations,
        evaluation.bleu(translations, references, **settings),
        perplexity if math.isfinite(perplexity) else None,
        translator.model.count_params(),
    )
