"""Trains on two replicas and writes the weights. Run by test_replicas.py.

    replicas_run.py FOLDER NAME...

The script trains the named models of `RUNS`. Without names, it trains models whose
gradients overflow on one replica, and a run that is interrupted and resumed, and writes
what dropout drops on each replica. It needs a new process because logical devices must
be set before TensorFlow uses a device.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from training_samples import (
    dataset,
    plain_model,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.training.consistency import draw_token_factors

STEPS = 10
# (source, target) lengths of the 6 rows of a global batch. Each replica gets 3 rows. In
# LENGTHS, the first replica has 12 target tokens and an empty row, the second has 9
# target tokens. In LAST_PADDED, the second replica has only padding.
LENGTHS = ((5, 7), (2, 5), (0, 0), (4, 2), (7, 1), (3, 6))
LAST_PADDED = ((5, 7), (2, 3), (4, 2), (0, 0), (0, 0), (0, 0))


def sgd():
    # Adam's updates would hide a gradient that is twice as large.
    return keras.optimizers.SGD(0.5)


def fit(model, lengths=LENGTHS):
    history = model.fit(
        dataset(lengths=lengths), steps_per_epoch=STEPS, shuffle=False, verbose=0
    ).history
    return model, {name: values[0] for name, values in history.items()}


def step(**changes):
    return fit(tiny_training_model(sgd(), **changes))


def plain():
    return fit(plain_model(sgd()))


class OverflowOnSecondReplica(training.TrainingModel):
    """A model whose gradients are infinite on the second replica."""

    def _gradients(self, batch, scale):
        gradients, sums = super()._gradients(batch, scale)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        overflow = tf.where(tf.equal(replica, 1), float("inf"), 0.0)
        return [gradient + overflow for gradient in gradients], sums


def clipped():
    transformer = tiny_transformer()
    model = training.TrainingModel(transformer, 0.1, global_clipnorm=0.3)
    model.compile(sgd())
    return fit(model)


# Functions that train a model and return it with its metrics.
RUNS = {
    "step": step,
    "plain": plain,
    "clipped": clipped,
    "parts": lambda: fit(tiny_training_model(sgd(), parts=3), LAST_PADDED),
    "average": lambda: fit(
        tiny_training_model(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.6))
    ),
    "float16": lambda: step(dtype="mixed_float16"),
}


def skipped():
    """Returns the fault code of a skipped step (see `training.step_check`).

    The gradients overflow on the second replica. No weight may change.
    """
    model = OverflowOnSecondReplica(tiny_transformer())
    model.compile(sgd())
    before = weights_of(model)
    model.fit(dataset(), steps_per_epoch=2, shuffle=False, verbose=0)
    for weight, expected in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 0
    return int(tf.convert_to_tensor(model.last_fault))


def overflow():
    """Returns the loss scale, at first 64, after an overflow on the second replica."""
    model = OverflowOnSecondReplica(tiny_transformer(dtype="mixed_float16"))
    model.compile(keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=64.0))
    before = weights_of(model)
    model.fit(dataset(), steps_per_epoch=1, shuffle=False, verbose=0)
    for weight, expected in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    return float(tf.convert_to_tensor(model.optimizer.dynamic_scale))


def resumed(folder):
    """Returns the weights of a resumed and of an uninterrupted run, with dropout.

    The weights are followed by their moving averages.
    """

    def trainer(name, seed):
        (folder / name).mkdir(exist_ok=True)
        schedule = training.NoamSchedule(12, 4, scale=0.1)
        optimizer = training.FusedAdam(schedule, use_ema=True, ema_momentum=0.6)
        model = tiny_training_model(optimizer, dropout=0.3, seed=seed)
        return training.Trainer(model, folder / name)

    def all_weights(trainer):
        pairs = trainer.moving_average.pairs()
        averages = [tf.convert_to_tensor(each).numpy() for _, each in pairs]
        return [*weights_of(trainer.model), *averages]

    whole = trainer("whole", seed=3)
    whole.fit(dataset(), 7, log_steps=3, bar=False)
    trainer("cut", seed=3).fit(dataset(), 4, log_steps=3, bar=False)
    second = trainer("cut", seed=4)
    assert second.restore() == 4
    second.fit(dataset(4), 7, log_steps=3, bar=False)
    return all_weights(second), all_weights(whole)


def dropped(strategy):
    """Returns the result of dropout on each replica, in two steps, by layer."""
    dropout, generator = kt.layers.Dropout(0.5), keras.random.SeedGenerator()

    @tf.function
    def step():
        ones = tf.ones([20, 10])
        return [
            strategy.experimental_local_results(each)
            for each in strategy.run(
                lambda: (
                    dropout(ones, training=True),
                    draw_token_factors(ones, 0.5, generator),
                )
            )
        ]

    steps = [step(), step()]
    return {
        name: np.array([[each.numpy() for each in one[index]] for one in steps])
        for index, name in enumerate(("dropout", "tokens"))
    }


def main(folder, names):
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    for name in names:
        with strategy.scope():
            model, metrics = RUNS[name]()
        np.savez(folder / f"{name}.npz", *weights_of(model), **metrics)
    if names:
        return
    with strategy.scope():
        np.savez(folder / "overflow.npz", scale=overflow(), fault=skipped())
        cut, whole = resumed(folder)
        np.savez(folder / "dropped.npz", **dropped(strategy))
    np.savez(folder / "cut.npz", *cut)
    np.savez(folder / "whole.npz", *whole)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
