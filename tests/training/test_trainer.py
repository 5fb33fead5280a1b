"""The `Trainer`: logs, early stopping, and a model that learns."""

import json
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    END,
    START,
    ResettableModel,
    dataset,
    steps_in,
    tiny_training_model,
)

import keras_transformer as kt
from keras_transformer import training


def tensorboard_scalars(folder):
    """Returns `{name: {step: value}}` of the event files in a folder."""
    scalars = {}
    for path in folder.glob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                scalars.setdefault(value.tag, {})[event.step] = number
    return scalars


def test_trainer_rejects_invalid_arguments(tmp_path):
    model = tiny_training_model()
    with pytest.raises(ValueError, match="`keep` must be at least 1"):
        training.Trainer(model, tmp_path, keep=0)
    trainer = training.Trainer(model, tmp_path)
    with pytest.raises(ValueError, match=r"`metric` must be one of bleu.* 'loss'"):
        trainer.fit(dataset(), 1, validate=dict, metric="loss")
    model.compile("sgd", steps_per_execution=4)
    with pytest.raises(ValueError, match="`steps_per_execution` must be 1"):
        training.Trainer(model, tmp_path)


def test_patience_counts_validations_of_one_metric(tmp_path):
    """A run that stopped early trains on after a change of `metric`."""
    trainer = training.Trainer(tiny_training_model(), tmp_path)
    settings = {
        "validate": lambda: {"bleu": 1.0, "chrf": 1.0},
        "validation_steps": 1,
        "patience": 2,
    }
    for metric, last_step in (("bleu", 3), ("bleu", 3), ("chrf", 6)):
        done = trainer.progress.step
        trainer.fit(dataset(done), 9, metric=metric, bar=False, **settings)
        assert trainer.progress.step == last_step


def test_trainer_logs_metrics_every_four_steps(tmp_path, capsys):
    """Each line has the metrics of its 4 steps, weighted by tokens."""
    resettable = ResettableModel(tiny_training_model())
    trainer = training.Trainer(resettable.reset(), tmp_path)
    scores = iter([3.0, 2.5])
    trainer.fit(
        dataset(),
        11,
        checkpoint_steps=5,
        validate=lambda: {"perplexity": next(scores)},
        validation_steps=5,
        metric="perplexity",
        log_steps=4,
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["split"], row["step"]) for row in rows] == [
        ("train", 4),
        ("validation", 5),
        ("train", 8),
        ("validation", 10),
    ]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)

    # Plain `fit` with the same steps, in epochs of 4, gives the expected metrics.
    again = resettable.reset()
    history = again.fit(
        dataset(), steps_per_epoch=4, epochs=2, shuffle=False, verbose=0
    ).history
    for index, row in enumerate((rows[0], rows[2])):
        for name in ("loss", "perplexity", "accuracy"):
            assert row[name] == pytest.approx(history[name][index], abs=2e-6), name
        step = 4 * (index + 1)
        rate = float(again.optimizer._learning_rate(step))
        assert row["learning_rate"] == pytest.approx(rate, abs=1e-6)
        assert row["tokens_per_second"] > 0

    train = tensorboard_scalars(tmp_path / "logs" / "train")
    assert list(train["loss"]) == [4, 8]
    assert train["loss"][8] == pytest.approx(rows[2]["loss"], abs=1e-6)
    validation = tensorboard_scalars(tmp_path / "logs" / "validation")
    assert validation == {"perplexity": {5: 3.0, 10: 2.5}}

    assert (tmp_path / "best.keras").is_file()
    assert steps_in(tmp_path / "checkpoints") == [5, 10, 11]
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"step 11 of 11: loss \d\.\d{3}, [\d,]+ target tokens/s, "
        r"validation perplexity 2\.50, 0:00 left",
        last,
    ), last


# The copy task: the model must repeat words of 1 to 7 random ids.
VOCABULARY, LONGEST = 14, 7


def random_words(rng, count):
    """Returns rows of random ids, the end id and padding: `[count, LONGEST + 1]`."""
    ids = rng.integers(4, VOCABULARY, (count, LONGEST + 1))
    lengths = rng.integers(1, LONGEST + 1, (count, 1))
    positions = np.arange(LONGEST + 1)
    ids = np.where(positions < lengths, ids, END * (positions == lengths))
    return ids.astype("int32")


def copy_batches(seed):
    rng = np.random.default_rng(seed)
    while True:
        labels = random_words(rng, 64)
        starts = np.full((64, 1), START)
        shifted = np.where(labels[:, 1:] > 0, labels[:, :-1], 0)
        target_ids = np.concatenate([starts, shifted], axis=1).astype("int32")
        yield {"source_ids": labels, "target_ids": target_ids}, labels


def decode_greedily(model, source_ids):
    """Returns greedily chosen ids `[batch, LONGEST + 1]`, 0 after the end id."""
    target_ids = np.full((len(source_ids), 1), START, "int32")
    ended = np.zeros(len(source_ids), bool)
    for _ in range(LONGEST + 1):
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        best = np.argmax(model(inputs)[:, -1], axis=-1).astype("int32")
        best[ended] = 0
        ended |= best == END
        target_ids = np.concatenate([target_ids, best[:, None]], axis=1)
    return target_ids[:, 1:]


@pytest.mark.slow
def test_model_learns_to_copy(tmp_path):
    """The model copies over 99% of unseen tokens after at most 60 s of CPU time."""
    keras.utils.set_random_seed(1)
    transformer = kt.Transformer(
        VOCABULARY,
        num_layers=1,
        d_model=32,
        d_ff=64,
        num_heads=4,
        dropout=0.0,
        normalization="pre",
    )
    model = training.TrainingModel(transformer)
    schedule = training.InverseSquareRoot(0.01, 60)
    model.compile(keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    ids = tf.TensorSpec([64, LONGEST + 1], tf.int32)
    batches = tf.data.Dataset.from_generator(
        lambda: copy_batches(1),
        output_signature=({"source_ids": ids, "target_ids": ids}, ids),
    )
    trainer = training.Trainer(model, tmp_path)
    started = time.process_time()
    trainer.fit(batches, 700, bar=False)
    # CPU time does not depend on the machine's other work.
    assert time.process_time() - started < 60
    unseen = random_words(np.random.default_rng(2), 211)
    copies = decode_greedily(transformer, unseen)
    exact = np.mean((copies == unseen)[unseen > 0])
    assert exact > 0.99, exact
