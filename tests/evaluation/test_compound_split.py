"""The paper's BLEU with split compounds, against hand calculation and sacreBLEU.

tensor2tensor's script get_ende_bleu.sh tokenizes a text with Moses's tokenizer and
replaces each hyphen inside a compound by the token `##AT##-##AT##`.
"""

import math

import pytest
import sacrebleu

from keras_transformer.evaluation import compound_split_bleu, compound_split_tokens

# Texts and their tokens, worked out by hand from the rules of tokenizer and script.
CASES = {
    "Die EU-Kommission tagt.": "Die EU ##AT##-##AT## Kommission tagt .",
    # The script's regular expression consumes the letter after a hyphen, so it does not
    # match a second hyphen right after that letter.
    "x-y-z": "x ##AT##-##AT## y-z",
    "Nord-Ost-Wind": "Nord ##AT##-##AT## Ost ##AT##-##AT## Wind",
    "ein - Strich, -5 und A-": "ein - Strich , -5 und A-",
    "„Ja“, sagt er.": "&quot; Ja &quot; , sagt er .",
    "z. B. 3,5 Mio. Euro": "z. B. 3,5 Mio. Euro",
    "": "",
}


@pytest.mark.parametrize("text", CASES)
def test_compound_split_tokens_match_hand_tokenization(text):
    assert compound_split_tokens(text) == CASES[text]


HYPOTHESES = [
    "Die EU-Kommission tagt heute in Brüssel.",
    "Ein Nord-Ost-Wind weht über das Land.",
    "Er sagt „Ja“ und geht nach Hause.",
]
REFERENCES = [
    "Die EU-Behörde tagt heute in Brüssel.",
    "Ein Nordost-Wind weht über das ganze Land.",
    'Er sagt "Ja" und geht nach Hause.',
]


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, REFERENCES[::-1]]])
def test_compound_split_bleu_matches_sacrebleu_on_the_tokens(references):
    hypotheses, *tokenized = (
        [compound_split_tokens(text) for text in side]
        for side in (HYPOTHESES, *references)
    )
    expected = sacrebleu.corpus_bleu(
        hypotheses, tokenized, tokenize="none", smooth_method="none", force=True
    )
    result = compound_split_bleu(HYPOTHESES, references)
    assert result.score == pytest.approx(expected.score, abs=1e-9)
    assert result.signature.startswith(f"nrefs:{len(references)}|")
    assert "|tok:moses-de-" in result.signature and "smooth:none" in result.signature
    # Matching halves of compounds count, so the score is higher.
    assert result.score > sacrebleu.corpus_bleu(HYPOTHESES, references).score


def test_compound_split_bleu_matches_hand_calculation():
    """7 of 8 unigrams, 5 of 7 bigrams, 3 of 6 trigrams, and 1 of 5 4-grams match."""
    result = compound_split_bleu(
        ["die EU-Kommission tagt heute hier."], ["die EU-Behörde tagt heute hier."]
    )
    expected = math.exp(
        sum(math.log(part) for part in (7 / 8, 5 / 7, 3 / 6, 1 / 5)) / 4
    )
    assert result.score == pytest.approx(100 * expected)


def test_compound_split_rejects_unknown_languages_and_unpaired_lists():
    with pytest.raises(ValueError, match=r"`language` must be one of .* 'german'"):
        compound_split_tokens("ein Hund", "german")
    with pytest.raises(ValueError, match="2 translations, 1 references"):
        compound_split_bleu(["a", "b"], ["a"])
