"""Metrics of a validation, with fixed translations, against sacreBLEU."""

from types import SimpleNamespace

import pytest
import sacrebleu

from keras_transformer.experiments import validation
from keras_transformer.recipes import load_recipe

# A side that cannot be read is `None`. Such a pair is not translated.
PAIRS = [("a", "The cat sat on the mat."), (None, "x"), ("b", "A dog barks loudly.")]
TRANSLATIONS = ["The cat sat on a mat.", "The dog barks loudly."]


@pytest.fixture
def metrics(monkeypatch):
    """Function from recipe settings to the metrics of a validation."""
    fakes = {
        "Translator": SimpleNamespace(translate=lambda texts: TRANSLATIONS),
        "PairScorer": None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(validation, name, lambda *_, fake=fake, **__: fake)
    monkeypatch.setattr(validation.evaluation, "perplexity", lambda *_: 7.0)
    monkeypatch.setattr(validation.pipelines, "evaluation_dataset", lambda *_: None)
    side = SimpleNamespace(pad_id=0, unknown_id=1)

    def metrics(*settings):
        recipe = load_recipe("phrases", settings)
        tokenizer = SimpleNamespace(target=side)
        return validation.build_validator(recipe, None, tokenizer, None, PAIRS)()

    return metrics


def test_validation_measures_chrf_if_it_chooses_the_best_model(metrics):
    references = [[PAIRS[0][1], PAIRS[2][1]]]
    bleu = sacrebleu.corpus_bleu(TRANSLATIONS, references).score
    chrf = sacrebleu.corpus_chrf(TRANSLATIONS, references).score
    found = metrics("training.best_metric=chrf")
    assert found == pytest.approx({"perplexity": 7.0, "bleu": bleu, "chrf": chrf})
    assert metrics() == pytest.approx({"perplexity": 7.0, "bleu": bleu})


def test_validation_without_translations_measures_perplexity(metrics):
    assert metrics("training.validation_bleu=false") == {"perplexity": 7.0}
