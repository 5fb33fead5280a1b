"""The decoder's matrices in an export for lone sentences, which XLA compiles."""

import contextlib

import tensorflow as tf

from keras_transformer.numerics.matrices import laid_out
from keras_transformer.numerics.matrices import whole


class Kernels:
    """The decoder's matrices, once, in the blocks that XLA's programs read.

    What XLA's programs lay out they lay out anew at every step, so that the blocks lie
    in the files. What else is computed with these matrices has them made whole of the
    blocks at each call, which takes no longer than copying them.

    Args:
        model: `Transformer`.
    """

    def __init__(self, model):
        self._decoder = model.decoder
        self.variables = tf.nest.map_structure(
            tf.Variable, model.decoding_kernels(blocks=True)
        )
        self._layers = []
        # A quantized decoder multiplies by what it has.
        if "dense" in self.variables:
            self._layers = model.decoder.dense_layers()
            for layer in model.decoder.layers:
                self._layers += layer.self_attention.input_denses()

    def replaced(self):
        """The model's variables that the blocks stand for."""
        return [layer.kernel for layer in self._layers]

    def blocks(self):
        """What `translate_ids` takes, for XLA."""
        return tf.nest.map_structure(tf.convert_to_tensor, self.variables)

    def whole(self):
        """What `translate_ids` takes elsewhere; None: what the model makes itself."""
        if not self._layers:
            return None
        blocks = self.blocks()
        return {
            "output": whole(blocks["output"]),
            "self_attention": tuple(
                {**each, "kernel": whole(each["kernel"])}
                for each in blocks["self_attention"]
            ),
            "dense": tuple(map(whole, blocks["dense"])),
        }

    @contextlib.contextmanager
    def in_use(self):
        """Within it, the decoder's layers multiply by matrices made whole."""
        kernels = self.whole()
        if kernels is None:
            yield
            return
        matrices = list(kernels["dense"])
        pairs = zip(self._decoder.layers, kernels["self_attention"], strict=True)
        for layer, joined in pairs:
            widths = [each.units for each in layer.self_attention.input_denses()]
            matrices += tf.split(joined["kernel"], widths, axis=1)
        with laid_out(self._layers, matrices):
            yield
