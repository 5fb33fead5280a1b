"""The `Trainer`: logs, early stopping, and a model that learns."""

import json
import re
import time
import types

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
    tiny_transformer,
    weights_of,
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
                number = value.simple_value
                scalars.setdefault(value.tag, {})[event.step] = number
    return scalars


@pytest.fixture(scope="module")
def resettable():
    return ResettableModel(tiny_training_model())


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


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        # The second score is the best. An equal score is not better.
        ("bleu", [10.0, 20.0, 15.0, 20.0, 19.0]),
        ("perplexity", [10.0, 7.0, 7.0, 8.0, 9.0]),
    ],
)
def test_validation_stops_early_across_starts(
    resettable, tmp_path, caplog, metric, scores
):
    """With patience 3, training stops at the 5th validation, after one restart."""
    model, remaining, weights = resettable.reset(), iter(scores), []

    def validate():
        weights.append(weights_of(model))
        return {"other": 1.0, metric: next(remaining)}

    settings = {"validation_steps": 4, "metric": metric, "patience": 3, "bar": False}
    # The third start does not train.
    for first, last, end in ((0, 16, 16), (16, 100, 20), (20, 100, 20)):
        trainer = training.Trainer(model, tmp_path)
        assert trainer.restore() == first
        caplog.clear()
        with caplog.at_level("INFO", "keras_transformer"):
            trainer.fit(dataset(first), last, validate=validate, **settings)
        message = "stopped early at step 20: the last 3 validations did not improve"
        assert (message in caplog.text) == (end == 20)
        assert trainer.progress.step == end
        assert (trainer.progress.best_step, trainer.progress.best_score) == (
            8,
            scores[1],
        )
    stored = tiny_transformer(seed=8)
    stored.load_weights(tmp_path / "best.keras")
    for weight, expected in zip(weights_of(stored), weights[1], strict=True):
        np.testing.assert_array_equal(weight, expected)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [4, 8, 12, 16, 20]
    assert [row[metric] for row in rows] == scores
    assert {row["best_metric"] for row in rows} == {metric}
    assert [row["is_best"] for row in rows] == [True, True, False, False, False]


def test_patience_counts_validations_of_one_metric(resettable, tmp_path, monkeypatch):
    """A run that stopped early trains on after a change of `metric`.

    The time of validations is not training time.
    """
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("keras_transformer.training.callbacks.time", clock)

    def validate():
        clock.now += 1000
        return {"bleu": 1.0, "chrf": 1.0}

    trainer = training.Trainer(resettable.reset(), tmp_path)
    settings = {"validate": validate, "validation_steps": 1, "patience": 2}
    for metric, last_step in (("bleu", 3), ("bleu", 3), ("chrf", 6)):
        done = trainer.progress.step
        trainer.fit(dataset(done), 9, metric=metric, bar=False, **settings)
        assert trainer.progress.step == last_step
    assert (clock.now, trainer.progress.seconds) == (100 + 6 * 1000, 0)


def test_trainer_logs_metrics_every_four_steps(resettable, tmp_path, capsys):
    """Each line has the metrics of its 4 steps, weighted by tokens."""
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
        r"validation at 10: perplexity 2\.50, 0:00 left",
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


def copy_batch(rng, count):
    labels = random_words(rng, count)
    starts = np.full((count, 1), START)
    shifted = np.where(labels[:, 1:] > 0, labels[:, :-1], 0)
    target_ids = np.concatenate([starts, shifted], axis=1).astype("int32")
    return {"source_ids": labels, "target_ids": target_ids}, labels


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
    rng = np.random.default_rng(1)
    batches = tf.data.Dataset.from_generator(
        lambda: iter(lambda: copy_batch(rng, 64), None),
        output_signature=({"source_ids": ids, "target_ids": ids}, ids),
    )
    trainer = training.Trainer(model, tmp_path)
    started = time.process_time()
    trainer.fit(batches, 700, bar=False)
    # CPU time does not depend on the machine's other work.
    assert time.process_time() - started < 60
    inputs, labels = copy_batch(np.random.default_rng(2), 211)
    predicted = np.argmax(transformer(inputs), axis=-1)
    exact = np.mean((predicted == labels)[labels > 0])
    assert exact > 0.99, exact
