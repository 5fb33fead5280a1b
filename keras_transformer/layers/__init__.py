"""Keras layers for the boxes in Figures 1 and 2 of the paper."""

from keras_transformer.layers.add_norm import AddNorm
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import causal_mask, padding_mask
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positional_encoding import PositionalEncoding
from keras_transformer.layers.restricted_attention import RestrictedSelfAttention
from keras_transformer.layers.token_embedding import TokenEmbedding
from keras_transformer.layers.transformer_layer import TransformerLayer
from keras_transformer.numerics.dropout import Dropout
from keras_transformer.numerics.normalization import LayerNormalization

__all__ = [
    "AddNorm",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEncoding",
    "RestrictedSelfAttention",
    "TokenEmbedding",
    "TransformerLayer",
    "causal_mask",
    "padding_mask",
]
