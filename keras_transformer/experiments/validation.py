"""What a run measures on its validation pairs, from perplexity to BLEU and F1."""

from keras_transformer import evaluation
from keras_transformer import pipelines
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding import Translator
from keras_transformer.errors import DataError
from keras_transformer.parsing import bracketing_score
from keras_transformer.parsing.parser import parse_sentences


def validation(recipe, model, tokenizer, corpus, pairs):
    """Function that scores the model on the validation pairs.

    Args:
        recipe: A `Recipe`.
        model: Its `Transformer`.
        tokenizer: Of both sides.
        corpus: The validation pairs as ids.
        pairs: Their source.

    Returns:
        Function of no argument that returns a mapping of figures.
    """
    settings = recipe.training
    dataset = pipelines.evaluation_dataset(corpus, settings.batch_tokens)
    decoding = {
        **recipe.decoding.model_dump(),
        "beam_size": settings.validation_beam_size,
    }
    translator = Translator(
        model,
        tokenizer,
        search=BeamSearch(**decoding),
        max_source_length=recipe.data.max_length,
        parallel_parts=settings.parallel_parts,
    )
    metric = "f1" if recipe.data.kind == "trees" else "bleu"
    score = None
    if getattr(settings, f"validation_{metric}"):
        score = _SCORES[metric](recipe, translator, pairs)

    def validate():
        figures = {"perplexity": evaluation.perplexity(model, dataset)}
        if score is not None:
            figures[metric] = score()
        return figures

    return validate


def _bleu_of(recipe, translator, pairs):
    """Function that scores translations of the validation text."""
    kept = [pair for pair in pairs if None not in pair]
    if not kept:
        raise DataError("data.validation: no pair there can be read")
    kept = _sample(kept, recipe.training.validation_sentences)
    sources, references = map(list, zip(*kept, strict=True))
    settings = recipe.evaluation.model_dump()
    try:
        # Before hours of training: some tokenizers need more than sacreBLEU.
        evaluation.bleu(references[:1], references[:1], **settings)
    except (ImportError, RuntimeError, OSError) as error:
        raise DataError(
            f"evaluation.tokenize {settings['tokenize']}: {error}"
        ) from None

    def score():
        return evaluation.bleu(
            translator.translate(sources), references, **settings
        ).score

    return score


def _f1_of(recipe, translator, pairs):
    """Function that scores trees of the validation sentences."""
    trees = _sample(list(pairs.trees()), recipe.training.validation_sentences)
    sentences = [tree.words for tree in trees]

    def score():
        parses = parse_sentences(translator, sentences, recipe.data.words)
        return bracketing_score(trees, [parse.tree for parse in parses]).f1

    return score


_SCORES = {"bleu": _bleu_of, "f1": _f1_of}


def _sample(items, size):
    """`size` of the items at equal distances; all of them for None."""
    if size is None or size >= len(items):
        return items
    return [items[number * len(items) // size] for number in range(size)]
