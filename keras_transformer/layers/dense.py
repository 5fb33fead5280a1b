"""Dense layer whose int8 weights can be saved as part of a model."""

import keras


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` that can be saved and loaded after `quantize("int8")`.

    Arguments, weights and results match `keras.layers.Dense`. A layer that contains
    `keras.layers.Dense` cannot be loaded after quantization, because the config of the
    outer layer does not record it. This class detects int8 weights when it loads them.
    """

    def quantize(self, mode=None, type_check=True, config=None):
        """Like `keras.layers.Dense.quantize`, but accepts this subclass.

        `type_check` has no effect.
        """
        return super().quantize(mode, type_check=False, config=config)

    def check_quantization(self):
        """Checks that the weights, once saved, can be loaded again.

        Raises:
            ValueError: If the layer is quantized in any way other than
                `quantize("int8")`.
        """
        mode, config = self.quantization_mode, self.quantization_config
        default = keras.quantizers.Int8QuantizationConfig()
        is_default = config is None or config.get_config() == default.get_config()
        if mode is not None and not (mode == "int8" and is_default):
            raise ValueError(
                'A quantized model can only be saved after `quantize("int8")` without '
                f"a `config`. Received: mode={mode!r}."
            )

    def save_own_variables(self, store):
        """Like `keras.layers.Dense.save_own_variables`, after `check_quantization`.

        Raises:
            ValueError: If the layer is quantized in any way other than
                `quantize("int8")`.
        """
        self.check_quantization()
        super().save_own_variables(store)

    def load_own_variables(self, store):
        """Like `keras.layers.Dense.load_own_variables`, but also loads int8 weights.

        If the stored weights are int8, this layer is quantized first.
        """
        is_int8 = "0" in store and store["0"].dtype == "int8"
        if self.built and self.quantization_mode is None and is_int8:
            self.quantize("int8")
        super().load_own_variables(store)
