"""What all layers build on: `Dense`, and layers inside other layers."""

import contextlib
import contextvars

import keras
from keras import ops

from keras_transformer.numerics.matrices import project

_zero_matrices = contextvars.ContextVar("zero_matrices", default=False)


@contextlib.contextmanager
def zero_matrices():
    """Builds layers with zeros in large matrices, whose values are loaded afterward.

    Random numbers for a whole model take longer than loading it. Only layers that this
    thread builds are affected.
    """
    token = _zero_matrices.set(True)
    try:
        yield
    finally:
        _zero_matrices.reset(token)


class MatrixLayer:
    """Mixin of layers with large matrices, for `zero_matrices`."""

    def add_weight(self, *args, **kwargs):
        if _zero_matrices.get():
            kwargs["initializer"] = "zeros"
        return super().add_weight(*args, **kwargs)


def child_layer(parent, layer_class, name, *args, **kwargs):
    """Returns a new layer with the parent's dtype policy and `trainable`.

    Keras hands neither to the layers that a constructor or `build` creates, so these
    would compute in float32, and train although their parent is frozen.
    """
    return layer_class(
        *args,
        **kwargs,
        dtype=parent.dtype_policy,
        trainable=parent.trainable,
        name=name,
    )


def inner_layers(parent, prefix="", seen=None):
    """Yields `(path, layer, parent)` of all layers in a layer, outer layers first.

    Paths consist of the names of attributes and the keys of lists and dicts, as in
    Keras's files of weights. The names of layers would differ between processes.
    """
    seen = set() if seen is None else seen
    # Private attributes come last, because Keras lists all layers in one.
    for name, value in sorted(
        vars(parent).items(), key=lambda item: (item[0].startswith("_"), item[0])
    ):
        if isinstance(value, dict):
            items = [(f"{name}/{key}", each) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            items = [(f"{name}/{index}", each) for index, each in enumerate(value)]
        else:
            items = [(name, value)]
        for path, layer in items:
            if isinstance(layer, keras.Layer) and layer not in seen:
                seen.add(layer)
                yield prefix + path, layer, parent
                yield from inner_layers(layer, f"{prefix}{path}/", seen)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(MatrixLayer, keras.layers.Dense):
    """`keras.layers.Dense` that can be saved and loaded after `quantize("int8")`.

    Arguments, weights and results match `keras.layers.Dense`. A layer that contains
    `keras.layers.Dense` cannot be loaded after quantization, because the config of the
    outer layer does not record it. This class detects int8 weights when it loads them.
    """

    def call(self, inputs, training=None):
        """Like `keras.layers.Dense.call`, with fewer operations of TensorFlow."""
        x = project(inputs, self.kernel)
        if self.bias is not None:
            x = ops.add(x, self.bias)
        return x if self.activation is None else self.activation(x)

    def quantize(self, mode=None, type_check=True, config=None):
        """Like `keras.layers.Dense.quantize`, but accepts this subclass.

        `type_check` has no effect.
        """
        return super().quantize(mode, type_check=False, config=config)

    def check_quantization(self):
        """Checks that the weights, once saved, can be loaded again."""
        mode, config = self.quantization_mode, self.quantization_config
        default = keras.quantizers.Int8QuantizationConfig()
        is_default = config is None or config.get_config() == default.get_config()
        if mode is not None and not (mode == "int8" and is_default):
            raise ValueError(
                'A quantized model can only be saved after `quantize("int8")` without '
                f"a `config`. Received: mode={mode!r}."
            )

    def save_own_variables(self, store):
        self.check_quantization()
        super().save_own_variables(store)

    def load_own_variables(self, store):
        is_int8 = "0" in store and store["0"].dtype == "int8"
        if self.built and self.quantization_mode is None and is_int8:
            self.quantize("int8")
        super().load_own_variables(store)
