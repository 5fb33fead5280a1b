"""Noisy copies of pairs in training batches."""

import random
from collections import Counter

import numpy as np
import pytest

from keras_transformer import pipelines
from keras_transformer.pipelines.noise import KINDS, NoisyCorpus

TAGS = ["<BT>", ">>fra<<"]
NUM_PAIRS = 120
SHARES = {
    "lowercase": 0.25,
    "capitals": 0.05,
    "final_punctuation": 0.2,
    "typos": 0.4,
    "drop_words": 0.5,
    "foreign_words": 0.1,
    "mask": 0.1,
    "join": 0.3,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The texts of a corpus, its tokenizer and its folder."""
    generator = random.Random(3)
    words = ["Ada", "builds", "an", "old", "bridge", "near", "Oslo", "und", "grün"]

    def sentence(number):
        return f"{number} {' '.join(generator.choices(words, k=9))}."

    # Each source names its pair.
    pairs = [
        (f"{TAGS[n % 2]} {sentence(n)}", sentence(n + 500)) for n in range(NUM_PAIRS)
    ]
    texts = [text for pair in pairs for text in pair]
    tokenizer = pipelines.train_tokenizer("bpe", texts, 340, symbols=TAGS)
    folder = tmp_path_factory.mktemp("noise") / "ids"
    pipelines.encode_corpus(pairs, tokenizer, tokenizer, folder)
    return pairs, tokenizer, folder


def copies(data, kind, epoch=0, seed=1, parts=None):
    """Returns the pair, the ids and the texts of each copy with a kind of noise."""
    pairs, tokenizer, folder = data
    arguments = seed, TAGS, 256, parts
    corpus = NoisyCorpus.load(folder, None, {kind: 0.5}, tokenizer, *arguments)
    rows = np.arange(NUM_PAIRS) + NUM_PAIRS
    source_ids, _, labels = corpus.padded_batch(rows, epoch=epoch)
    texts = [tokenizer.detokenize(ids).numpy() for ids in (source_ids, labels)]
    texts = [[text.decode() for text in side] for side in texts]
    return zip(pairs, source_ids, *texts, strict=True)


def lower(source):
    """Returns a source in lowercase, without its tag."""
    return source.partition(" ")[2].lower()


def test_copies_have_the_noise_of_their_kind(data):
    def is_spelled_alike(text, other):
        # Each typo omits, adds or changes at most two letters.
        difference = Counter(text)
        difference.subtract(other)
        return sum(map(abs, difference.values())) <= 4

    changed = Counter()
    for kind in KINDS:
        for (source, target), ids, text, translation in copies(data, kind):
            tag = source.split(" ")[0]
            assert text.split(" ")[0] == tag
            changed[kind] += (source, target) != (text, translation)
            is_same = translation == target
            if kind == "lowercase":
                assert is_same and lower(text) == lower(source)
            elif kind == "capitals":
                assert is_same or translation == target.upper()
                assert lower(text) == lower(source)
            elif kind == "final_punctuation":
                assert (text, translation) == (source[:-1], target[:-1])
            elif kind == "typos":
                assert is_same and is_spelled_alike(text, source)
            elif kind == "drop_words":
                assert is_same and not Counter(text.split()) - Counter(source.split())
            elif kind == "foreign_words":
                assert source.partition(" ")[2] in text and target in translation
                words = [
                    new.replace(old, "").strip(" ():")
                    for new, old in (
                        (text.partition(" ")[2], source.partition(" ")[2]),
                        (translation, target),
                    )
                ]
                assert words[0] == words[1] and " " not in words[0]
            elif kind == "mask":
                unknown = np.count_nonzero(ids == 1)
                assert is_same and 0 <= unknown < np.count_nonzero(ids) / 2
            elif text != source:
                second = text.removeprefix(source).strip()
                others = dict(data[0])
                assert translation == f"{target} {others[f'{tag} {second}']}"
    # Many copies fit into the lengths for which they are planned. In capitals, the
    # words of this small vocabulary are single letters.
    assert min(changed.values()) > NUM_PAIRS / 3, changed


def test_noise_depends_on_seed_and_epoch(data):
    def texts(**options):
        return [text for *_, text, _ in copies(data, "typos", **options)]

    assert texts() == texts()
    assert texts() != texts(epoch=1) and texts() != texts(seed=2)


def test_joined_pairs_are_different_ones_of_a_corpus(data, tmp_path):
    """Pairs below number 40 are of a first corpus."""
    pairs, tokenizer, _ = data

    def number(text):
        return int(text.split()[0])

    joined = 0
    for (source, _), _, text, _ in copies(data, "join", parts=lambda n: n > 40):
        text = text.removeprefix(source).split(" ", 1)[-1].strip()
        if text:
            first, second = number(source.split(" ", 1)[1]), number(text)
            joined += 1
            assert (first < 40) == (second < 40)
    assert joined > 50
    arguments = pairs[:2], tokenizer, tokenizer, tmp_path / "ids"
    pipelines.encode_corpus(*arguments, bpe_dropout=0.5, num_segmentations=40)
    corpus = NoisyCorpus.load(tmp_path / "ids", None, {"join": 0.5}, tokenizer)
    sources, *_ = corpus.padded_batch(np.arange(80, 160))
    texts = {text.decode() for text in tokenizer.detokenize(sources).numpy()}
    first, second = (source for source, _ in pairs[:2])
    assert texts == {f"{first} {second}", f"{second} {first}"}


@pytest.fixture
def noisy(data):
    _, tokenizer, folder = data
    weights = pipelines.MixedPairs([data[0][:40], data[0][40:]], [1.0, 2.0]).weights
    return NoisyCorpus.load(folder, weights, SHARES, tokenizer, 1, TAGS)


@pytest.mark.parametrize("is_keras", [False, True])
def test_epoch_contains_copies_beside_all_pairs(data, noisy, is_keras):
    """A resumed dataset has the same noise. Copies are as frequent as their shares."""
    budget = 400

    def batches(start, count):
        if is_keras:
            found = pipelines.TrainingBatches(noisy, budget, 7, start)
            return [found[number] for number in range(count)]
        return list(pipelines.training_dataset(noisy, budget, 7, start).take(count))

    steps = pipelines.steps_per_epoch(noisy, budget)
    if is_keras:
        steps = pipelines.TrainingBatches(noisy, budget).steps_per_epoch
    found = batches(0, steps)
    for (inputs, labels), (again, _) in zip(
        found[-5:], batches(steps - 5, 5), strict=True
    ):
        assert np.array_equal(inputs["source_ids"], again["source_ids"])
        for ids in (inputs["source_ids"], labels):
            assert np.asarray(ids).size <= budget
    rows = [np.asarray(inputs["source_ids"]) for inputs, _ in found]
    count = sum(np.count_nonzero(batch[:, 0]) for batch in rows)
    per_epoch = (40 + 2 * 80) * (1 + sum(SHARES.values()))
    assert count == pytest.approx(per_epoch, abs=2 * len(SHARES))
    clean = {tuple(noisy.pair(n)[0].tolist()) for n in range(NUM_PAIRS)}
    drawn = Counter(tuple(row[row > 0].tolist()) for batch in rows for row in batch)
    assert all(drawn[row] for row in clean)


def test_copies_are_located_at_their_pairs(data, noisy):
    assert noisy.num_pairs == NUM_PAIRS
    _, leaf_of_row = noisy.plan(400)
    assert leaf_of_row.nbytes == NUM_PAIRS * (1 + len(SHARES))  # all that grows so
    indices = pipelines.batch_indices(noisy, 400, 7, 3)
    assert (indices >= NUM_PAIRS).any()
    assert noisy.numbers(indices).tolist() == (indices % NUM_PAIRS + 1).tolist()
