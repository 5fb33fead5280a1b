"""Benchmark system: KerasHub layers, trained by `fit` with or without XLA.

training.py starts it, and `interleaved` sends it turns.
"""

import sys

import interleaved
import keras
import keras_hub
import tensorflow as tf
import workload
from keras import ops

size, folder, compiler, num_batches = sys.argv[1:]
settings = workload.settings(size)
width, dropout = settings["d_model"], settings["dropout"]


def build():
    embedding = keras_hub.layers.TokenAndPositionEmbedding(
        workload.VOCABULARY, 256, width, mask_zero=True
    )
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    common = {
        "intermediate_dim": settings["d_ff"],
        "num_heads": settings["num_heads"],
        "dropout": dropout,
    }
    x = keras.layers.Dropout(dropout)(embedding(source))
    for _ in range(settings["num_layers"]):
        x = keras_hub.layers.TransformerEncoder(**common)(x)
    y = keras.layers.Dropout(dropout)(embedding(target))
    for _ in range(settings["num_layers"]):
        y = keras_hub.layers.TransformerDecoder(**common)(y, x)
    logits = embedding.token_embedding(y, reverse=True)
    return keras.Model([source, target], logits)


def smoothed_loss(labels, logits):
    log_p = ops.log_softmax(logits)
    on_label = ops.take_along_axis(log_p, ops.cast(labels, "int32")[..., None], -1)
    share = workload.LABEL_SMOOTHING
    loss = -(1 - share) * on_label[..., 0] - share * ops.mean(log_p, axis=-1)
    real = ops.cast(labels != 0, "float32")
    return ops.sum(loss * real) / ops.sum(real)


class Turns(keras.callbacks.Callback):
    """Divides a single call of `fit` into turns of several steps."""

    def on_train_begin(self, logs=None):
        self.arguments, self.done = channel.receive(), 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done < self.arguments["steps"]:
            return
        loss = float(logs["loss"])
        seconds = channel.seconds()
        channel.send(
            seconds=seconds, rate=self.arguments["tokens"] / seconds, loss=loss
        )
        self.arguments, self.done = channel.receive(), 0
        if self.arguments is None:
            self.model.stop_training = True


def pairs(inputs, labels):
    # Without sample weights, Keras would weight the loss by the mask of the logits.
    return (inputs["source_ids"], inputs["target_ids"]), labels, tf.ones(1)


xla = compiler == "xla"
model = build()
model.compile(
    keras.optimizers.Adam(1e-4, 0.9, 0.98, 1e-9),
    loss=smoothed_loss,
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    jit_compile=xla,
)
batches = workload.padded_dataset(folder) if xla else workload.dataset(folder)
batches = batches.map(pairs)
channel = interleaved.Channel()
if xla:
    # XLA compiles once per shape, which must happen before the first turn.
    shapes = {}
    for batch in batches.take(int(num_batches)):
        shapes.setdefault(tuple(map(tuple, (ids.shape for ids in batch[0]))), batch)
    for batch in shapes.values():
        model.train_on_batch(*batch)
channel.send()
model.fit(batches, steps_per_epoch=10**6, callbacks=[Turns()], verbose=1)
