"""Prints a loss, two metrics and a learning rate for test_losses.py.

The environment variable KERAS_BACKEND selects the backend.
"""

import sys

import numpy as np

from keras_transformer import training

labels = np.array([[4, 7, 3], [3, 0, 0]], "int32")
logits = np.random.default_rng(1).normal(size=(2, 3, 11)).astype("float32")
perplexity, accuracy = training.Perplexity(), training.TokenAccuracy()
perplexity.update_state(labels, logits)
accuracy.update_state(labels, logits)
print(
    float(training.SmoothedCrossEntropy(0.1)(labels, logits)),
    float(perplexity.result()),
    float(accuracy.result()),
    float(training.PaperSchedule(512)(4)),
)
assert "tensorflow" not in sys.modules, "TensorFlow was imported"
