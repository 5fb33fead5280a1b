"""Base class of encoder layers, decoder layers, and their stacks."""

import keras

from keras_transformer.layers.add_norm import AddNorm
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.restricted_attention import RestrictedSelfAttention


class TransformerLayer(keras.layers.Layer):
    """The arguments that all layers and stacks of Figure 1 share.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        value_dim: Width of values per head. If `None`, `key_dim` is used.
        dropout: Rate on each sublayer's output.
        attention_dropout: Rate on the attention scores (the paper uses none).
        normalization: `"post"` (the paper) or `"pre"`.
        activation: Activation of the feed-forward network.
        attention_window: Number of positions that self-attention attends to, see
            `RestrictedSelfAttention`. If `None`, all of them.
        score: Score function of all attentions, see `MultiHeadAttention`.
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
        score="scaled_dot",
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
        self.activation = keras.activations.get(activation)
        self.attention_window = attention_window
        self.score = score
        self.supports_masking = True

    def options(self):
        """Returns the arguments listed above."""
        return {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "d_ff": self.d_ff,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "normalization": self.normalization,
            "activation": self.activation,
            "attention_window": self.attention_window,
            "score": self.score,
        }

    def get_config(self):
        activation = keras.activations.serialize(self.activation)
        return {**super().get_config(), **self.options(), "activation": activation}

    def _self_attention(self):
        if self.attention_window is None:
            return self._attention("self_attention")
        return self._attention(
            "self_attention", RestrictedSelfAttention, window=self.attention_window
        )

    def _attention(self, name, layer_class=MultiHeadAttention, **kwargs):
        return layer_class(
            self.num_heads,
            self.key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            score=self.score,
            dtype=self.dtype_policy,
            name=name,
            **kwargs,
        )

    def _feed_forward(self, name):
        return FeedForward(
            self.d_ff, self.activation, dtype=self.dtype_policy, name=name
        )

    def _add_norm(self, name):
        return AddNorm(
            self.dropout, self.normalization, dtype=self.dtype_policy, name=name
        )

    def _output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def _scores_spec(self, queries, keys):
        shape = (queries.shape[0], self.num_heads, queries.shape[1], keys.shape[1])
        return keras.KerasTensor(shape, dtype="float32")


def with_scores(layer, *args, return_attention_scores, **kwargs):
    """Calls a layer that can return attention scores.

    Returns:
        The output, and the scores if `return_attention_scores`, else `None`.
    """
    if return_attention_scores:
        return layer(*args, return_attention_scores=True, **kwargs)
    return layer(*args, **kwargs), None
