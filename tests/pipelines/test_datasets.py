"""`tf.data` datasets of batches, whose rows are traced back to pairs of the corpus.

A batch comes from a bucket of pairs with similar lengths. Buckets form a binary tree:
pairs that do not fill a bucket's last batch move to the parent.
"""

import itertools
from collections import Counter

import numpy as np
import prepared
import pytest
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    TrainingBatches,
    batch_indices,
    encode_corpus,
    evaluation_dataset,
    steps_per_epoch,
    train_tokenizer,
    training_dataset,
)

NUM_PAIRS = 607
# Largest number of ids on each side of a batch, padding included.
BUDGET = 211
START, END = 2, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Corpus of distinct sources, so that a row's source ids identify its pair."""
    generator = np.random.default_rng(11)
    words = ["eins", "two", "drei", "four", "fünf", "six", "sieben"]

    def sentence(number):
        return " ".join([str(number), *generator.choice(words, generator.poisson(4))])

    pairs = [(sentence(n), sentence(n) + " .") for n in range(NUM_PAIRS)]
    tokenizer = train_tokenizer("bpe", [text for pair in pairs for text in pair], 330)
    folder = tmp_path_factory.mktemp("corpus") / "ids"
    return encode_corpus(pairs, tokenizer, tokenizer, folder)


@pytest.fixture(scope="module")
def index_of_source(corpus):
    """Dict from the tuple of a source's ids to the index of its pair."""
    return {tuple(corpus.pair(n)[0].tolist()): n for n in range(NUM_PAIRS)}


def batches(dataset, count=None):
    taken = dataset if count is None else dataset.take(count)
    return [
        (inputs["source_ids"].numpy(), inputs["target_ids"].numpy(), labels.numpy())
        for inputs, labels in taken
    ]


def indices(batch, index_of_source):
    """Returns the pair index of each row of a batch, without padding rows."""
    rows = [tuple(row[row != 0].tolist()) for row in batch[0]]
    return [index_of_source[row] for row in rows if row]


def are_equal(left, right):
    return len(left) == len(right) and all(
        np.array_equal(a, b)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_labels_are_target_ids_shifted_by_one(corpus, index_of_source):
    dataset = training_dataset(corpus, BUDGET, seed=5)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    spec = tf.TensorSpec([None, None], tf.int32)
    names = {"source_ids": spec, "target_ids": spec}
    assert dataset.element_spec == (names, spec)
    for batch in batches(dataset, 9):
        source_ids, target_ids, labels = batch
        for row, index in enumerate(indices(batch, index_of_source)):
            source, target = (side.tolist() for side in corpus.pair(index))
            assert source[-1] == target[-1] == END
            missing = [0] * (labels.shape[1] - len(target))
            assert labels[row].tolist() == target + missing
            assert target_ids[row].tolist() == [START, *target[:-1], *missing]
            assert source_ids[row, : len(source)].tolist() == source
            assert not source_ids[row, len(source) :].any()


def test_epoch_contains_every_pair_once_under_budget(corpus, index_of_source):
    steps = steps_per_epoch(corpus, BUDGET)
    assert 25 < steps < 60
    two_epochs = batches(training_dataset(corpus, BUDGET, seed=3), 2 * steps)
    pairs = [n for batch in two_epochs for n in indices(batch, index_of_source)]
    first, second = pairs[:NUM_PAIRS], pairs[NUM_PAIRS:]
    assert Counter(first) == Counter(second) == Counter(range(NUM_PAIRS))
    assert first != second
    for source_ids, target_ids, labels in two_epochs:
        assert max(source_ids.size, target_ids.size) <= BUDGET
        assert labels.shape == target_ids.shape


def test_start_step_skips_batches(corpus):
    steps = steps_per_epoch(corpus, BUDGET)
    whole = batches(training_dataset(corpus, BUDGET, seed=2), 4 * steps + 20)
    for start in [0, 1, 17, *(n * steps + m for n in (1, 3) for m in (-1, 0, 1, 17))]:
        jumped = training_dataset(corpus, BUDGET, seed=2, start_step=start)
        expected = whole[start : start + steps + 3]
        assert are_equal(batches(jumped, steps + 3), expected)


def test_batch_indices_match_training_dataset(corpus, index_of_source):
    per_epoch = steps_per_epoch(corpus, BUDGET)
    for step in (1, 2, per_epoch, per_epoch + 1, 2 * per_epoch - 3):
        (found,) = batches(training_dataset(corpus, BUDGET, 5, step - 1), 1)
        located = batch_indices(corpus, BUDGET, 5, step)
        assert located.tolist() == indices(found, index_of_source)


def remove_padding_rows(batch):
    real = batch[0].any(axis=1)
    return tuple(array[real] for array in batch)


@pytest.mark.parametrize("num_replicas", [2, 3, 8])
def test_replicas_only_add_padding_rows(corpus, num_replicas):
    alone = batches(training_dataset(corpus, BUDGET, seed=4), 60)
    padded = batches(
        training_dataset(corpus, BUDGET, seed=4, num_replicas=num_replicas), 60
    )
    assert any(len(batch[0]) % num_replicas for batch in alone)
    for batch, wide in zip(alone, padded, strict=True):
        assert all(len(array) % num_replicas == 0 for array in wide)
        assert len(wide[0]) - len(batch[0]) < num_replicas
        extra = [array[len(batch[0]) :] for array in wide]
        assert not any(array.any() for array in extra)
    assert are_equal(alone, [remove_padding_rows(batch) for batch in padded])


@pytest.mark.parametrize(("count", "num_replicas"), [(2, 2), (3, 1), (2, 6)])
def test_shards_divide_every_batch(corpus, index_of_source, count, num_replicas):
    arguments = {"seed": 4, "num_replicas": num_replicas}
    whole = batches(training_dataset(corpus, BUDGET, **arguments), 31)
    shards = [
        batches(training_dataset(corpus, BUDGET, **arguments, shard=(n, count)), 31)
        for n in range(count)
    ]
    for batch, *parts in zip(whole, *shards, strict=True):
        pairs = [indices(part, index_of_source) for part in parts]
        together = sorted(n for part in pairs for n in part)
        assert together == sorted(indices(batch, index_of_source))
        assert len({part[0].shape for part in parts}) == 1
        assert len({part[1].shape for part in parts}) == 1
        assert parts[0][0].shape[1] == batch[0].shape[1]
        assert len(parts[0][0]) * count % num_replicas == 0


def test_training_batches_have_six_shapes_and_every_pair(corpus, index_of_source):
    dataset = TrainingBatches(corpus, BUDGET, seed=3)
    steps = dataset.steps_per_epoch
    taken = [dataset[step] for step in range(2 * steps)]
    taken = [(*inputs.values(), labels) for inputs, labels in taken]
    assert len({source_ids.shape for source_ids, _, _ in taken}) <= 6
    for batch in taken:
        assert len({array.shape for array in batch}) == 1
        assert batch[0].size <= BUDGET
    rows = [indices(batch, index_of_source) for batch in taken]
    first, second = (
        [*itertools.chain(*epoch)] for epoch in (rows[:steps], rows[steps:])
    )
    assert Counter(first) == Counter(second) == Counter(range(NUM_PAIRS))
    assert first != second
    # Only the last batch of an epoch has rows of padding.
    for row, batch in zip(rows[: steps - 1], taken, strict=False):
        assert len(row) == len(batch[0])
    later = TrainingBatches(corpus, BUDGET, seed=3, start_step=steps - 1)
    for step in range(3):
        inputs, labels = later[step]
        assert are_equal([(*inputs.values(), labels)], [taken[steps - 1 + step]])


def test_padded_buckets_are_the_training_batches(corpus, index_of_source):
    """tf.data forms the batches of one, and NumPy those of the other."""
    expected = TrainingBatches(corpus, BUDGET, 6, start_step=2)
    steps = expected.steps_per_epoch
    dataset = training_dataset(corpus, BUDGET, 6, start_step=2, pad_to_bucket=True)
    for step, batch in enumerate(batches(dataset, steps + 3)):
        inputs, labels = expected[step]
        assert are_equal([batch], [(*inputs.values(), labels)])
        pairs = batch_indices(corpus, BUDGET, 6, step + 3, pad_to_bucket=True)
        assert pairs.tolist() == indices(batch, index_of_source)


def test_evaluation_dataset_contains_every_pair_once(corpus, index_of_source):
    dataset = evaluation_dataset(corpus, BUDGET)
    taken = batches(dataset)
    assert len(taken) == dataset.cardinality()
    pairs = [n for batch in taken for n in indices(batch, index_of_source)]
    assert Counter(pairs) == Counter(range(NUM_PAIRS))
    for source_ids, target_ids, _ in taken:
        assert max(source_ids.size, target_ids.size) <= BUDGET
    assert are_equal(taken, batches(dataset))
    padded = batches(evaluation_dataset(corpus, BUDGET, num_replicas=4))
    assert {len(batch[0]) % 4 for batch in padded} == {0}
    assert are_equal(taken, [remove_padding_rows(batch) for batch in padded])


class NumberTokenizer:
    """Tokenizer of texts such as "8 0 9", with unusual special ids."""

    vocabulary_size, start_id, end_id, pad_id = 10, 5, 6, 7

    def fingerprint(self):
        return "numbers"

    def tokenize(self, strings):
        return tf.strings.to_number(tf.strings.split(strings), tf.int32)


def test_batches_have_the_special_ids_of_the_tokenizer(tmp_path):
    pairs = [("8 0 9", "0 8"), ("9", "8 9 0 8")]
    tokenizer = NumberTokenizer()
    corpus = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "ids")
    # With three replicas, the batch has a row of padding.
    ((source_ids, target_ids, labels),) = batches(
        training_dataset(corpus, 100, num_replicas=3), 1
    )
    rows = [source_ids.tolist(), target_ids.tolist(), labels.tolist()]
    assert sorted(zip(*rows, strict=True)) == [
        ([7, 7, 7, 7], [7, 7, 7, 7, 7], [7, 7, 7, 7, 7]),
        ([8, 0, 9, 6], [5, 0, 8, 7, 7], [0, 8, 6, 7, 7]),
        ([9, 6, 7, 7], [5, 8, 9, 0, 8], [8, 9, 0, 8, 6]),
    ]


def test_training_dataset_rejects_invalid_arguments(corpus):
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    for use in (training_dataset, evaluation_dataset, steps_per_epoch):
        with pytest.raises(DataError, match=f"Received: batch_tokens={longest - 1},"):
            use(corpus, longest - 1)
        use(corpus, longest)
    for name in ("seed", "start_step"):
        for use in (training_dataset, TrainingBatches):
            with pytest.raises(DataError, match=f"{name}=-1"):
                use(corpus, BUDGET, **{name: -1})
    for shard in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="shard"):
            training_dataset(corpus, BUDGET, shard=shard)


def test_mirrored_replicas_share_each_batch(corpus, tmp_path):
    """Needs a new process, because devices must be set before TensorFlow uses them."""
    script = f"""
import numpy as np
import tensorflow as tf
from keras_transformer import pipelines
cpu = tf.config.list_physical_devices("CPU")[0]
order = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, order)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
corpus = pipelines.EncodedCorpus.load({corpus.folder!r})
dataset = pipelines.training_dataset(corpus, {BUDGET}, seed=4, num_replicas=2)
distributed = iter(strategy.experimental_distribute_dataset(dataset))
for inputs, labels in dataset.take(7):
    parts = next(distributed)
    pairs = [(inputs[name], parts[0][name]) for name in inputs] + [(labels, parts[1])]
    for whole, part in pairs:
        values = [value.numpy() for value in strategy.experimental_local_results(part)]
        assert len(values) == 2 and len(values[0]) == len(values[1]) > 0
        assert np.array_equal(np.concatenate(values), whole)
print("shared")
"""
    done = prepared.run(script, folder=tmp_path)
    assert done.stdout.endswith("shared\n"), done.stderr
