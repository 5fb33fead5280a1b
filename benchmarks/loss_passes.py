"""Counts how often the loss of a training step passes over the logits, on JAX.

    python benchmarks/loss_passes.py

Prints a Markdown table. XLA's cost analysis of the compiled programs says how many
bytes they read and write; divided by the size of the logits in float32, these are
passes. The programs compute loss, likelihood and accuracy of a batch, and the gradients
with respect to the decoder's vectors and the output matrix: once from the logits, as
`Transformer.fit` with `SmoothedCrossEntropy` and two metrics does, once by
`projected_loss`, as `TrainingModel` does. Passes over other arrays, such as the matrix,
are included.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

from keras_transformer import training
from keras_transformer.training.projected_loss import projected_loss

TOKENS, VOCABULARY, WIDTH = 2048, 8000, 512
LABEL_SMOOTHING = 0.1


def on_logits(vectors, matrix, labels):
    """Returns the loss, and what the metrics compute from the same logits."""
    logits = vectors @ matrix.T.astype(vectors.dtype)
    loss = training.SmoothedCrossEntropy(LABEL_SMOOTHING)(labels[None], logits[None])
    likelihood = keras.ops.sparse_categorical_crossentropy(
        labels, logits.astype("float32"), from_logits=True
    )
    accuracy = keras.metrics.sparse_categorical_accuracy(labels, logits)
    return loss, (likelihood.sum(), accuracy.sum())


def projected(vectors, matrix, labels):
    operands = [vectors], matrix, labels, np.ones(TOKENS, "float32")
    sums = projected_loss(*operands, LABEL_SMOOTHING, chunk_tokens=TOKENS)
    return sums[0], (sums[1], sums[2])


def cost(function, dtype):
    """Returns the number of passes, GFLOP, and the MiB of intermediate arrays."""
    vectors = np.zeros((TOKENS, WIDTH), jax.numpy.dtype(dtype))
    matrix = np.zeros((VOCABULARY, WIDTH), "float32")
    labels = np.zeros(TOKENS, "int32")
    gradients = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)
    compiled = jax.jit(gradients).lower(vectors, matrix, labels).compile()
    costs, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return (
        costs["bytes accessed"] / (TOKENS * VOCABULARY * 4),
        costs["flops"] / 1e9,
        memory.temp_size_in_bytes / 2**20,
    )


print("| vectors | loss | passes | GFLOP | intermediate MiB |")
print("| --- | --- | --- | --- | --- |")
for dtype in ("float32", "bfloat16"):
    for name, function in (("on logits", on_logits), ("projected", projected)):
        passes, flops, mib = cost(function, dtype)
        print(f"| {dtype} | {name} | {passes:.1f} | {flops:.1f} | {mib:.0f} |")
