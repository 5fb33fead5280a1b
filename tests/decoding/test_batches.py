"""Batches, and texts, prefixes, tokenizers and ids that a `Translator` refuses."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from characters import Characters, characters_model

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch, Translator
from keras_transformer.decoding.batches import PrefixEnds, batch_by_length
from keras_transformer.errors import ModelError
from keras_transformer.evaluation.pair_filter import PairFilter
from keras_transformer.pipelines import train_tokenizer


@pytest.fixture(scope="module")
def translator():
    return Translator(characters_model(), Characters())


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_as_large_as_the_limit_allows(seed):
    lengths = np.random.default_rng(seed).integers(1, 40, 50)
    batches = list(batch_by_length(lengths.tolist(), 30 + seed))
    assert sorted(np.concatenate(batches)) == list(range(50))
    longest = [lengths[batch].max() for batch in batches]
    for batch, length in zip(batches, longest, strict=True):
        assert len(batch) == 1 or len(batch) * length <= 30 + seed
    # The first row of the next batch, its shortest one, would not fit.
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[following].min() > 30 + seed


def test_translator_rejects_lists_of_different_lengths(translator):
    message = "`sources` and `targets` must have .* Received: 2 sources and 1 targets"
    for call in (translator.score, translator.align):
        with pytest.raises(ValueError, match=message):
            call(["a", "b"], ["a"])
    message = "`lines` and `prefixes` must have .* Received: 1 lines and 2 prefixes"
    with pytest.raises(ValueError, match=message):
        translator.n_best(["a"], prefixes=["a", "b"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            "abc",
            r"a list of str. Received: a single str. Pass \[text\] instead",
        ),
        (b"abc", r"must be a list of str. Received: a single bytes"),
        (None, r"must be a list of str. Received: None"),
        (3, r"must be a list of str. Received: 3"),
        (["a", None], r"must contain only str. Received: \w+\[1\]=None"),
        (["a", b"b"], r"must contain only str. Received: \w+\[1\]=b'b'. Decode it"),
        ([3], r"must contain only str. Received: \w+\[0\]=3"),
    ],
)
def test_translator_rejects_anything_but_lists_of_str(translator, bad, message):
    calls = [
        translator.translate,
        translator.n_best,
        translator.sample,
        lambda lines: translator.score(lines, ["a", "b"]),
        lambda lines: translator.align(["a", "b"], lines),
        lambda lines: translator.score(["a", "b"], lines),
        lambda lines: translator.with_search(forbidden=lines),
        lambda lines: Translator(characters_model(), Characters(), forbidden=lines),
    ]
    if bad is not None:
        calls.append(lambda lines: translator.n_best(["a", "b"], prefixes=lines))
    # `forbidden` and `prefixes` may be `None`.
    for call in calls if bad is not None else calls[:6]:
        with pytest.raises(ValueError, match=message):
            call(bad)


@pytest.mark.parametrize("prefix", ["der Hun", "der H\u00fcn", "l", "ein ", "d.", ""])
def test_the_last_word_of_a_prefix_may_go_on(prefix):
    """Tokens that begin with the rest of the prefix, from each place of the word on."""
    texts = [
        "der Hund l\u00e4uft",
        "ein Hund und noch ein Hund",
        "die Katze schl\u00e4ft",
    ]
    tokenizer = train_tokenizer("bpe", texts, 300)
    spelled, ends = tokenizer.piece_bytes(), PrefixEnds(tokenizer)
    (row,) = tokenizer.tokenize([prefix.strip()]).to_list()
    (word_start, *_) = [*np.flatnonzero([spelled[i][:1] == b" " for i in row])[::-1], 0]
    ranges = ends.of(row, prefix)
    assert len(ranges) == len(row)
    for place, (start, end) in enumerate(ranges):
        rest = b"".join(spelled[number] for number in row[place:])
        is_open = place >= word_start and not prefix.endswith(" ")
        expected = {i for i, each in enumerate(spelled) if each.startswith(rest)}
        found = {i for i, rank in enumerate(ends.ranks) if start <= rank < end}
        assert found == (expected if is_open else set())


def test_prefixes_must_not_contain_the_unknown_id(translator):
    for search in (translator.n_best, translator.sample):
        with pytest.raises(ModelError, match="prefix 'ab\u00dfc' contains tokens"):
            search(["abc"], prefixes=[" ab\u00dfc"])


def test_translator_rejects_another_padding_id():
    class Shifted(Characters):
        pad_id, unknown_id, start_id, end_id = 3, 0, 1, 2

    model = characters_model()
    for tokenizers in ((Shifted(),), (Characters(), Shifted())):
        with pytest.raises(ValueError, match="tokenizer with pad_id=3, model with pad"):
            Translator(model, *tokenizers)


def test_learned_positions_limit_scores_and_translations():
    arguments = {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}
    size = Characters.vocabulary_size
    model = kt.Transformer(size, positions="learned", max_length=6, **arguments)
    model.build({"source_ids": (None, 6), "target_ids": (None, 6)})
    for weight in model.weights:
        if weight.shape == (size, 8):
            # The end id has the lowest logit, so that translations become long.
            weight.assign(tf.tensor_scatter_nd_update(weight, [[3]], -weight[4:5]))
    translator = Translator(model, Characters(), search=BeamSearch(1, extra_length=20))
    assert translator.max_source_length == 6
    (text,) = translator.translate(["abc"])
    assert len(text) <= 6
    assert translator.score(["abcde"], ["abcde"])[0].num_tokens == 6
    with pytest.raises(ModelError, match=r"6 learned .* 7 subwords: 'abcdef'"):
        translator.score(["a", "abcdef"], ["a", "a"])
    ((prefixed,),) = translator.n_best(["abc"], prefixes=["abcde"])
    assert prefixed.text.startswith("abcde")
    with pytest.raises(ModelError, match=r"6 learned .* 7 subwords: 'abcdef'"):
        translator.n_best(["abc"], prefixes=["abcdef"])
    pair_filter = PairFilter(translator)
    pairs = [("a", "b"), ("abcde", "edcba"), ("abcdef", "abc")]
    assert pair_filter.check(pairs) == [None, None, "too_long"]
    assert pair_filter.dropped == {"too_long": 1}
