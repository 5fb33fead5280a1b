"""Positional encodings (section 3.5 of the paper), and those of later papers."""

import math

import keras
from keras import ops

from keras_transformer.arguments import (
    ATTENTION_POSITIONS,
    POSITIONS,
    TIMESCALES,
    require_choice,
)
from keras_transformer.numerics.indexing import gather, shape


def sinusoids(positions, d_model, timescales="paper"):
    """Computes the sinusoidal encoding of positions.

    `PE(pos, 2i) = sin(pos / 10000^(2i/d_model))`, and `PE(pos, 2i+1)` is the cosine of
    the same angle.

    With `timescales="tensor2tensor"`, the exponent is `2i / (d_model - 2)`, so the
    lowest frequency is exactly 1/10000, as in the library tensor2tensor and in Marian.

    Args:
        positions: `[length]`, non-negative integers.
        d_model: Width of the encoding. If it is odd, the last component is a sine.
        timescales: Frequencies of the sinusoids, `"paper"` or `"tensor2tensor"`.

    Returns:
        `[length, d_model]`, float32, sines and cosines interleaved.
    """
    dims = ops.arange(0, d_model, 2, dtype="float32")
    span = d_model if timescales == "paper" else max(d_model - 2, 1)
    frequencies = ops.exp(dims * (-math.log(10000.0) / span))
    angles = ops.cast(positions, "float32")[:, None] * frequencies[None, :]
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    # [length, d_model / 2, 2] to [length, d_model]: sin, cos, sin, cos, ...
    return ops.reshape(pairs, (-1, 2 * dims.shape[0]))[:, :d_model]


def rotate(x, positions):
    """Rotates queries or keys by their positions (Su et al., 2021, section 3.2.2).

    The components `2i` and `2i+1` are turned by the angle `pos / 10000^(2i/dim)`, so
    that products of queries and keys depend only on their distance.

    Args:
        x: `[..., length, dim]` with an even `dim`.
        positions: int32 `[length]`, or `[1]` if all vectors have the same position.

    Returns:
        `[..., length, dim]`, in the dtype of `x`.
    """
    sines_and_cosines = sinusoids(positions, x.shape[-1])
    sines, cosines = sines_and_cosines[:, 0::2], sines_and_cosines[:, 1::2]
    pairs = ops.cast(x, "float32")
    real, imaginary = pairs[..., 0::2], pairs[..., 1::2]
    rotated = real * cosines - imaginary * sines, real * sines + imaginary * cosines
    return ops.cast(ops.reshape(ops.stack(rotated, axis=-1), shape(x)), x.dtype)


def relative_vectors(table, distances):
    """Returns the vectors of distances, which are clipped (Shaw et al., 2018).

    The table `[2k + 1, dim]` has rows for the distances -k to k. `distances`, int32
    `[...]`, are positions of keys minus those of queries. The result is `[..., dim]`.
    """
    max_distance = table.shape[0] // 2
    places = ops.clip(distances, -max_distance, max_distance) + max_distance
    return gather(table, places, axis=0)


def multiply_each_query(x, matrices):
    """Multiplies the rows of `[..., queries, n]` by matrices `[queries, n, m]`.

    Like tensor2tensor, this joins all other axes, to have one large product per query.
    """
    x = ops.moveaxis(x, -2, 0)
    *outer, width = shape(x)
    # `reshape` could not infer the size for an empty batch.
    rows = ops.reshape(x, (outer[0], math.prod(outer[1:]), width))
    products = ops.matmul(rows, matrices)
    products = ops.reshape(products, (*outer, shape(matrices)[-1]))
    return ops.moveaxis(products, 0, -2)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(keras.layers.Layer):
    """Layer that adds an encoding of each position (section 3.5), in float32.

    Args:
        kind: `"sinusoidal"`, or `"learned"` (Table 3, row E). With `"relative"` or
            `"rotary"`, nothing is added, as `MultiHeadAttention` uses the positions.
        max_length: Number of learned positions. Required for `"learned"`.
        timescales: Frequencies of the sinusoids, `"paper"` (10000^(-2i/d) for
            dimensions 2i and 2i + 1) or `"tensor2tensor"` (10000^(-2i/(d-2)), as in
            Marian). Only for `"sinusoidal"`.
        first_position: Offset added to all positions. Only for `"sinusoidal"`.

    Raises:
        ValueError: If `kind` or `timescales` is unknown, `max_length` is missing or
            below 1 for `"learned"`, or `timescales` or `first_position` is given
            without sinusoids.

    Examples:
        >>> encoded = kt.layers.PositionalEncoding()(keras.ops.zeros((1, 2, 4)))
        >>> print(encoded.numpy().round(2))
        [[[0.   1.   0.   1.  ]
          [0.84 0.54 0.01 1.  ]]]
    """

    def __init__(
        self,
        kind="sinusoidal",
        max_length=None,
        timescales="paper",
        first_position=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        require_choice("kind", kind, POSITIONS)
        require_choice("timescales", timescales, TIMESCALES)
        if kind == "learned" and (max_length is None or max_length < 1):
            raise ValueError(
                "Learned positions need a `max_length` of at least 1. "
                f"Received: {max_length}."
            )
        if kind != "sinusoidal" and (timescales, first_position) != ("paper", 0):
            raise ValueError(
                "Only sinusoids have `timescales` and `first_position`. Received: "
                f"kind={kind!r}, timescales={timescales!r}, "
                f"first_position={first_position}."
            )
        self.kind = kind
        self.max_length = max_length
        self.timescales = timescales
        self.first_position = first_position
        self.supports_masking = True

    def build(self, inputs_shape):
        if self.kind == "learned":
            self.positions = self.add_weight(
                name="positions",
                shape=(self.max_length, inputs_shape[-1]),
                initializer=keras.initializers.RandomNormal(
                    stddev=inputs_shape[-1] ** -0.5
                ),
                autocast=False,
            )

    def call(self, inputs, start_index=0):
        """Adds the encoding of the positions to `inputs`.

        Args:
            inputs: `[batch, length, d_model]`.
            start_index: Index of the first vector in its sequence, an int or a scalar
                tensor. It is above 0 when decoding one position at a time.

        Returns:
            `[batch, length, d_model]`. Learned positions beyond `max_length`, which are
            possible with a `start_index` or a dynamic length, get the last encoding.

        Raises:
            ValueError: If positions are learned, and `length` is static and above
                `max_length`.
        """
        if self.kind in ATTENTION_POSITIONS:
            return inputs
        _, length, d_model = inputs.shape
        positions = ops.arange(shape(inputs)[1], dtype="int32") + start_index
        if self.kind == "learned":
            if length is not None and length > self.max_length:
                raise ValueError(
                    "The input must not be longer than the number of learned positions."
                    f" Received: max_length={self.max_length}, input length={length}."
                )
            positions = ops.minimum(positions, self.max_length - 1)
            encoding = gather(self.positions, positions, axis=0)
        else:
            positions = positions + self.first_position
            encoding = sinusoids(positions, d_model, self.timescales)
        summed = ops.cast(inputs, "float32") + ops.cast(encoding, "float32")[None]
        return ops.cast(summed, self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "max_length": self.max_length,
            "timescales": self.timescales,
            "first_position": self.first_position,
        }
