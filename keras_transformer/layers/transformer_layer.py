"""Base classes of encoder layers and decoder layers, and of their stacks."""

import keras

from keras_transformer.layers.add_norm import AddNorm
from keras_transformer.layers.base import child_layer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.restricted_attention import RestrictedSelfAttention
from keras_transformer.numerics.activations import activation_name, get_activation
from keras_transformer.numerics.normalization import LayerNormalization

# Arguments of `TransformerLayer`, which stacks hand to their layers.
LAYER_ARGUMENTS = (
    *("num_heads", "key_dim", "d_ff", "value_dim", "dropout", "attention_dropout"),
    *("normalization", "activation", "attention_window", "score_mode"),
    *("attention_bias", "layer_norm_epsilon", "positions", "max_distance"),
)


class TransformerLayer(keras.layers.Layer):
    """Base class of `EncoderLayer` and `DecoderLayer`, and of their stacks.

    Stacks have another argument before these, the number of layers N.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        value_dim: Width of values per head. If `None`, `key_dim` is used.
        dropout: Dropout rate of each sublayer's output.
        attention_dropout: Dropout rate of the attention scores (0 in the paper).
        normalization: `"post"` (the paper), after each sublayer, or `"pre"`, before it.
        activation: Activation of the feed-forward network.
        attention_window: Number of positions to which each position attends in
            self-attention. If `None`, all of them.
        score_mode: Score function of all attention layers: `"scaled_dot"` (the paper),
            `"dot"` (unscaled) or `"additive"`.
        attention_bias: Whether the projections of all attention layers have biases.
        layer_norm_epsilon: Constant added to the variance in layer normalizations.
        positions: `"relative"` or `"rotary"` for positions in self-attention. Other
            values change nothing in a layer.
        max_distance: Clipping distance k: positions at least k apart share one vector.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        d_ff,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        normalization="post",
        activation="relu",
        attention_window=None,
        score_mode="scaled_dot",
        attention_bias=False,
        layer_norm_epsilon=1e-6,
        positions="sinusoidal",
        max_distance=16,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.d_ff = d_ff
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.normalization = normalization
        self.activation = get_activation(activation)
        self.attention_window = attention_window
        self.score_mode = score_mode
        self.attention_bias = attention_bias
        self.layer_norm_epsilon = layer_norm_epsilon
        self.positions = positions
        self.max_distance = max_distance
        self.supports_masking = True

    def options(self):
        """Returns the values of `LAYER_ARGUMENTS`."""
        return {name: getattr(self, name) for name in LAYER_ARGUMENTS}

    def get_config(self):
        activation = activation_name(self.activation)
        return {**super().get_config(), **self.options(), "activation": activation}

    def _self_attention(self):
        options = {"positions": self.positions, "max_distance": self.max_distance}
        layer_class = MultiHeadAttention
        if self.attention_window is not None:
            layer_class = RestrictedSelfAttention
            options["window"] = self.attention_window
        return self._attention("self_attention", layer_class, **options)

    def _attention(self, name, layer_class=MultiHeadAttention, **options):
        options |= {"value_dim": self.value_dim, "dropout": self.attention_dropout}
        options |= {"use_bias": self.attention_bias, "score_mode": self.score_mode}
        return child_layer(
            self, layer_class, name, self.num_heads, self.key_dim, **options
        )

    def _feed_forward(self):
        return child_layer(
            self, FeedForward, "feed_forward", self.d_ff, self.activation
        )

    def _add_norm(self, name):
        options = self.dropout, self.normalization, self.layer_norm_epsilon
        return child_layer(self, AddNorm, name, *options)

    def compute_output_shape(self, inputs_shape, encoder_output_shape=None):
        return inputs_shape

    def compute_output_spec(self, *args, **kwargs):
        # Traces `call`, because the attention scores have shapes of their own.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class Stack(TransformerLayer):
    """Base class of `Encoder` and `Decoder`: layers with their own weights.

    With `normalization="pre"`, a layer normalization follows the last layer.
    """

    layer_class = None  # set by subclasses

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

    def build(self, *shapes):
        for layer in self.layers:
            layer.build(*shapes)
        if self.final_norm is not None:
            self.final_norm.build(shapes[0])

    def apply_layers(self, x, scores, *args, **kwargs):
        """Applies all layers, with these further arguments, to `x`.

        Each layer's attention scores are appended to `scores`, a list or `None`.
        """
        for layer in self.layers:
            x = collect_scores(layer, scores, x, *args, **kwargs)
        return x if self.final_norm is None else self.final_norm(x)

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}


def collect_scores(layer, scores, *args, **kwargs):
    """Returns the output of a layer that can also return attention scores.

    These are appended to `scores` if it is a list. If it is `None`, the layer need not
    compute them.
    """
    if scores is None:
        return layer(*args, **kwargs)
    output, found = layer(*args, **kwargs, return_attention_scores=True)
    scores.append(found)
    return output
