"""Base class of encoder and decoder: N identical layers (section 3.1 of the paper)."""

from keras_transformer.layers.child_layer import child_layer
from keras_transformer.layers.transformer_layer import (
    TransformerLayer,
    call_with_scores,
)
from keras_transformer.numerics.normalization import LayerNormalization


class Stack(TransformerLayer):
    """Stack of `num_layers` layers of the same kind, each with its own weights.

    With `normalization="pre"`, a layer normalization follows the last layer.

    Args:
        num_layers: Number of layers, N.
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward networks.
        **kwargs: Further arguments of `TransformerLayer`, such as `dropout`.

    Raises:
        ValueError: If `num_layers` is below 1.
    """

    # Class of the layers. Subclasses set it.
    layer_class = None

    def __init__(self, num_layers, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        if num_layers < 1:
            raise ValueError(
                f"`num_layers` must be at least 1. Received: {num_layers}."
            )
        self.num_layers = num_layers
        self.layers = [
            child_layer(self, self.layer_class, f"layer_{index}", **self.options())
            for index in range(num_layers)
        ]
        self.final_norm = None
        if self.normalization == "pre":
            self.final_norm = child_layer(
                self, LayerNormalization, "final_norm", epsilon=self.layer_norm_epsilon
            )

    def run(self, inputs, *args, return_attention_scores=False, **kwargs):
        """Runs `inputs` through all layers.

        Args:
            inputs: `[batch, length, d_model]`.
            *args: Positional arguments of each layer's `call`, after `inputs`.
            return_attention_scores: Whether to also return the attention scores.
            **kwargs: Keyword arguments of each layer's `call`.

        Returns:
            `[batch, length, d_model]`. With `return_attention_scores`, `(output,
            scores)`, where `scores` is a list with the attention scores of each layer.
        """
        x, scores = inputs, []
        kwargs["return_attention_scores"] = return_attention_scores
        for layer in self.layers:
            x, layer_scores = call_with_scores(layer, x, *args, **kwargs)
            scores.append(layer_scores)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return (x, scores) if return_attention_scores else x

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}
