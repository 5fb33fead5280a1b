"""One layer of the decoder (section 3.1, Figure 1 right)."""

import keras
from keras import ops

from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.transformer_layer import Block


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(Block):
    """Causal self-attention, attention over the encoder's output, feed-forward.

    Each is wrapped in an `AddNorm`. The arguments are those of `EncoderLayer`; both
    attentions share them.
    """

    def __init__(self, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        self.self_attention = self._self_attention()
        self.self_attention_add_norm = self._add_norm("self_attention_add_norm")
        self.cross_attention = self._attention("cross_attention")
        self.cross_attention_add_norm = self._add_norm("cross_attention_add_norm")
        self.feed_forward = self._feed_forward("feed_forward")
        self.feed_forward_add_norm = self._add_norm("feed_forward_add_norm")

    def build(self, inputs_shape, encoder_output_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_add_norm.build(inputs_shape, inputs_shape)
        self.cross_attention.build(inputs_shape, encoder_output_shape)
        self.cross_attention_add_norm.build(inputs_shape, inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_add_norm.build(inputs_shape, inputs_shape)

    def call(
        self,
        inputs,
        encoder_output,
        source_mask=None,
        encoder_output_mask=None,
        training=None,
    ):
        """Decodes one step further.

        Args:
            inputs: `[batch, target_length, d_model]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            encoder_output_mask: The same, filled in by Keras; joined with
                `source_mask`.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`.
        """
        source_mask = combine_masks(source_mask, encoder_output_mask)
        output, _ = self.call_with_scores(inputs, encoder_output, source_mask, training)
        return output

    def call_with_scores(self, inputs, encoder_output, source_mask=None, training=None):
        """As `call`, with the scores of the attention over the encoder's output.

        Returns:
            `[batch, target_length, d_model]` and `[batch, num_heads, target_length,
            source_length]`, float32.
        """
        key_value = self.cross_attention.project_key_value(encoder_output)
        # Padding follows the tokens, so that the causal mask alone hides it; a mask
        # that Keras carries with `inputs` hides its keys too.
        normalized = self.self_attention_add_norm.sublayer_input(inputs)
        attended = self.self_attention(
            normalized, normalized, use_causal_mask=True, training=training
        )
        found = []

        def look_at_source(query):
            mask = None if source_mask is None else source_mask[:, None, :]
            output, scores = self.cross_attention.call_with_scores(
                query, key_value, mask, training
            )
            found.append(scores)
            return output

        x = self._after_self_attention(inputs, attended, look_at_source, training)
        return x, found[0]

    def call_with_cache(
        self,
        inputs,
        cache,
        context,
        source_mask,
        start_index,
        visible=None,
        beam_size=1,
        kernel=None,
    ):
        """As `call`, for the positions from `start_index` on, without dropout.

        Args:
            inputs: `[batch, beam_size * target_length, d_model]`, the new positions;
                those of a hypothesis follow each other. Or `[batch * beam_size,
                d_model]`, one position of each.
            cache: Keys and values of the earlier ones, see
                `MultiHeadAttention.call_with_cache`.
            context: Keys and values of the encoder's output, from `init_context`.
            source_mask: `[batch, source_length]`, bool, True = token, or
                `cached_attention.source_bias` of it.
            start_index: Position of the first of `inputs`, scalar int32.
            visible: What each query sees of the cache, see
                `MultiHeadAttention.call_with_cache`.
            beam_size: Hypotheses of a sentence.
            kernel: Self-attention's `joined_kernel`, or None.

        Returns:
            As `inputs`, and the longer cache.
        """
        normalized = self.self_attention_add_norm.sublayer_input(inputs)
        attended, cache = self.self_attention.call_with_cache(
            normalized, cache, start_index, visible, beam_size, kernel
        )

        def look_at_source(query):
            return self.cross_attention.call_with_context(
                query, context, source_mask, beam_size
            )

        return self._after_self_attention(inputs, attended, look_at_source), cache

    def init_context(self, encoder_output, source_mask=None):
        """Keys and values of `encoder_output` for `call_with_cache`.

        Args:
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.

        Returns:
            Keys and values, `[batch, num_heads, source_length, dim]`.
        """
        key, value = self.cross_attention.project_key_value(encoder_output)
        if source_mask is not None:
            # What looks at no token at all finds nothing.
            any_token = ops.any(source_mask, axis=1)[:, None, None, None]
            value = ops.where(any_token, value, ops.zeros_like(value))
        return key, value

    def _after_self_attention(self, inputs, attended, look_at_source, training=None):
        x = self.self_attention_add_norm(inputs, attended, training=training)
        attended = look_at_source(self.cross_attention_add_norm.sublayer_input(x))
        x = self.cross_attention_add_norm(x, attended, training=training)
        transformed = self.feed_forward(self.feed_forward_add_norm.sublayer_input(x))
        return self.feed_forward_add_norm(x, transformed, training=training)

    def compute_output_shape(self, inputs_shape, encoder_output_shape=None):
        return inputs_shape
