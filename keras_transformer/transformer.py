"""The Transformer: encoder and decoder with tied embeddings (Figure 1)."""

import keras
from keras import ops

from keras_transformer.layers import Decoder
from keras_transformer.layers import Dropout
from keras_transformer.layers import Encoder
from keras_transformer.layers import PositionalEncoding
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers import padding_mask
from keras_transformer.numerics.matrices import in_blocks
from keras_transformer.numerics.matrices import laid_out


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(keras.Model):
    """The model of section 3; its defaults are the paper's base model.

    One matrix of `vocabulary_size` rows embeds source and target and makes the
    logits (section 3.4).

    Args:
        vocabulary_size: Number of ids, the four special ones included.
        num_layers: Layers in the encoder, and in the decoder, N.
        d_model: Width of the residual stream.
        d_ff: Inner width of the feed-forward networks.
        num_heads: Number of attention heads, h.
        key_dim: Width of queries and keys per head, d_k. None: `d_model // num_heads`.
        value_dim: Width of values per head, d_v. None: `d_model // num_heads`.
        dropout: On sub-layer outputs, and on the sums of embeddings and positions.
        attention_dropout: On attention scores (the paper has none).
        positions: `"sinusoidal"` or `"learned"` (Table 3, row E).
        max_length: Number of learned positions, for `positions="learned"` only.
        normalization: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward networks.
        attention_window: Positions that self-attention sees, r of section 4, in
            encoder and decoder. None: all.
        score: Of all attentions: `"scaled_dot"` (the paper), `"dot"` or `"additive"`.
        pad_id: Id that fills rows up.
        output_size: Number of ids, from 0, that targets consist of and logits are made
            of, such as the symbols of trees; to scores others are the unknown id.
            None: all.

    Raises:
        ValueError: a size below 1, an `output_size` above `vocabulary_size`, unknown
            `positions` or `normalization`, or `d_model` that `num_heads` does not
            divide where `key_dim` or `value_dim` is to be inferred.
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        key_dim=None,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        positions="sinusoidal",
        max_length=None,
        normalization="post",
        activation="relu",
        attention_window=None,
        score="scaled_dot",
        pad_id=0,
        output_size=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, size in (
            ("num_heads", num_heads),
            ("key_dim", key_dim),
            ("value_dim", value_dim),
        ):
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {size}.")
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(
                '`positions` must be "sinusoidal" or "learned". '
                f"Received: {positions!r}."
            )
        if (key_dim is None or value_dim is None) and d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` where `key_dim` or `value_dim` is "
                f"not given. Received: num_heads={num_heads}, d_model={d_model}."
            )
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.d_model = d_model
        self.d_ff = d_ff
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.positions = positions
        self.max_length = max_length
        self.normalization = normalization
        self.activation = keras.activations.get(activation)
        self.attention_window = attention_window
        self.score = score
        self.pad_id = pad_id
        self.output_size = output_size
        policy = self.dtype_policy
        self.token_embedding = TokenEmbedding(
            vocabulary_size,
            d_model,
            pad_id,
            output_size,
            dtype=policy,
            name="token_embedding",
        )
        # Learned positions of source and target are different things; sinusoids
        # have no weights, so that one pair of layers serves both kinds.
        self.source_positions = PositionalEncoding(
            positions, max_length, dtype=policy, name="source_positions"
        )
        self.target_positions = PositionalEncoding(
            positions, max_length, dtype=policy, name="target_positions"
        )
        self.dropout_layer = Dropout(dropout, dtype=policy, name="embedding_dropout")
        stack = {
            "num_layers": num_layers,
            "num_heads": num_heads,
            "key_dim": key_dim or d_model // num_heads,
            "d_ff": d_ff,
            "value_dim": value_dim or d_model // num_heads,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "normalization": normalization,
            "activation": self.activation,
            "attention_window": attention_window,
            "score": score,
            "dtype": policy,
        }
        self.encoder = Encoder(**stack, name="encoder")
        self.decoder = Decoder(**stack, name="decoder")

    @property
    def num_outputs(self):
        """The number of ids that there are logits of."""
        return self.output_size or self.vocabulary_size

    def build(self, inputs_shape):
        source_shape = (*inputs_shape["source_ids"], self.d_model)
        target_shape = (*inputs_shape["target_ids"], self.d_model)
        self.token_embedding.build()
        self.source_positions.build(source_shape)
        self.target_positions.build(target_shape)
        self.dropout_layer.build(source_shape)
        self.encoder.build(source_shape)
        self.decoder.build(target_shape, source_shape)

    def call(self, inputs, training=None):
        """Logits of every next target token.

        Args:
            inputs: `{"source_ids": [batch, source_length], "target_ids": [batch,
                target_length]}`, integers; targets begin with the start id, and
                padding follows the tokens of each row.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, num_outputs]`, float32.
        """
        decoder_output = self.decoder_output(inputs, training=training)
        return self.token_embedding(decoder_output, reverse=True)

    def encode(self, source_ids, training=None):
        """`[batch, source_length]` ids to `[batch, source_length, d_model]`."""
        x = self.source_positions(self.token_embedding(source_ids))
        x = self.dropout_layer(x, training=training)
        source_mask = padding_mask(source_ids, self.pad_id)
        return self.encoder(x, source_mask=source_mask, training=training)

    def decode(self, target_ids, encoder_output, source_mask=None, training=None):
        """Logits of every next target token, given what `encode` returned.

        Args:
            target_ids: `[batch, target_length]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, num_outputs]`, float32.
        """
        decoder_output = self.decoder(
            self._embed_target(target_ids, training),
            encoder_output,
            source_mask=source_mask,
            training=training,
        )
        return self.token_embedding(decoder_output, reverse=True)

    def decoder_output(self, inputs, training=None):
        """As `call`, before the projection to logits.

        Returns:
            `[batch, target_length, d_model]`.
        """
        x, encoder_output, source_mask = self._decoder_inputs(inputs, training)
        return self.decoder(
            x, encoder_output, source_mask=source_mask, training=training
        )

    def decoder_output_with_scores(self, inputs, layer_index, training=None):
        """As `decoder_output`, with where a layer of the decoder looks in the source.

        Args:
            inputs: As `call`.
            layer_index: Which layer's, from 0.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]` and `[batch, num_heads, target_length,
            source_length]`, float32, before dropout.
        """
        x, encoder_output, source_mask = self._decoder_inputs(inputs, training)
        output, scores = self.decoder.call_with_scores(
            x, encoder_output, source_mask, training
        )
        return output, scores[layer_index]

    def cross_attention_scores(self, inputs):
        """Where the decoder looks in the source (section 3.2.3), without dropout.

        Args:
            inputs: As `call`.

        Returns:
            `[batch, num_layers, num_heads, target_length, source_length]`, float32.
            Target row i is the one that reads target token i and predicts label i.
            It sums to 1 over the source's tokens and is exactly 0 on its padding;
            rows of target padding mean nothing.
        """
        x, encoder_output, source_mask = self._decoder_inputs(inputs, training=False)
        return self.decoder.cross_attention_scores(x, encoder_output, source_mask)

    def attention_scores(self, inputs):
        """Where every head of every layer looks, without dropout.

        Args:
            inputs: As `call`.

        Returns:
            Mapping of `"encoder"` `[batch, num_layers, num_heads, source_length,
            source_length]`, `"decoder"` `[..., target_length, target_length]` and
            `"cross"` `[..., target_length, source_length]`, float32.
        """
        source_ids = inputs["source_ids"]
        source_mask = padding_mask(source_ids, self.pad_id)
        x = self.source_positions(self.token_embedding(source_ids))
        y, encoder_output, _ = self._decoder_inputs(inputs, training=False)
        memory = encoder_output, source_mask
        return {
            "encoder": self.encoder.self_attention_scores(x, source_mask),
            "decoder": self.decoder.self_attention_scores(y, *memory),
            "cross": self.decoder.cross_attention_scores(y, *memory),
        }

    def _decoder_inputs(self, inputs, training):
        """Embedded target, encoder's output and source mask."""
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        encoder_output = self.encode(source_ids, training=training)
        x = self._embed_target(target_ids, training)
        return x, encoder_output, padding_mask(source_ids, self.pad_id)

    def _embed_target(self, target_ids, training):
        x = self.target_positions(self.token_embedding(target_ids))
        return self.dropout_layer(x, training=training)

    def init_cache(self, source_ids, max_length=None, beam_size=1):
        """Encodes a source and makes what `decode_with_cache` needs.

        Args:
            source_ids: `[batch, source_length]`.
            max_length: Room for so many target positions in buffers of fixed size, as
                JAX and XLA need it. None: the cache grows by one position a step.
            beam_size: Number of target rows a source row, which follow each other.

        Returns:
            `cache`, see `Decoder.init_cache`, and `context`, leading axis `batch`: one
            row of it serves all of a sentence's beam.
        """
        encoder_output = self.encode(source_ids, training=False)
        source_mask = padding_mask(source_ids, self.pad_id)
        context = {
            "layers": self.decoder.init_context(encoder_output, source_mask),
            "source_mask": source_mask,
        }
        batch = ops.shape(source_ids)[0]
        return self.decoder.init_cache(batch, max_length, beam_size), context

    def decode_with_cache(self, target_ids, cache, context, start_index, kernels=None):
        """Logits of the positions from `start_index` on, by the code path of `call`.

        Args:
            target_ids: `[batch * beam_size, target_length]`, the new positions.
            cache: From `init_cache` or the last call.
            context: From `init_cache`.
            start_index: Position of the first of `target_ids`, scalar int32.
            kernels: From `decoding_kernels`, for a loop. None: the weights as they
                are.

        Returns:
            `[batch * beam_size, target_length, num_outputs]`, float32, and the
            longer cache.
        """
        kernels = kernels or {}
        x = self.token_embedding(target_ids)
        x = self.target_positions(x, start_index=start_index)
        dense_kernels = kernels.get("dense", ())
        dense_layers = self.decoder.dense_layers() if dense_kernels else ()
        with laid_out(dense_layers, dense_kernels):
            x, cache = self.decoder.call_with_cache(
                *(x, cache, context["layers"], context["source_mask"], start_index),
                kernels.get("self_attention"),
            )
        output_kernel = kernels.get("output")
        return self.token_embedding(x, reverse=True, kernel=output_kernel), cache

    def decoding_kernels(self, blocks=False):
        """Matrices laid out once for all steps of a search.

        A product of few rows with a matrix that is read across takes twice as long,
        and so do three with small matrices beside one with all of them.

        Args:
            blocks: Whether to lay all of the decoder's matrices out for the few rows
                of a lone sentence under XLA, see `in_blocks`.

        Returns:
            Mapping of `"output"`, the embedding matrix transposed, `[d_model,
            num_outputs]`, float32, and, unless the decoder is quantized,
            `"self_attention"`, see `Decoder.joined_kernels`, and with `blocks`
            `"dense"`, those of `Decoder.dense_layers`.
        """
        kernels = {"output": self.token_embedding.output_kernel()}
        joined = self.decoder.joined_kernels()
        if joined is not None:
            kernels["self_attention"] = joined
        if not blocks:
            return kernels
        kernels["output"] = in_blocks(kernels["output"])
        dense_layers = self.decoder.dense_layers()
        if joined is None or any(each.quantization_mode for each in dense_layers):
            return kernels
        kernels["self_attention"] = tuple(
            {**each, "kernel": in_blocks(each["kernel"])} for each in joined
        )
        kernels["dense"] = tuple(
            in_blocks(ops.cast(each.kernel, each.compute_dtype))
            for each in dense_layers
        )
        return kernels

    def reorder_cache(self, cache, parents):
        """The cache after rows took the place of others of their sentence.

        Args:
            cache: From `decode_with_cache`.
            parents: `[batch * beam_size]`, int32, the row that each goes on from.
        """
        return self.decoder.reorder_cache(cache, parents)

    def settle_cache(self, cache):
        """The cache, put in order: every `SETTLE_STEPS` steps of decoding."""
        return self.decoder.settle_cache(cache)

    def compute_output_spec(self, inputs, training=None):
        shape = (*inputs["target_ids"].shape, self.num_outputs)
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "positions": self.positions,
            "max_length": self.max_length,
            "normalization": self.normalization,
            "activation": keras.activations.serialize(self.activation),
            "attention_window": self.attention_window,
            "score": self.score,
            "pad_id": self.pad_id,
            "output_size": self.output_size,
        }
