"""Activations of the feed-forward networks: Keras's and `quick_gelu`."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
def quick_gelu(x):
    """Computes `x * sigmoid(1.702 x)`, the GELU of Marian before 2023."""
    return x * ops.sigmoid(1.702 * x)


def get_activation(activation):
    """Returns the activation function for a name. A function is returned unchanged."""
    if activation == quick_gelu.__name__:
        return quick_gelu
    return keras.activations.get(activation)


def activation_name(activation):
    """Returns an activation's name, or the Keras config of a custom function."""
    if activation is quick_gelu:
        return quick_gelu.__name__
    return keras.activations.serialize(activation)
