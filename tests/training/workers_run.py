"""Trains a `Transformer` with Keras's `compile` and `fit` as one of several workers.

    python workers_run.py FOLDER

test_multi_worker.py starts this script once per worker. The script writes the trained
weights and the metrics to `FOLDER/<worker>.npz`. The model is not built before `fit`,
so Keras builds it from a batch.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from training_samples import VOCABULARY, dataset, weights_of

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.training.workers import Workers

STEPS = 10


def fit(workers):
    """Trains on the batches of `dataset()`; returns the model and {metric: value}."""
    keras.utils.set_random_seed(3)
    with workers.strategy.scope():
        model = kt.Transformer(
            VOCABULARY, num_layers=1, d_model=12, d_ff=20, num_heads=2, dropout=0.0
        )
        model.compile(
            # Not Adam, whose updates stay the same if all gradients are twice as large.
            keras.optimizers.SGD(0.5),
            loss=training.SmoothedCrossEntropy(0.1),
            metrics=[training.Perplexity(), training.TokenAccuracy()],
        )

    def own_rows(inputs, labels):
        return tf.nest.map_structure(
            lambda ids: ids[workers.index :: workers.count], (inputs, labels)
        )

    history = model.fit(
        workers.distribute(dataset().map(own_rows)),
        steps_per_epoch=STEPS,
        shuffle=False,
        verbose=0,
    ).history
    return model, {name: values[0] for name, values in history.items()}


if __name__ == "__main__":
    workers = Workers()
    model, metrics = fit(workers)
    np.savez(
        pathlib.Path(sys.argv[1]) / f"{workers.index}.npz",
        *weights_of(model),
        perplexity=metrics["perplexity"],
        accuracy=metrics["accuracy"],
    )
