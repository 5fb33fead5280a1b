"""The decoder: a stack of decoder layers (section 3.1)."""

import keras
from keras import ops

from keras_transformer.layers import decoding_cache
from keras_transformer.layers.cached_attention import source_bias
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """`num_layers` decoder layers over vectors that carry their positions.

    The arguments are those of `Encoder`.
    """

    layer_class = DecoderLayer

    def build(self, inputs_shape, encoder_output_shape):
        for layer in self.layers:
            layer.build(inputs_shape, encoder_output_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

    def call(
        self,
        inputs,
        encoder_output,
        source_mask=None,
        encoder_output_mask=None,
        training=None,
    ):
        """Decodes a whole target at once.

        Args:
            inputs: `[batch, target_length, d_model]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            encoder_output_mask: The same, filled in by Keras; joined with
                `source_mask`.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`; position i depends on target positions
            up to i only.
        """
        source_mask = combine_masks(source_mask, encoder_output_mask)
        x = inputs
        for layer in self.layers:
            x = layer(x, encoder_output, source_mask=source_mask, training=training)
        return self._normalize(x)

    def call_with_scores(self, inputs, encoder_output, source_mask=None, training=None):
        """As `call`, with where each layer looks in the source, before dropout.

        Args:
            inputs: `[batch, target_length, d_model]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]` and, a list of one for each layer,
            `[batch, num_heads, target_length, source_length]`, float32.
        """
        x = inputs
        scores = []
        for layer in self.layers:
            x, found = layer.call_with_scores(x, encoder_output, source_mask, training)
            scores.append(found)
        return self._normalize(x), scores

    def cross_attention_scores(self, inputs, encoder_output, source_mask=None):
        """Where each layer looks in the source, by the code path of `call`.

        Args:
            inputs: `[batch, target_length, d_model]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.

        Returns:
            `[batch, num_layers, num_heads, target_length, source_length]`, float32.
        """
        _, scores = self.call_with_scores(
            inputs, encoder_output, source_mask, training=False
        )
        return ops.stack(scores, axis=1)

    def self_attention_scores(self, inputs, encoder_output, source_mask=None):
        """Where each layer looks in the target; arguments as `call`.

        Returns:
            `[batch, num_layers, num_heads, target_length, target_length]`, float32.
        """
        x = inputs
        scores = []
        for layer in self.layers:
            normalized = layer.self_attention_add_norm.sublayer_input(x)
            scores.append(
                layer.self_attention.self_scores(normalized, use_causal_mask=True)
            )
            x = layer(x, encoder_output, source_mask=source_mask, training=False)
        return ops.stack(scores, axis=1)

    def call_with_cache(
        self, inputs, cache, context, source_mask, start_index, kernels=None
    ):
        """As `call`, for the positions from `start_index` on, without dropout.

        Args:
            inputs: `[batch * beam_size, target_length, d_model]`, the new positions.
            cache: From `init_cache` or the last call.
            context: From `init_context`.
            source_mask: `[batch, source_length]`, bool, True = token.
            start_index: Position of the first of `inputs`, scalar int32.
            kernels: From `joined_kernels`, for many calls. None: three products each.

        Returns:
            `[batch * beam_size, target_length, d_model]` and the longer cache.
        """
        layer_caches, ancestors = cache["layers"], cache.get("ancestors")
        beam_size = 1 if ancestors is None else ancestors.shape[1]
        length = ops.shape(inputs)[1]
        attention = self.layers[0].self_attention
        # All layers' positions lie alike, so that one mask serves all of them.
        visible = None
        if ancestors is not None:
            ancestors = attention.extend_ancestors(
                ancestors, layer_caches[0], length, start_index
            )
            visible = attention.visible_slots(
                *(layer_caches[0], ops.shape(ancestors)[2]),
                *(beam_size, length, start_index, ancestors),
            )
        source_mask = source_bias(source_mask)
        # The hypotheses of a sentence become queries of one row: its keys and values
        # are read once. Of one position each, rows need no other axis.
        one_position = isinstance(length, int) and length == 1
        leading = (-1,) if one_position else (-1, beam_size * length)
        x = ops.reshape(inputs, (*leading, inputs.shape[-1]))
        caches = []
        kernels = kernels or (None,) * self.num_layers
        for layer, layer_cache, layer_context, kernel in zip(
            self.layers, layer_caches, context, kernels, strict=True
        ):
            x, layer_cache = layer.call_with_cache(
                x,
                layer_cache,
                layer_context,
                source_mask,
                start_index,
                visible,
                beam_size,
                kernel,
            )
            caches.append(layer_cache)
        cache = {"layers": tuple(caches)}
        if ancestors is not None:
            # What a window has left behind is forgotten here too.
            if attention.window is not None:
                kept = decoding_cache.num_slots(caches[0])
                ancestors = ancestors[:, :, ops.shape(ancestors)[2] - kept :]
            cache["ancestors"] = ancestors
        return self._normalize(ops.reshape(x, (-1, length, x.shape[-1]))), cache

    def joined_kernels(self):
        """`MultiHeadAttention.joined_kernel` of each layer's self-attention, or None.

        One product instead of three: there is less to read at a time than a second
        thread takes up, and fewer operations to begin.
        """
        kernels = [layer.self_attention.joined_kernel() for layer in self.layers]
        return None if None in kernels else tuple(kernels)

    def dense_layers(self):
        """What a step multiplies by, besides `joined_kernels`."""
        return [
            dense
            for layer in self.layers
            for dense in (
                layer.self_attention.output_dense,
                layer.cross_attention.query_dense,
                layer.cross_attention.output_dense,
                layer.feed_forward.inner_dense,
                layer.feed_forward.outer_dense,
            )
        ]

    def init_cache(self, batch_size, max_length=None, beam_size=1):
        """What `call_with_cache` needs to know of earlier positions: none yet.

        Args:
            batch_size: Number of sentences, may be a scalar tensor.
            max_length: Room for so many positions in buffers of fixed size. None:
                the cache grows.
            beam_size: Rows of a sentence.

        Returns:
            Mapping of `"layers"`, a `MultiHeadAttention.init_cache` a layer, whose
            leading axis is the sentence, and, with a beam, `"ancestors"`, the slots
            that each hypothesis sees, `[batch_size, beam_size, slots]`, bool.
        """
        layers = tuple(
            layer.self_attention.init_cache(batch_size, max_length, beam_size)
            for layer in self.layers
        )
        if beam_size == 1:
            return {"layers": layers}
        shape = batch_size, beam_size, decoding_cache.num_slots(layers[0])
        return {"layers": layers, "ancestors": ops.zeros(shape, dtype="bool")}

    def reorder_cache(self, cache, parents):
        """The cache after rows took the place of others of their sentence.

        Args:
            cache: From `call_with_cache`.
            parents: `[batch * beam_size]`, int32, the row that each goes on from.
        """
        if "ancestors" not in cache:
            return cache
        _, beam_size, slots = ops.shape(cache["ancestors"])
        rows = ops.reshape(cache["ancestors"], (-1, slots))
        rows = ops.take(rows, parents, axis=0)
        return {**cache, "ancestors": ops.reshape(rows, (-1, beam_size, slots))}

    def settle_cache(self, cache):
        """The cache with what it has recently got put to the rest.

        To be called every `SETTLE_STEPS` positions of a cache that grows: a call
        copies the recent positions, this the whole. Slots that no hypothesis sees
        any more are forgotten.
        """
        layers = cache["layers"]
        window = self.layers[0].self_attention.window
        if decoding_cache.is_buffer(layers[0]) or window is not None:
            return cache
        if "ancestors" not in cache:
            return {**cache, "layers": decoding_cache.settled(layers)}
        slots = decoding_cache.slots_in_use(cache["ancestors"])
        return {
            "layers": decoding_cache.settled(layers, slots),
            "ancestors": decoding_cache.take_slots(
                cache["ancestors"][:, :, :, None], slots
            )[..., 0],
        }

    def init_context(self, encoder_output, source_mask=None):
        """Keys and values of `encoder_output`, `[batch, ...]`, for each layer."""
        return tuple(
            layer.init_context(encoder_output, source_mask) for layer in self.layers
        )

    def compute_output_shape(self, inputs_shape, encoder_output_shape=None):
        return inputs_shape
