"""`Translator` with a small random `Transformer` and a tokenizer of characters."""

import dataclasses
from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from characters import ALPHABET, Characters, characters_model, endless_model
from decoding_oracles import log_softmax
from small_transformers import built

import keras_transformer as kt
from keras_transformer.decoding import (
    BeamSearch,
    Sampling,
    Translation,
    Translator,
    batches,
)
from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.decoding.search import translate_ids
from keras_transformer.decoding.warnings import CUT_OFF, LOW_SCORE
from keras_transformer.errors import ModelError


@pytest.fixture(scope="module")
def model():
    return characters_model()


@pytest.fixture(scope="module")
def warnings():
    """List that receives the (index, text) of each warning about a long line."""
    return []


def translator_of(model, **options):
    return Translator(
        model,
        Characters(),
        search=BeamSearch(beam_size=3, extra_length=4),
        max_source_length=12,
        batch_tokens=29,
        **options,
    )


@pytest.fixture(scope="module")
def translator(model, warnings):
    # The model has random weights, so its translations also cause warnings.
    def warn(index, text):
        if "max_source_length" in text:
            warnings.append((index, text))

    return translator_of(model, warn=warn)


LINES = ["abc", "", "gfedcba", "a", " \t ", "bad cafe.", "abc", "a!b"]


def test_translate_keeps_order_and_blank_lines(translator):
    together = translator.translate(LINES)
    assert [bool(text) for text in together] == [bool(line.strip()) for line in LINES]
    assert together == [translator.translate([line])[0] for line in LINES]
    assert len(set(together)) > 4


def test_long_lists_are_encoded_in_groups(translator, warnings, monkeypatch):
    lines = [*LINES, "abc. dad. fed! bad!"]
    alone = [translator.translate([line])[0] for line in lines]
    monkeypatch.setattr(batches, "MAX_LINES", 3)
    warnings.clear()
    assert translator.translate(lines) == alone
    assert [index for index, _ in warnings] == [8]


def test_parallel_batches_give_the_same_translations(translator, parallel_counts):
    several = translator.with_search()  # shares the compiled functions
    several.parallel_parts = 3
    lines = LINES * 7
    found = several.n_best(lines)
    expected = translator.n_best(lines)
    assert [[each.text for each in ranked] for ranked in found] == [
        [each.text for each in ranked] for ranked in expected
    ]
    assert several.score(lines, lines[::-1]) == translator.score(lines, lines[::-1])
    # The calls of `n_best` of both translators, then their calls of `score`.
    assert parallel_counts == [3, 1, 3, 1]


def test_translator_rejects_a_model_without_the_end_id(model):
    short = kt.Transformer(
        model.vocabulary_size, 1, 24, 40, 3, output_size=Characters.end_id
    )
    with pytest.raises(ValueError, match=r"Received: end_id=3, num_outputs=3"):
        Translator(short, Characters())
    with pytest.raises(ValueError, match=r"Received: parallel_parts=0"):
        Translator(model, Characters(), parallel_parts=0)


def test_translator_generates_outputs_only(model):
    """A model with `output_size` predicts fewer ids than it embeds."""
    fewer = built(model.vocabulary_size, 1, 24, 40, 3, output_size=8)
    fewer.set_weights(model.get_weights())
    search = BeamSearch(beam_size=3, extra_length=4)
    translator = Translator(fewer, Characters(), search=search)
    found = [*translator.translate(LINES)]
    samples = translator.sample(LINES, Sampling(seed=1, extra_length=4))
    found += [each.text for [each] in samples]
    # Of the eight ids that the model predicts, the first four are special.
    assert set("".join(found)) <= set(ALPHABET[:4])
    assert len(set(found)) > 4
    # Letters that the model cannot predict have the score of the unknown id.
    ids = {"source_ids": [[4, 5, 6, 3]], "target_ids": [[2, 10, 8, 9]]}
    logits = fewer({name: np.array(row, "int32") for name, row in ids.items()})
    expected = log_softmax(np.array(logits))[0, range(4), [1, 1, 1, 3]].sum()
    found = translator.score(["abc"], ["gef"])[0].log_prob
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="prefix 'be' contains tokens that the model"):
        translator.n_best(["abc"], prefixes=["be"])


def test_n_best_rejects_lengths_out_of_range(translator):
    with pytest.raises(ModelError, match="needs `beam_size` of at least 4"):
        translator.n_best(["a"], 4)
    with pytest.raises(ValueError, match=r"`n` must be at least 1. Received: n=0"):
        translator.n_best([], 0)


def test_fingerprint_depends_on_the_architecture():
    models = [built(14, 1, 24, 40, heads) for heads in (3, 4, 3)]
    for model in models:
        model.set_weights(models[0].get_weights())
    first, other, same = (
        Translator(each, Characters()).fingerprint() for each in models
    )
    assert first == same != other


def test_fingerprint_depends_on_the_target_vocabulary(model):
    class Others(Characters):
        def fingerprint(self):
            return "others"

    tokenizers = Characters(), Others(), Characters()
    first, other, same = (
        Translator(model, Characters(), each).fingerprint() for each in tokenizers
    )
    assert first == same != other


def test_score_matches_the_scores_of_n_best(translator):
    found = translator.n_best(LINES)
    pairs = [
        (line, each)
        for line, ranked in zip(LINES, found, strict=True)
        for each in ranked
        # `score` adds the end id. A translation that was cut off has none: its length
        # is the limit, the source's length with the end id plus 4.
        if line.strip() and len(each.text) + 1 < len(line) + 5
    ]
    assert len(pairs) > 2
    found = translator.score([a for a, _ in pairs], [b.text for _, b in pairs])
    lengths = np.array([len(b.text) + 1 for _, b in pairs])
    assert [one.num_tokens for one in found] == lengths.tolist()
    scores = np.array([one.log_prob for one in found])
    np.testing.assert_allclose(
        scores / ((5 + lengths) / 6) ** 0.6, [b.score for _, b in pairs], rtol=1e-4
    )


@pytest.mark.fault("F19", "translated in segments, with a warning")
def test_long_line_is_translated_in_segments(translator, warnings):
    warnings.clear()
    lines = ["abc", "abc. dad. fed! bad!"]
    found = translator.translate(lines)
    pieces = translator.translate(["abc.", "dad.", "fed!", "bad!"])
    assert found == [translator.translate(["abc"])[0], " ".join(filter(None, pieces))]
    ((index, text),) = warnings
    assert index == 1
    assert text.startswith(
        "20 subwords, including the end id, exceed max_source_length=12"
    )
    assert "4 segments" in text


def test_line_breaks_are_kept(translator, warnings):
    warnings.clear()
    (found,) = translator.n_best(["abc\n\n  dad.\nfed\n"], 2)
    lists = translator.n_best(["abc", "dad.", "fed"], 2)
    gaps = ["", "\n\n  ", "\n"]
    for rank, (text, score, _) in enumerate(found):
        parts = [ranked[min(rank, len(ranked) - 1)] for ranked in lists]
        lines = [gap + part.text for gap, part in zip(gaps, parts, strict=True)]
        assert text == "".join(lines) + "\n"
        assert score == pytest.approx(sum(part.score for part in parts), abs=1e-5)
    assert not warnings


def test_prefix_begins_the_first_segment(translator):
    text = "\nabc. dad. fed! bad!\na"
    ((found,), (first,)) = translator.n_best([text, "abc."], 1, prefixes=["gg"] * 2)
    *others, last = translator.translate(["dad.", "fed!", "bad!", "a"])
    assert first.text.startswith("gg")
    assert found.text == f"\n{' '.join(filter(None, [first.text, *others]))}\n{last}"


def test_required_phrases_occur_in_every_translation(translator, warnings):
    warnings.clear()
    lines = ["abc", "", "gag\nbad cafe. fed! cab! ace.", "a!b", "dad"]
    required = [["gg"], ["a"], ["fed", ["zz", "eb"], "fed"], [], [["be", "ed"]]]
    found = translator.n_best(lines, 2, required=required)
    assert all("gg" in each.text for each in found[0])
    assert found[1][0].text == ""
    # Of several segments, the one that contains a phrase has it.
    first, second = found[2][0].text.split("\n")
    assert second.count("fed") == 2 and "eb" in first
    assert found[3] == translator.n_best(lines, 2)[3]
    assert all("be" in each.text or "ed" in each.text for each in found[4])
    assert not [each for each in warnings if "lacks" in each[1]]


def test_required_phrases_are_checked(translator):
    with pytest.raises(ModelError, match="the required phrase 'xyz'"):
        translator.n_best(["a"], required=[["abc", ["xyz", "z"]]])
    with pytest.raises(ValueError, match="1 lines and 2 required"):
        translator.n_best(["a"], required=[[], []])


def test_phrase_beyond_the_learned_positions_is_reported():
    sizes = {"positions": "learned", "max_length": 6}
    model, found = built(Characters.vocabulary_size, 1, 24, 40, **sizes), []
    options = {"warn": lambda *warning: found.append(warning)}
    translator = Translator(model, Characters(), search=BeamSearch(2), **options)
    ((best,),) = translator.n_best(["abc"], 1, required=[["abcdefgabc"]])
    assert best.text == "abcdef"
    assert best.warnings[-1] == "the translation lacks 'abcdefgabc'"
    assert found == [(0, warning) for warning in best.warnings]


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="runs untraced")
def test_translator_is_traced_once_for_all_batches(model, monkeypatch):
    traces = []

    def search(*arguments, **options):
        traces.append(arguments)
        return translate_ids(*arguments, **options)

    module = "keras_transformer.decoding.translator"
    monkeypatch.setattr(f"{module}.translate_ids", search)
    search = BeamSearch(extra_length=4)
    translator = Translator(model, Characters(), search=search)
    translator.translate(LINES)
    translator.translate(["gfe"] * 5)
    translator.translate(LINES)
    assert len(traces) == 1
    greedy = translator.with_search(beam_size=1)
    greedy.translate(LINES)
    assert len(traces) == 2
    # Equal settings share a compiled function.
    greedy.with_search(beam_size=4).translate(LINES)
    translator.with_search(beam_size=1).translate(LINES)
    assert len(traces) == 2


def test_compiled_functions_of_equal_code_cause_no_warning(caplog):
    """TensorFlow would warn of retracing at the fifth one."""
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    for factor in range(7):
        run = compile_for_ids(lambda ids, factor=factor: ids * factor, 1)
        assert run(np.array([[3]], "int32")) == 3 * factor
    logger.removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


def test_with_search_names_what_it_takes(translator):
    with pytest.raises(TypeError, match=r"takes `forbidden`, `glossary` .*: beam\."):
        translator.with_search(beam=8)


def test_samples_of_concurrent_calls_belong_to_their_seeds(translator):
    both = translator, translator.with_search(beam_size=2)
    calls = [
        (each, Sampling(seed=n, extra_length=4)) for n in range(8) for each in both
    ]
    expected = [each.sample(LINES, sampling) for each, sampling in calls]
    with futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda call: call[0].sample(LINES, call[1]), calls * 3))
    assert found == expected * 3


def test_sample_repeats_by_seed(translator):
    sampling = Sampling(num_samples=3, seed=1, extra_length=4)
    first = translator.sample(LINES, sampling)
    assert first == translator.sample(LINES, sampling)
    assert first != translator.sample(LINES, dataclasses.replace(sampling, seed=2))
    assert len(first[0]) == 3
    assert first[1] == [Translation("", 0.0)]
    # Without a seed, each call draws one.
    keras.utils.set_random_seed(4)
    unseeded = dataclasses.replace(sampling, seed=None)
    assert translator.sample(LINES, unseeded) != translator.sample(LINES, unseeded)


def test_translator_accepts_two_tokenizers(model, translator):
    class Shifted(Characters):
        def detokenize(self, ids):
            return tf.strings.upper(super().detokenize(ids))

    search = translator.search
    separate = Translator(model, Characters(), Shifted(), search=search)
    expected = [text.upper() for text in translator.translate(LINES)]
    assert separate.translate(LINES) == expected


@pytest.mark.fault("F16", "unpaired surrogates become question marks")
def test_translator_accepts_lone_surrogates(translator):
    found, question_mark, without = translator.translate(["a\udcffb", "a?b", "ab"])
    assert found == question_mark != without


@pytest.mark.fault("F22", "never generated, however probable; a text is returned")
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_ids_without_a_subword_are_never_generated(beam_size):
    size = Characters.vocabulary_size
    # Rounded up from 14 to a multiple of 8, so that two ids have no subword.
    padded = built(-(-size // 8) * 8, 1, d_model=24, d_ff=8, num_heads=3, seed=3)
    (table,) = [w for w in padded.weights if w.shape == (padded.vocabulary_size, 24)]
    rows = table.numpy()
    # The rows of these two ids are long and opposite, so one of them always has the
    # highest logit.
    rows[size] = 50 * np.random.default_rng(3).normal(size=24)
    rows[size + 1] = -rows[size]
    table.assign(rows)
    ids = np.array([[4, 5, 3]])
    best = np.argmax(padded({"source_ids": ids, "target_ids": ids}), axis=-1)
    assert (best >= size).any()
    search = BeamSearch(beam_size=beam_size, extra_length=4)
    translator = Translator(padded, Characters(), search=search)
    seen = []
    translator.target_tokenizer = SeenIds(seen)
    found = translator.n_best(LINES, beam_size)
    assert len(found) == len(LINES)
    assert min(map(np.min, seen)) >= 0
    assert max(map(np.max, seen)) < size
    assert all(np.isfinite(each.score) for ranked in found for each in ranked)
    found = translator.sample(LINES, Sampling(num_samples=3, seed=1, extra_length=4))
    assert max(map(np.max, seen)) < size


class SeenIds(Characters):
    """Records the ids that it detokenizes."""

    def __init__(self, seen):
        self.seen = seen

    def detokenize(self, ids):
        self.seen.append(np.array(ids))
        return super().detokenize(ids)


@pytest.mark.fault("F26", "beam 1 is greedy; alone equals batched within 1e-5")
@pytest.mark.parametrize("beam_size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_translation_is_independent_of_long_lines_in_the_batch(model, beam_size):
    search = BeamSearch(beam_size=beam_size, extra_length=4)
    translator = Translator(model, Characters(), search=search, max_source_length=300)
    lines = [*LINES, "abcdefg" * 40, "gfedcba" * 30]
    together = translator.n_best(lines, beam_size)
    for line, ranked in zip(lines, together, strict=True):
        (alone,) = translator.n_best([line], beam_size)
        assert [each.text for each in alone] == [each.text for each in ranked]
        np.testing.assert_allclose(
            [each.score for each in alone], [each.score for each in ranked], rtol=1e-5
        )
    if beam_size == 1:
        greedy = translator.sample(lines, Sampling(top_k=1, extra_length=4))
        for (drawn,), ((text, *_),) in zip(greedy, together, strict=True):
            assert drawn.text == text


def test_translator_builds_models():
    models = [kt.Transformer(Characters.vocabulary_size, 1, 8, 8, 2) for _ in range(2)]
    translator_of(kt.Ensemble(models))
    assert all(model.built for model in models)


@pytest.mark.fault("F21", "an error with both sizes")
def test_translator_rejects_a_tokenizer_larger_than_the_model():
    model = kt.Transformer(7, 1, d_model=8, d_ff=8, num_heads=2)
    with pytest.raises(ValueError, match="14 ids, model with 7"):
        Translator(model, Characters())


@pytest.mark.fault("F27", "a whole model: truncated at the limit, with a finite score")
@pytest.mark.parametrize("prefix", [pytest.param(None, marks=pytest.mark.slow), "cab"])
def test_translation_ends_at_the_maximum_length(prefix):
    search = BeamSearch(beam_size=3, extra_length=4)
    translator = Translator(endless_model(), Characters(), search=search)
    for line in ("abc", "gfedcba"):
        prefixes = None if prefix is None else [prefix]
        (((text, score, warnings),),) = translator.n_best([line], 1, prefixes)
        # The source's end id counts, too. A prefix does not count.
        assert len(text) == len(prefix or "") + len(line) + 1 + 4
        assert np.isfinite(score) and score < 0
        assert warnings[0] == CUT_OFF


def test_unlikely_translations_have_a_warning(model):
    heard = []
    translator = translator_of(model, warn=lambda *one: heard.append(one))
    lines = [line for line in LINES if line.strip()]
    best = [each for (each,) in translator.n_best(lines, 1)]
    pairs = [
        (line, each.text)
        for line, each in zip(lines, best, strict=True)
        if CUT_OFF not in each.warnings
    ]
    found = translator.score(*zip(*pairs, strict=True))
    means = sorted(
        {(each.log_prob / each.num_tokens, k) for k, each in enumerate(found)}
    )
    (low, first), *_, (high, last) = means
    assert low < high - 0.01
    translator.low_score = (low + high) / 2
    heard.clear()
    # The lowest segment of a text counts.
    texts = [pairs[last][0], f"{pairs[last][0]}\n{pairs[first][0]}", ""]
    translator.translate(texts)
    warnings = [one for one in heard if "unsure" in one[1]]
    assert warnings == [(1, LOW_SCORE.format(low, translator.low_score))]
