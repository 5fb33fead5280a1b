"""Benchmark system: this package's Trainer with pipeline, metrics and progress bar.

training.py and numerics_runs.py start it, and `interleaved` sends it turns. Options are
"N parts", "bfloat16_matmul" (see `OPTIONS` in training.py) and "plain layers": Keras's
dropout and layer normalization.
"""

import sys
import tempfile

import interleaved
import tensorflow as tf
import workload

import keras_transformer as kt
from keras_transformer import training

size, folder, *options = sys.argv[1:]
if "plain layers" in options:
    for layer_class in (kt.layers.Dropout, kt.layers.LayerNormalization):
        layer_class.call = layer_class.__base__.call
counts = [int(each.split()[0]) for each in options if "part" in each]
parts = counts[0] if counts else interleaved.THREADS
parallel = min(parts, interleaved.THREADS)
# The same threads as in `keras-transformer train`. That command would not set them in
# this process, because the benchmark sets the environment variables for threads.
tf.config.threading.set_inter_op_parallelism_threads(interleaved.THREADS)
tf.config.threading.set_intra_op_parallelism_threads(interleaved.THREADS // parallel)
# `fit` builds its own iterator, so the pipeline is part of the measurement.
batches = workload.dataset(folder)
transformer = kt.Transformer(
    workload.VOCABULARY,
    attention_dropout=workload.DROPOUT,
    **workload.settings(size),
)
transformer.build({"source_ids": (None, None), "target_ids": (None, None)})
model = training.TrainingModel(
    transformer,
    workload.LABEL_SMOOTHING,
    gradient_accumulation_steps=parts // parallel,
    parallel_parts=parallel,
)
model.compile(
    training.FusedAdam(training.NoamSchedule(transformer.d_model), 0.9, 0.98, 1e-9),
    jit_compile=False,
)
model.build({"source_ids": (None, None), "target_ids": (None, None)})
channel = interleaved.Channel()
channel.send()
arguments = channel.receive()


def end_of_turn():
    """Ends a turn and waits for the next. `fit` calls it in place of a validation."""
    global arguments
    seconds = channel.seconds()
    channel.send(
        seconds=seconds,
        rate=arguments["tokens"] / seconds,
        loss=float(model.loss_metric.result()),
    )
    arguments = channel.receive()
    if arguments is None:
        model.stop_training = True
    return {"perplexity": 1.0}


with (
    tempfile.TemporaryDirectory() as run,
    training.automatic_bfloat16("bfloat16_matmul" in options),
):
    trainer = training.Trainer(model, run)
    # No perplexity is below 0, so best.keras is never written within a turn.
    trainer.progress.record_score("perplexity", 0.0)
    trainer.fit(
        batches,
        10**6,
        checkpoint_minutes=1e6,
        validate=end_of_turn,
        validation_steps=arguments["steps"],
        log_steps=10**6,
        metric="perplexity",
    )
