"""Trains a plain Keras model with `fit`. Run by test_multi_worker.py for each worker.

The model is not built before `fit`, so Keras builds it from a batch.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from training_samples import VOCABULARY
from training_samples import dataset
from training_samples import weights_of

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.distributed.workers import Workers

STEPS = 10


def fit(workers):
    """Returns a model trained on the batches of `dataset()`, and {metric: value}."""
    keras.utils.set_random_seed(3)
    with workers.strategy.scope():
        model = kt.Transformer(
            VOCABULARY, num_layers=1, d_model=12, d_ff=20, num_heads=2, dropout=0.0
        )
        model.compile(
            # With Adam, even gradients twice as large would give the same updates.
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
