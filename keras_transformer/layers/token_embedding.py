"""Embeddings that also project to logits (section 3.4 of the paper)."""

import math

import keras
from keras import ops

from keras_transformer.layers.base import MatrixLayer
from keras_transformer.layers.masks import padding_mask
from keras_transformer.numerics.matrices import project


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(MatrixLayer, keras.layers.Embedding):
    """Embedding whose weight matrix also projects vectors to logits.

    Embeddings are multiplied by `sqrt(d_model)`. Logits are float32 under any dtype
    policy.

    Args:
        vocabulary_size: Number of ids.
        d_model: Width of an embedding.
        pad_id: Id of padding, which `compute_mask` masks.
        output_size: Number of logits. Only ids below it have logits. If `None`, all ids
            have logits.
        zero_id: Id whose embedding is always zero and has no gradient. If `None`, there
            is no such id.
        use_bias: Whether each logit has a bias.
        tied: Whether the embedding matrix is also the output projection. If false, the
            projection is a separate matrix `[output_size or vocabulary_size, d_model]`.

    Raises:
        ValueError: If a size is below 1, or `output_size` is above `vocabulary_size`.

    Examples:
        >>> embedding = kt.layers.TokenEmbedding(10, 16)
        >>> x = embedding(keras.ops.convert_to_tensor([[4, 5, 0]]))
        >>> print(x.shape)
        (1, 3, 16)
    """

    def __init__(
        self,
        vocabulary_size,
        d_model,
        pad_id=0,
        output_size=None,
        zero_id=None,
        use_bias=False,
        tied=True,
        **kwargs,
    ):
        for name, size in (("vocabulary_size", vocabulary_size), ("d_model", d_model)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {size}.")
        # `build` uses another initializer. Keras's default would draw a seed here.
        super().__init__(int(vocabulary_size), int(d_model), "zeros", **kwargs)
        if output_size is not None and not 1 <= output_size <= vocabulary_size:
            raise ValueError(
                "`output_size` must be at least 1 and at most `vocabulary_size`. "
                f"Received: {output_size} of {vocabulary_size}."
            )
        self.supports_masking = True
        self.vocabulary_size = vocabulary_size
        self.output_size = output_size
        self.num_outputs = output_size or vocabulary_size
        self.d_model = d_model
        self.pad_id = pad_id
        self.zero_id = zero_id
        self.use_bias = use_bias
        self.tied = tied
        # Keras would cast ids of a float dtype to the compute dtype. In bfloat16, 4097
        # would become 4096.
        self.autocast = False

    def build(self, input_shape=None):
        self._embeddings = self._add_matrix("embeddings", self.vocabulary_size)
        if not self.tied:
            self.output_matrix = self._add_matrix("output_matrix", self.num_outputs)
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.num_outputs,),
                initializer="zeros",
                autocast=False,
            )

    @property
    def embeddings(self):
        """The embedding matrix `[vocabulary_size, d_model]`, with LoRA if enabled.

        Keras's property would round the sum with LoRA's product to 16 bits.
        """
        if not self.lora_enabled:
            return self._embeddings
        product = ops.matmul(self.lora_embeddings_a, self.lora_embeddings_b)
        return self._embeddings + (self.lora_alpha / self.lora_rank) * product

    @property
    def variable_serialization_spec(self):
        return {None: ["embeddings", "output_matrix", "bias"]}

    def _add_matrix(self, name, rows):
        return self.add_weight(
            name=name,
            shape=(rows, self.d_model),
            # Vectors with components of unit variance get logits of unit variance.
            initializer=keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
            # Logits are float32, but autocast would round the matrix to 16 bits.
            autocast=False,
        )

    def __call__(self, inputs, reverse=False, **kwargs):
        # `keras.Input` is float32 by default. Ids must be integers to get a mask.
        if not reverse and _is_float(inputs):
            inputs = ops.cast(inputs, "int32")
        return super().__call__(inputs, reverse=reverse, **kwargs)

    def call(self, inputs, reverse=False):
        """Returns the embeddings of ids or, with `reverse`, the logits of vectors.

        Args:
            inputs: Ids `[batch, length]`; with `reverse`, vectors `[..., d_model]`.
            reverse: Whether to project vectors to logits.

        Returns:
            `[batch, length, d_model]` in the compute dtype, or with `reverse`
            `[..., num_outputs]` in float32.
        """
        if reverse:
            logits = project(ops.cast(inputs, "float32"), self.output_kernel())
            return self.add_bias(logits)
        vectors = ops.take(self.embeddings, ops.cast(inputs, "int32"), axis=0)
        if self.zero_id is not None:
            vectors = ops.where((inputs == self.zero_id)[..., None], 0.0, vectors)
        return ops.cast(vectors, self.compute_dtype) * math.sqrt(self.d_model)

    def output_embeddings(self):
        """Returns the output projection, `[num_outputs, d_model]`."""
        if not self.tied:
            return self.output_matrix
        if self.output_size is None:
            return self.embeddings
        return ops.convert_to_tensor(self.embeddings)[: self.output_size]

    def output_kernel(self):
        """Returns the output projection as `[d_model, num_outputs]`, float32."""
        return ops.transpose(ops.cast(self.output_embeddings(), "float32"))

    def add_bias(self, logits):
        """Returns logits with the bias, if `use_bias` is true."""
        return logits + ops.cast(self.bias, "float32") if self.use_bias else logits

    def loss_operands(self, vectors):
        """Returns matrices A and B such that the logits of `vectors` are `A @ B.T`.

        Vectors are `[tokens, d_model]`. Biases become an additional column of B, and A
        gets a column of ones, so that the loss needs no third operand. The shapes are
        `[tokens, width]`, with the dtype of the vectors, and `[num_outputs, width]`,
        float32.
        """
        matrix = ops.cast(self.output_embeddings(), "float32")
        if not self.use_bias:
            return vectors, matrix
        ones = ops.ones_like(vectors[:, :1])
        bias = ops.cast(self.bias, "float32")[:, None]
        return (
            ops.concatenate([vectors, ones], axis=1),
            ops.concatenate([matrix, bias], axis=1),
        )

    def compute_mask(self, inputs, previous_mask=None):
        # Float inputs are vectors to project. Logits need no mask, because the losses
        # mask padding themselves.
        return None if _is_float(inputs) else padding_mask(inputs, self.pad_id)

    def compute_output_shape(self, inputs_shape, reverse=False):
        if reverse:
            return (*inputs_shape[:-1], self.num_outputs)
        return (*inputs_shape, self.d_model)

    def compute_output_spec(self, inputs, reverse=False):
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, "float32" if reverse else self.compute_dtype)

    def get_config(self):
        return {
            **keras.Layer.get_config(self),
            "vocabulary_size": self.vocabulary_size,
            "d_model": self.d_model,
            "pad_id": self.pad_id,
            "output_size": self.output_size,
            "zero_id": self.zero_id,
            "use_bias": self.use_bias,
            "tied": self.tied,
        }


def _is_float(array):
    return "float" in keras.backend.standardize_dtype(array.dtype)
