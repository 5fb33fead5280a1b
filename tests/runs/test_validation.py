"""Metrics of a validation against sacreBLEU, with a dictionary as the model."""

from types import SimpleNamespace

import pytest
import sacrebleu

from keras_transformer.recipes import load_recipe
from keras_transformer.runs import validation
from keras_transformer.runs.corpora import strip_languages

# A side that cannot be read is `None`. Such a pair, or one with an empty side, is not
# translated.
PAIRS = [
    *(("a", "The cat sat on the mat."), (None, "x"), ("b", "A dog barks loudly.")),
    *(("", "y"), ("a", "")),
]
DICTIONARY = {"a": "The cat sat on a mat.", "b": "The dog barks loudly."}
TRANSLATIONS = [*DICTIONARY.values()]


class Dictionary:
    """Stand-in for `Translator`. A translation is an entry, cut to the beam size."""

    def __init__(self, model, tokenizer, search, **options):
        self.search = search

    def translate(self, texts, protect=()):
        words = (DICTIONARY[text].split() for text in texts)
        return [" ".join(each[: 4 + self.search.beam_size]) for each in words]


@pytest.fixture
def metrics(monkeypatch):
    """Function from recipe settings to the metrics of a validation."""
    monkeypatch.setattr(validation, "Translator", Dictionary)
    monkeypatch.setattr(validation, "PairScorer", lambda *_: None)
    monkeypatch.setattr(validation.evaluation, "perplexity", lambda *_: 7.0)
    monkeypatch.setattr(validation.pipelines, "evaluation_dataset", lambda *_: None)
    side = SimpleNamespace(pad_id=0, unknown_id=1)

    def metrics(*settings, pairs=PAIRS, **options):
        recipe = load_recipe("phrases", settings)
        tokenizer = SimpleNamespace(target=side)
        validate = validation.build_validator(
            recipe, None, tokenizer, None, pairs, **options
        )
        return validate()

    return metrics


def test_validation_measures_chrf_if_it_chooses_the_best_model(metrics):
    references = [[PAIRS[0][1], PAIRS[2][1]]]
    bleu = sacrebleu.corpus_bleu(TRANSLATIONS, references).score
    chrf = sacrebleu.corpus_chrf(TRANSLATIONS, references).score
    wide = "training.validation_beam_size=9"
    found = metrics("training.best_metric=chrf", wide)
    assert found == pytest.approx({"perplexity": 7.0, "bleu": bleu, "chrf": chrf})
    assert metrics(wide) == pytest.approx({"perplexity": 7.0, "bleu": bleu})


def test_validation_uses_the_beam_size_of_the_recipe_or_the_argument(metrics):
    references = [[PAIRS[0][1], PAIRS[2][1]]]
    greedy = [" ".join(each.split()[:5]) for each in TRANSLATIONS]
    for texts, options in ((greedy, {}), (TRANSLATIONS, {"beam_size": 9})):
        expected = sacrebleu.corpus_bleu(texts, references).score
        assert metrics(**options)["bleu"] == pytest.approx(expected)


def test_validation_can_translate_evenly_spaced_sentences(metrics):
    """Of six pairs, three are the first, the third and the fifth."""
    pairs = [("b" if n % 2 else "a", f"The {n} cat sat on a mat.") for n in range(6)]
    references = [[pairs[n][1] for n in (0, 2, 4)]]
    bleu = sacrebleu.corpus_bleu([DICTIONARY["a"]] * 3, references).score
    settings = "training.validation_sentences=3", "training.validation_beam_size=9"
    assert metrics(*settings, pairs=pairs)["bleu"] == pytest.approx(bleu)


def test_references_have_no_language(metrics):
    """A search is given the language of a target, so translations lack it."""
    pairs = [(source, target and f">>fra_Latn<< {target}") for source, target in PAIRS]
    multilingual = "tokenizer.kind=fairseq"
    expected = metrics()["bleu"]
    assert metrics(multilingual, pairs=pairs)["bleu"] == pytest.approx(expected)
    assert metrics(pairs=pairs)["bleu"] < expected
    given = ["a >>fra<<", ">>eng_Latn fra_Latn<<b", ">>x y z<< c"]
    expected = [given[0], "b", given[2]]
    assert strip_languages("fairseq", given) == expected
    assert strip_languages("bpe", given) == given


def test_validation_without_translations_measures_perplexity(metrics):
    assert metrics("training.validation_bleu=false") == {"perplexity": 7.0}
