"""Trains runs with `Trainer` on the backend of KERAS_BACKEND.

test_model_on_backends.py runs this script on JAX, where TensorFlow cannot be imported,
and `train` in its own process, on TensorFlow. The arguments are a corpus, and the
folders of the runs to train. A run that has begun is resumed. A name with "begun" stops
at step `INTERRUPTED`.
"""

import sys

if __name__ == "__main__":
    sys.modules["tensorflow"] = None

import keras
import numpy as np

from keras_transformer import pipelines, training
from keras_transformer.training.replicas import SingleProcess, jax_devices
from keras_transformer.training.step_ops import is_jax
from keras_transformer.transformer import Transformer

BATCH_TOKENS, STEPS, INTERRUPTED = 120, 5, 3


def build(vocabulary_size, dropout):
    """Returns a `TrainingModel` whose weights come from NumPy."""
    model = Transformer(vocabulary_size, 1, 16, 32, 2, dropout=dropout)
    model = training.TrainingModel(model, token_dropout=dropout)
    optimizer = training.FusedAdam(0.01, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    rng = np.random.default_rng(0)
    for weight in model.transformer.trainable_weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    return model


def train(corpus, folder, steps=STEPS, dropout=0.0):
    """Trains a run up to step `steps`."""
    folder.mkdir(exist_ok=True)
    keras.utils.set_random_seed(1)
    with jax_devices() if is_jax() else _one_device() as workers:
        model = build(int(max(map(np.max, _ids(corpus)))) + 1, dropout)
        calls, transformer = [], model.transformer
        decode = transformer.decoder_output
        transformer.decoder_output = lambda *inputs, **options: (
            calls.append(inputs) or decode(*inputs, **options)
        )
        trainer = training.Trainer(model, folder, workers=workers)
        arguments = {
            "start_step": trainer.restore(),
            "num_replicas": workers.num_replicas,
        }
        if is_jax():
            batches = pipelines.TrainingBatches(corpus, BATCH_TOKENS, **arguments)
        else:
            batches = pipelines.training_dataset(
                corpus, BATCH_TOKENS, pad_to_bucket=True, **arguments
            )
        trainer.fit(
            batches,
            steps,
            checkpoint_steps=2,
            log_steps=4,
            bar=False,
            validation_steps=2,
            # Any function of the weights, which are averaged here.
            validate=lambda: {"bleu": float(np.std(transformer.get_weights()[0]))},
        )
        # Each shape was traced once, before the first step.
        assert not is_jax() or len(calls) == len(batches.shapes)


def _ids(corpus):
    return [side for row in range(corpus.num_pairs) for side in corpus.pair(row)]


def _one_device():
    import contextlib

    return contextlib.nullcontext(SingleProcess())


if __name__ == "__main__":
    import pathlib

    corpus = pipelines.EncodedCorpus.load(sys.argv[1])
    for name in sys.argv[2:]:
        dropout = 0.1 if "dropout" in name else 0.0
        if "interrupted" in name or "begun" in name:
            train(corpus, pathlib.Path(name), INTERRUPTED, dropout)
        if "begun" not in name:
            train(corpus, pathlib.Path(name), dropout=dropout)
