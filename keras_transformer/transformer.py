"""The Transformer of the paper's Figure 1: encoder, decoder and tied embeddings."""

import functools
import tempfile

import keras
from keras import ops

from keras_transformer.arguments import (
    DEFAULTS,
    POSITIONS,
    Variations,
    require_choice,
    with_head_dims,
)
from keras_transformer.layers import (
    Decoder,
    Dropout,
    Encoder,
    PositionalEncoding,
    TokenEmbedding,
    padding_mask,
)
from keras_transformer.layers.base import Dense, child_layer, inner_layers
from keras_transformer.layers.transformer_layer import LAYER_ARGUMENTS
from keras_transformer.numerics.activations import activation_name, get_activation
from keras_transformer.numerics.normalization import LayerNormalization
from keras_transformer.sizes import SIZES, change_size

# Names of the arguments of `Transformer`.
_ARGUMENTS = ("vocabulary_size", *DEFAULTS, "pad_id", "output_size")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(keras.Model):
    """The model of the paper (section 3), by default with the base model's sizes.

    One matrix of `vocabulary_size` rows embeds source and target and projects to
    logits (section 3.4), unless `variations` changes this.

    Args:
        vocabulary_size: Number of ids, including padding, unknown, start, and end.
        num_layers: Number of layers, N, of the encoder and of the decoder.
        d_model: Width of the residual stream.
        d_ff: Inner width of the feed-forward networks.
        num_heads: Number of attention heads, h.
        key_dim: Width of queries and keys per head, d_k. If `None`, `d_model //
            num_heads` is used.
        value_dim: Width of values per head, d_v. If `None`, `d_model // num_heads` is
            used.
        dropout: Dropout rate of sublayer outputs and of the sums of embeddings and
            positions.
        attention_dropout: Dropout rate of attention scores (0 in the paper).
        positions: `"sinusoidal"` or `"learned"` (Table 3, row E), added to the
            embeddings. Or `"relative"` (Shaw et al., 2018) or `"rotary"` (Su et al.,
            2021), in self-attention only (see `MultiHeadAttention`).
        max_length: Number of learned positions. Only for `positions="learned"`, which
            requires it.
        max_distance: Clipping distance k: positions at least k apart share one vector.
            Only for `positions="relative"`.
        normalization: `"post"` (the paper) or `"pre"`.
        activation: Activation of the feed-forward networks, as in `keras.layers.Dense`.
        attention_window: Number of positions that self-attention attends to, r of
            section 4, in encoder and decoder. If `None`, it attends to all positions.
        score_mode: Score function of all attention layers: `"scaled_dot"` (the paper),
            `"dot"`, or `"additive"`.
        pad_id: Id of the padding.
        output_size: If given, only the first `output_size` ids have logits. A parser,
            for example, predicts only the symbols of parse trees. If `None`, all ids
            have logits.
        variations: `Variations` or a dict of its fields, for models of other toolkits.
            If `None`, the architecture is the paper's.

    Raises:
        ValueError: If a size is below 1, or `output_size` is above `vocabulary_size`.
            If `dropout` is outside [0, 1], or `attention_dropout` outside [0, 1). If
            `positions`, `normalization`, `activation` or `score_mode` is unknown. If
            `positions` is `"learned"` and `max_length` is `None`. If `positions` is
            `"relative"` and `score_mode` is `"additive"`, or `positions` is `"rotary"`
            and `key_dim` is odd. If `key_dim` or
            `value_dim` is `None` and `num_heads` does not divide `d_model`. If a
            variation is out of range.
        TypeError: If `variations` has an unknown field.

    Examples:
        >>> model = kt.Transformer(1000, num_layers=2, d_model=64, num_heads=4)
        >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
        >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
        >>> print(model({"source_ids": source_ids, "target_ids": target_ids}).shape)
        (1, 2, 1000)
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
        score_mode="scaled_dot",
        pad_id=0,
        output_size=None,
        variations=None,
        max_distance=16,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.autocast = False  # as in `TokenEmbedding`: autocast would round float ids
        require_choice("positions", positions, POSITIONS)
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
        self.max_distance = max_distance
        self.normalization = normalization
        self.activation = get_activation(activation)
        self.attention_window = attention_window
        self.score_mode = score_mode
        self.pad_id = pad_id
        self.output_size = output_size
        self.variations = variations = Variations.of(variations)
        options = with_head_dims(self._arguments())
        self._add_embeddings()
        self.dropout_layer = child_layer(self, Dropout, "embedding_dropout", dropout)
        options["attention_bias"] = variations.attention_bias
        options["layer_norm_epsilon"] = variations.layer_norm_epsilon
        options = {name: options[name] for name in LAYER_ARGUMENTS}
        self.encoder = child_layer(self, Encoder, "encoder", num_layers, **options)
        num_layers = variations.num_decoder_layers or num_layers
        self.decoder = child_layer(self, Decoder, "decoder", num_layers, **options)

    def _arguments(self):
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def _add_embeddings(self):
        """Adds the layers that convert ids to inputs of encoder and decoder."""
        variations = self.variations
        child = functools.partial(child_layer, self)
        sizes = self.d_model, self.pad_id
        self.token_embedding = child(
            TokenEmbedding,
            "token_embedding",
            self.vocabulary_size,
            *sizes,
            self.output_size,
            zero_id=variations.zero_start_id,
            use_bias=variations.logits_bias,
            tied=variations.tied_output,
        )
        self.source_embedding = None
        if size := variations.source_vocabulary_size:
            self.source_embedding = child(
                TokenEmbedding, "source_embedding", size, *sizes
            )
        # Source and target have separate learned positions. Sinusoids have no weights.
        self.source_positions, self.target_positions = (
            child(
                PositionalEncoding,
                f"{side}_positions",
                self.positions,
                self.max_length,
                variations.timescales,
                variations.first_position,
            )
            for side in ("source", "target")
        )
        self.source_norm = self.target_norm = None
        if variations.embedding_norm:
            epsilon = variations.layer_norm_epsilon
            self.source_norm, self.target_norm = (
                child(LayerNormalization, f"{side}_norm", epsilon=epsilon)
                for side in ("source", "target")
            )

    @property
    def num_outputs(self):
        """Number of ids that have logits."""
        return self.output_size or self.vocabulary_size

    @property
    def position_limit(self):
        """Number of learned positions, which limits the lengths, or `None`."""
        return self.max_length if self.positions == "learned" else None

    @property
    def source_vocabulary_size(self):
        """Number of source ids."""
        return self.variations.source_vocabulary_size or self.vocabulary_size

    def build(self, inputs_shape):
        if self.built:
            return
        shape = (None, None, self.d_model)
        self.token_embedding.build()
        self.source_positions.build(shape)
        self.target_positions.build(shape)
        self.dropout_layer.build(shape)
        if self.source_embedding is not None:
            self.source_embedding.build()
        if self.source_norm is not None:
            self.source_norm.build(shape)
            self.target_norm.build(shape)
        self.encoder.build(shape)
        self.decoder.build(shape, shape)
        self._build_added_layers(inputs_shape)

    def _build_added_layers(self, inputs_shape):
        """Builds the layers of a subclass without a `build`, by tracing its `call`."""
        has_build = type(self).build is not Transformer.build
        layers = self._flatten_layers(include_self=False)
        if has_build or all(layer.built for layer in layers):
            return
        self.built = True  # so that `call` does not build the model again
        inputs = {
            name: keras.KerasTensor(shape, "int32")
            for name, shape in inputs_shape.items()
        }
        try:
            keras.Operation.compute_output_spec(self, inputs)
        except Exception:
            self.built = False
            raise

    def _ensure_built(self):
        """Builds the model if one of its methods is used before the model itself."""
        if not self.built:
            self.build({"source_ids": (None, None), "target_ids": (None, None)})

    def __call__(self, inputs, *args, **kwargs):
        self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def check_inputs(self, inputs):
        """Raises a `ValueError` if the inputs are not a dict."""
        if not isinstance(inputs, dict):
            raise ValueError(
                'The inputs must be a dict {"source_ids": ..., "target_ids": ...}. '
                f"Received: {type(inputs).__name__}."
            )

    def call(self, inputs, training=None):
        """Computes the logits of the next target token at each position.

        Args:
            inputs: `{"source_ids": [batch, source_length], "target_ids": [batch,
                target_length]}`, integers. Targets begin with the start id. Padding
                follows the tokens of each row.
            training: Whether dropout is applied.

        Returns:
            Logits `[batch, target_length, num_outputs]`, float32. Logits at position i
            depend only on targets up to i.
        """
        decoder_output = self.decoder_output(inputs, training=training)
        return self.token_embedding(decoder_output, reverse=True)

    def embed_source(self, source_ids, training=None, token_factors=None):
        """Embeds source ids, adds the positional encoding, and applies dropout.

        With the variation `embedding_norm`, the sum is normalized before dropout.

        Args:
            source_ids: `[batch, source_length]`.
            training: Whether dropout is applied.
            token_factors: `[batch, source_length]`, factors by which the embeddings are
                multiplied, such as 0 for dropped tokens. If `None`, all are 1.

        Returns:
            `[batch, source_length, d_model]`.
        """
        embed = self.source_embedding or self.token_embedding
        layers = embed, self.source_positions, self.source_norm
        return self._embed(layers, source_ids, 0, training, token_factors)

    def embed_target(
        self, target_ids, start_index=0, training=None, token_factors=None
    ):
        """Embeds target ids, like `embed_source`.

        Args:
            target_ids: `[batch, target_length]`.
            start_index: Position of the first id, an int or a scalar tensor.
            training: Whether dropout is applied.
            token_factors: As for `embed_source`.

        Returns:
            `[batch, target_length, d_model]`.
        """
        layers = self.token_embedding, self.target_positions, self.target_norm
        return self._embed(layers, target_ids, start_index, training, token_factors)

    def _embed(self, layers, ids, start_index, training, token_factors):
        self._ensure_built()
        embed, add_positions, norm = layers
        x = embed(ids)
        if token_factors is not None:
            x = x * ops.expand_dims(ops.cast(token_factors, x.dtype), -1)
        x = add_positions(x, start_index=start_index)
        if norm is not None:
            x = norm(x, training=training)
        return self.dropout_layer(x, training=training)

    def encode(self, source_ids, training=None, token_factors=None):
        """Computes the encoder's output `[batch, source_length, d_model]`.

        The arguments match `embed_source`.
        """
        return self.encoder(
            self.embed_source(source_ids, training, token_factors),
            source_mask=padding_mask(source_ids, self.pad_id),
            training=training,
        )

    def decode(self, target_ids, encoder_output, source_mask=None, training=None):
        """Like `call`, but takes the output of `encode` instead of source ids.

        Args:
            target_ids: `[batch, target_length]`.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token. If `None`, the
                Keras mask of `encoder_output` is used, if it has one.
            training: Whether dropout is applied.
        """
        decoder_output = self.decoder(
            self.embed_target(target_ids, training=training),
            encoder_output,
            source_mask=source_mask,
            training=training,
        )
        return self.token_embedding(decoder_output, reverse=True)

    def decoder_output(
        self,
        inputs,
        training=None,
        return_attention_scores=False,
        source_factors=None,
        target_factors=None,
    ):
        """Like `call`, but returns the vectors before the projection to logits.

        Args:
            inputs: The inputs of `call`.
            training: Whether dropout is applied.
            return_attention_scores: Whether to also return the decoder's attention
                scores.
            source_factors: Factors of source embeddings (see `token_factors` of
                `embed_source`).
            target_factors: Factors of target embeddings.

        Returns:
            `[batch, target_length, d_model]`. With `return_attention_scores`, a pair of
            this output and the scores, a list of `(self_scores, cross_scores)` per
            layer.
        """
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        encoder_output = self.encode(source_ids, training, source_factors)
        return self.decoder(
            self.embed_target(target_ids, 0, training, target_factors),
            encoder_output,
            source_mask=padding_mask(source_ids, self.pad_id),
            return_attention_scores=return_attention_scores,
            training=training,
        )

    def attention_scores(self, inputs):
        """Returns the attention scores of all heads of all layers, without dropout.

        Args:
            inputs: The inputs of `call`.

        Returns:
            Dict of float32 arrays: `"encoder"` `[batch, num_layers, num_heads,
            source_length, source_length]`, `"decoder"` `[..., target_length,
            target_length]`, and `"cross"` `[..., target_length, source_length]`. The
            second axis of the latter two is `num_decoder_layers`. The last two axes are
            queries and keys. A query at target position i predicts the target token at
            position i + 1. Scores sum to 1 over the keys and are 0 on padding. The
            scores of queries at padding are meaningless.

        Examples:
            >>> model = kt.Transformer(100, num_layers=2, d_model=16, num_heads=4)
            >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
            >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
            >>> inputs = {"source_ids": source_ids, "target_ids": target_ids}
            >>> print(model.attention_scores(inputs)["cross"].shape)
            (1, 2, 4, 2, 3)
        """
        source_mask = padding_mask(inputs["source_ids"], self.pad_id)
        options = {"source_mask": source_mask, "return_attention_scores": True}
        source = self.embed_source(inputs["source_ids"], training=False)
        target = self.embed_target(inputs["target_ids"], training=False)
        output, encoder_scores = self.encoder(source, **options, training=False)
        _, decoder_scores = self.decoder(target, output, **options, training=False)
        self_scores, cross_scores = zip(*decoder_scores, strict=True)
        return {
            "encoder": ops.stack(encoder_scores, axis=1),
            "decoder": ops.stack(self_scores, axis=1),
            "cross": ops.stack(cross_scores, axis=1),
        }

    def save(self, filepath, *args, **kwargs):
        """Like `keras.Model.save`, but refuses quantization other than to int8."""
        self._check_quantization()
        super().save(filepath, *args, **kwargs)

    def save_weights(self, filepath, *args, **kwargs):
        """Like `keras.Model.save_weights`, with the checks of `save`."""
        self._check_quantization()
        super().save_weights(filepath, *args, **kwargs)

    def compile_from_config(self, config):
        # Keras stores what `jit_compile="auto"` meant on the backend that wrote the
        # file. On PyTorch, compiling would take very long.
        if config.get("jit_compile"):
            config = {**config, "jit_compile": "auto"}
        super().compile_from_config(config)

    def export(
        self,
        filepath,
        format="tf_saved_model",
        verbose=None,
        input_signature=None,
        **kwargs,
    ):
        """Like `keras.Model.export`, but with inputs of any length by default.

        By default, the inputs are `source_ids` and `target_ids`, int32 `[None, None]`.
        To export a translator instead of the bare model, use
        `kt.export.export_translator`.
        """
        self._ensure_built()
        if input_signature is None:
            names = ("source_ids", "target_ids")
            spec = functools.partial(keras.InputSpec, "int32", (None, None))
            input_signature = [{name: spec(name=name) for name in names}]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def load_own_variables(self, store):
        """Like `keras.Model.load_own_variables`, but accepts no additional layers.

        Keras ignores weights of a file that the model lacks.
        """
        super().load_own_variables(store)
        file = getattr(store, "h5_file", {})
        if "encoder/layers" not in file or "decoder/layers" not in file:
            return  # the file of an outer model
        stored = _count_stored_layers(file)
        layers = [each for each in self._flatten_layers() if _has_weights(each)]
        if stored > len(layers):
            raise ValueError(
                f"The file has weights of {stored} layers, but the model has only "
                f"{len(layers)}."
            )

    def _check_quantization(self):
        for layer in self._flatten_layers():
            if isinstance(layer, Dense):
                layer.check_quantization()

    def get_config(self):
        arguments = self._arguments()
        arguments["activation"] = activation_name(self.activation)
        arguments["variations"] = self.variations.changes() or None
        # Layers that train although the layer around them does not, or vice versa.
        changes = {
            path: layer.trainable
            for path, layer, parent in inner_layers(self)
            if layer.trainable != parent.trainable
        }
        if changes:
            arguments["trainable_layers"] = changes
        return {**super().get_config(), **arguments}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        changes = config.pop("trainable_layers", None)
        model = super().from_config(config)
        if changes:
            model._ensure_built()  # some layers are created by `build`
            layers = {path: layer for path, layer, _ in inner_layers(model)}
            for path, is_trainable in changes.items():
                if path not in layers:
                    raise ValueError(f"`trainable_layers`: there is no layer {path!r}.")
                layers[path].trainable = is_trainable
        return model

    @classmethod
    def from_size(cls, size, vocabulary_size, **changes):
        """Builds a model of the paper, such as `"base"`, with random weights.

        Args:
            size: A key of `SIZES`.
            vocabulary_size: Number of ids.
            **changes: Constructor arguments that differ. If `d_model` or `num_heads`
                changes, the default `key_dim` and `value_dim` are `d_model //
                num_heads`.

        Examples:
            >>> model = kt.Transformer.from_size("base", 100, num_layers=1)
            >>> model.d_model
            512
        """
        require_choice("size", size, SIZES)
        return cls(vocabulary_size, **change_size(size, changes))

    @classmethod
    def from_preset(cls, preset, **changes):
        """Loads a stored model.

        Args:
            preset: A folder that `save_to_preset` wrote, the name of a model in this
                package, or `hf://OWNER/NAME` for a preset on the Hugging Face Hub.
            **changes: Constructor arguments that differ from the stored ones.

        Raises:
            ValueError: If the preset does not exist or fails the safety checks, or if
                its weights do not match the model with `changes`.

        Examples:
            >>> model = kt.Transformer.from_preset("phrases")
            >>> model.vocabulary_size, model.d_model
            (656, 64)
        """
        from keras_transformer.saving.load import load_preset_model

        return load_preset_model(preset, cls, **changes)

    def save_to_preset(self, folder, tokenizer=None, **options):
        """Writes a preset for `from_preset`, with the file names of KerasHub.

        The files are `config.json`, `metadata.json` and `model.weights.h5`. A tokenizer
        adds `tokenizer.json`, `assets/tokenizer/` and `task.json`, so that `open_model`
        can translate with the preset. KerasHub can read the model only after `import
        keras_transformer`.

        Args:
            folder: Folder to write. An existing preset is replaced, except for its
                `README.md`.
            tokenizer: Tokenizer of source and target. If `None`, only the model is
                written.
            **options: `search`, a `BeamSearch`; `max_source_length`, the maximum number
                of subwords per segment; and `dtype="float16"` for weights in half
                precision.

        Returns:
            Path of the folder.

        Raises:
            ValueError: If the folder contains anything but a preset, `dtype` is
                unknown, the tokenizer does not match the model, or a weight exceeds the
                range of `dtype`.
        """
        from keras_transformer.saving.preset import save_preset

        return save_preset(self, folder, tokenizer, **options)

    def push_to_hub(self, name, tokenizer=None, private=False, **options):
        """Uploads a preset to the Hugging Face Hub. Requires the extra `hub`.

        Replaces an earlier preset in the repository, but keeps the `README.md`.

        Args:
            name: `OWNER/NAME` of the repository, which is created if necessary.
            tokenizer: Tokenizer of source and target. If `None`, only the model is
                uploaded.
            private: Whether a new repository is private.
            **options: `search`, `max_source_length` and `dtype` of `save_to_preset`.

        Returns:
            URL of the commit.

        Raises:
            ValueError: If huggingface_hub is not installed, or the upload fails, for
                example because you are not logged in. Also if `save_to_preset` rejects
                the arguments.
        """
        from keras_transformer.saving.hub import upload

        with tempfile.TemporaryDirectory() as folder:
            folder = self.save_to_preset(f"{folder}/preset", tokenizer, **options)
            return upload(folder, name, private)


def _count_stored_layers(file):
    """Returns the number of layers that have weights in an open HDF5 file."""
    layers = set()

    def visit(name, item):
        # Numbers of other types are states of random generators. HDF5 has no bfloat16.
        is_weight = hasattr(item, "dtype") and item.dtype.name in (
            *("float16", "float32", "float64", "int8", "void16"),
        )
        if is_weight and not name.startswith("optimizer/"):
            layers.add(name.rpartition("/")[0])

    file.visititems(visit)
    return len(layers)


def _has_weights(layer):
    """Returns whether a layer has weights besides those of the layers in it."""
    inner = [weight for child in layer._layers for weight in child.weights]
    return any(all(each is not other for other in inner) for each in layer.weights)
