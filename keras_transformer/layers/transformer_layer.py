"""Base class of encoder layers and decoder layers, and of their stacks."""

import inspect

import keras

from keras_transformer.layers.add_norm import AddNorm
from keras_transformer.layers.child_layer import child_layer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.restricted_attention import RestrictedSelfAttention
from keras_transformer.numerics.activations import activation_name, get_activation


class TransformerLayer(keras.layers.Layer):
    """Base class with the arguments that layers and stacks share.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        value_dim: Width of values per head. If `None`, `key_dim` is used.
        dropout: Dropout rate of each sublayer's output.
        attention_dropout: Dropout rate of the attention scores (0 in the paper).
        normalization: `"post"` (the paper) or `"pre"` (see `AddNorm`).
        activation: Activation of the feed-forward network.
        attention_window: Number of positions to which each position attends in
            self-attention (see `RestrictedSelfAttention`). If `None`, all of them.
        score_mode: Score function of all attention layers (see `MultiHeadAttention`).
        attention_bias: Whether the projections of all attention layers have biases.
        layer_norm_epsilon: Constant added to the variance in layer normalizations.
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
        self.supports_masking = True

    def options(self):
        """Returns the constructor arguments of `TransformerLayer` as a dict."""
        return constructor_arguments(self, TransformerLayer)

    def get_config(self):
        activation = activation_name(self.activation)
        return {**super().get_config(), **self.options(), "activation": activation}

    def _self_attention(self):
        if self.attention_window is None:
            return self._attention("self_attention")
        return self._attention(
            "self_attention", RestrictedSelfAttention, window=self.attention_window
        )

    def _attention(self, name, layer_class=MultiHeadAttention, **kwargs):
        return child_layer(
            self,
            layer_class,
            name,
            self.num_heads,
            self.key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            use_bias=self.attention_bias,
            score_mode=self.score_mode,
            **kwargs,
        )

    def _feed_forward(self, name):
        return child_layer(self, FeedForward, name, self.d_ff, self.activation)

    def _add_norm(self, name):
        return child_layer(
            self,
            AddNorm,
            name,
            self.dropout,
            self.normalization,
            self.layer_norm_epsilon,
        )

    def compute_output_shape(self, inputs_shape, encoder_output_shape=None):
        return inputs_shape

    def compute_output_spec(self, *args, **kwargs):
        # Traces `call`, because the attention scores have shapes of their own.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def constructor_arguments(instance, layer_class, **values):
    """Returns a dict of the constructor arguments of `layer_class`.

    Arguments that are not in `values` are read from the attributes of `instance`.
    """
    parameters = inspect.signature(layer_class.__init__).parameters
    names = [name for name in parameters if name not in ("self", "kwargs")]
    return {
        name: values[name] if name in values else getattr(instance, name)
        for name in names
    }


def call_with_scores(layer, *args, return_attention_scores, **kwargs):
    """Calls a layer that can return attention scores.

    Returns:
        `(output, scores)`. Unless `return_attention_scores` is true, `scores` is
        `None`.
    """
    if return_attention_scores:
        return layer(*args, return_attention_scores=True, **kwargs)
    return layer(*args, **kwargs), None
