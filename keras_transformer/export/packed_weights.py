"""Packed decoder kernels in an export, for XLA programs that translate one sentence.

A packed kernel is divided into blocks of columns. Each block is contiguous in memory,
so XLA reads it faster. See `numerics.matrices.pack_kernel`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.decoding.incremental import (
    LayerWeights,
    Weights,
    arrange_weights,
    decoder_denses,
)
from keras_transformer.numerics.matrices import unpack_kernel


class PackedWeights:
    """The decoder's kernels, stored once, in the packed layout that XLA programs read.

    If the kernels were stored unpacked, XLA would pack them at every step. Functions of
    the export that XLA does not compile unpack the kernels at each call, which takes as
    long as copying them. An export without XLA packs none.
    """

    def __init__(self, model, jit_compile=True):
        self._model = model
        # The variables are a flat list, because TensorFlow wraps the named tuples that
        # an export tracks. Where `weights` contains `None`, a layer's own kernel is
        # used (see `LayerWeights`).
        weights = arrange_weights(model, packed=True) if jit_compile else [None]
        flat = tf.nest.flatten(weights)
        self._structure = tf.nest.map_structure(lambda _: 0, weights)
        self._stored = [each is not None for each in flat]
        self.variables = [tf.Variable(each) for each in flat if each is not None]

    @property
    def replaces_layers(self):
        """True if all kernels are packed, so the layers' own need not be stored."""
        return all(self._stored)

    def packed(self):
        """Returns packed `Weights`, for XLA."""
        values = iter(map(tf.convert_to_tensor, self.variables))
        flat = [next(values) if stored else None for stored in self._stored]
        return tf.nest.pack_sequence_as(self._structure, flat)

    def unpacked(self):
        """Returns `Weights` with unpacked kernels."""
        weights = self.packed()
        layers = tuple(
            LayerWeights(*map(unpack_kernel, layer)) for layer in weights.layers
        )
        return Weights(layers, unpack_kernel(weights.output))

    def replaced_paths(self):
        """Returns the paths of the model's kernels that an export need not store."""
        if not self.replaces_layers:
            return set()
        return {kernel.path for kernel in self._kernels()}

    @contextlib.contextmanager
    def replace_kernels(self):
        """Context in which the decoder's layers use the stored kernels, unpacked."""
        if not self.replaces_layers:
            yield
            return
        kernels = []
        for layer, weights in zip(self._layers(), self.unpacked().layers, strict=True):
            # `qkv` is the fused kernel of the first three `Dense` layers.
            widths = [dense.units for dense in layer[:3]]
            kernels += [*tf.split(weights.qkv, widths, axis=1), *weights[1:]]
        mapping = zip(self._kernels(), kernels, strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            yield

    def _layers(self):
        """Returns the `Dense` layers of each decoder layer."""
        return map(decoder_denses, self._model.decoder.layers)

    def _kernels(self):
        """Returns the kernels of all `Dense` layers in the decoder, in order."""
        return [dense.kernel for layer in self._layers() for dense in layer]
