"""What encoder layers, decoder layers and their stacks have in common."""

from keras_transformer.layers.transformer_layer import Block
from keras_transformer.numerics.normalization import LayerNormalization


class Stack(Block):
    """`num_layers` identical layers; pre-norm stacks end in a normalisation.

    Args:
        num_layers: Number of layers, N.
        **kwargs: As `Block`.

    Raises:
        ValueError: `num_layers` below 1.
    """

    layer_class = None

    def __init__(self, num_layers, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        if num_layers < 1:
            raise ValueError(f"`num_layers` must be at least 1. Received: {num_layers}")
        self.num_layers = num_layers
        self.layers = [
            self.layer_class(
                num_heads,
                key_dim,
                d_ff,
                value_dim=self.value_dim,
                dropout=self.dropout,
                attention_dropout=self.attention_dropout,
                normalization=self.normalization,
                activation=self.activation,
                attention_window=self.attention_window,
                score=self.score,
                dtype=self.dtype_policy,
                name=f"layer_{index}",
            )
            for index in range(num_layers)
        ]
        self.final_norm = None
        if self.normalization == "pre":
            self.final_norm = LayerNormalization(
                epsilon=1e-6, dtype=self.dtype_policy, name="final_norm"
            )

    def _normalize(self, x):
        return x if self.final_norm is None else self.final_norm(x)

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}
