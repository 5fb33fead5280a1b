"""Base class of encoder layers, decoder layers and stacks."""

import keras

from keras_transformer.layers.add_norm import AddNorm
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.restricted_attention import RestrictedSelfAttention


class Block(keras.layers.Layer):
    """Arguments shared by the layers and stacks of Figure 1, and their parts.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        value_dim: Width of values per head. None: `key_dim`.
        dropout: Rate on each sub-layer's output.
        attention_dropout: Rate on the attention scores (the paper has none).
        normalization: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward network.
        attention_window: Positions that self-attention sees, see
            `RestrictedSelfAttention`. None: all of them.
        score: Of all attentions, see `MultiHeadAttention`.
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

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "d_ff": self.d_ff,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "normalization": self.normalization,
            "activation": keras.activations.serialize(self.activation),
            "attention_window": self.attention_window,
            "score": self.score,
        }
