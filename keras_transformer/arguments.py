"""The arguments of `Transformer`: their types and defaults, and what follows from them.

Recipes, sizes and the checks of model files derive from this list. A new value of
`positions`, for example, is added here and in its layer. This module imports no Keras.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

POSITIONS = ("sinusoidal", "learned", "relative", "rotary")
# Positions that only self-attention uses, so nothing is added to the embeddings.
ATTENTION_POSITIONS = ("relative", "rotary")
TIMESCALES = ("paper", "tensor2tensor")
NORM_PLACES = ("post", "pre")
# Projections of attentions and feed-forward networks that may have adapters.
PROJECTIONS = ("query", "key", "value", "output", "inner", "outer")
SCORE_MODES = ("scaled_dot", "dot", "additive")
_Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Variations:
    """Details of the model in which other toolkits differ from the paper.

    `Transformer` accepts them as the single argument `variations`, so that its other
    arguments match the paper. The defaults match the paper, or tensor2tensor where the
    paper gives no value. No model in the paper's Table 3 needs other values.

    Args:
        num_decoder_layers: Number of decoder layers. If `None`, the same as in the
            encoder.
        attention_bias: Whether the four projections of each attention layer have
            biases.
        logits_bias: Whether each logit has a bias.
        layer_norm_epsilon: Number added to the variance in all layer normalizations.
        timescales: Frequencies of the sinusoids, `"paper"` (10000^(-2i/d), section 3.5)
            or `"tensor2tensor"` (10000^(-2i/(d-2)), as in Marian). Only for
            `positions="sinusoidal"`.
        first_position: Index of the first position. Only for
            `positions="sinusoidal"`.
        zero_start_id: Id whose embedding is fixed at zero, so that the decoder starts
            from a zero vector, as in Marian. If `None`, the start id has an ordinary
            embedding.
        embedding_norm: Whether the sums of embeddings and positions are
            layer-normalized.
        source_vocabulary_size: Number of source ids, which then have a separate
            embedding matrix. If `None`, source and target share one matrix.
        tied_output: Whether the target's embedding matrix is also the output projection
            (section 3.4).

    Raises:
        ValueError: If a value is out of range.

    Examples:
        >>> deep = kt.Variations(num_decoder_layers=1, tied_output=False)
        >>> sizes = {"num_layers": 6, "d_model": 16, "d_ff": 16, "num_heads": 2}
        >>> model = kt.Transformer(100, **sizes, variations=deep)
        >>> model.get_config()["variations"]
        {'num_decoder_layers': 1, 'tied_output': False}
    """

    num_decoder_layers: int | None = None
    attention_bias: bool = False
    logits_bias: bool = False
    layer_norm_epsilon: float = 1e-6
    timescales: Literal[TIMESCALES] = "paper"
    first_position: int = 0
    zero_start_id: int | None = None
    embedding_norm: bool = False
    source_vocabulary_size: int | None = None
    tied_output: bool = True

    def __post_init__(self):
        minimums = {
            "num_decoder_layers": 1,
            "source_vocabulary_size": 1,
            "first_position": 0,
            "zero_start_id": 0,
        }
        for name, minimum in minimums.items():
            value = getattr(self, name)
            # Keras and TensorFlow fail on sizes beyond int32.
            if value is not None and not minimum <= value < 2**31:
                raise ValueError(
                    f"`{name}` must be at least {minimum} and below 2**31. "
                    f"Received: {value}."
                )
        if not self.layer_norm_epsilon > 0:
            raise ValueError(
                "`layer_norm_epsilon` must be above 0. "
                f"Received: {self.layer_norm_epsilon}."
            )
        require_choice("timescales", self.timescales, TIMESCALES)

    def changes(self):
        """Returns the fields that differ from their defaults, as a dict of values."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    @classmethod
    def of(cls, value):
        """Converts a `Variations`, a dict of its fields, or `None` to `Variations`."""
        return value if isinstance(value, cls) else cls(**(value or {}))


@dataclass
class ModelArguments:
    """Arguments of `Transformer` that a recipe sets, with the values of base.

    The docstring of `Transformer` describes them.
    """

    num_layers: PositiveInt = 6
    d_model: PositiveInt = 512
    d_ff: PositiveInt = 2048
    num_heads: PositiveInt = 8
    key_dim: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    dropout: _Fraction = 0.1
    attention_dropout: _Fraction = 0.0
    positions: Literal[POSITIONS] = "sinusoidal"
    max_length: PositiveInt | None = None
    max_distance: PositiveInt = 16
    normalization: Literal[NORM_PLACES] = "post"
    activation: Annotated[str, Field(min_length=1)] = "relu"
    attention_window: PositiveInt | None = None
    score_mode: Literal[SCORE_MODES] = "scaled_dot"
    variations: Variations | None = None


DEFAULTS = {field.name: field.default for field in dataclasses.fields(ModelArguments)}


def require_choice(name, value, choices):
    """Raises a `ValueError` if the argument `name` is not one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {value!r}."
        )


def with_head_dims(arguments):
    """Returns a mapping of arguments, completed by the widths of keys and values.

    `key_dim` and `value_dim` default to `d_model // num_heads`.
    """
    d_model, num_heads = arguments["d_model"], arguments["num_heads"]
    found = {name: arguments.get(name) for name in ("key_dim", "value_dim")}
    if None in found.values():
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` "
                f"are given. Received: num_heads={num_heads}, d_model={d_model}."
            )
        head_dim = d_model // num_heads
        found = {name: head_dim if n is None else n for name, n in found.items()}
    return {**arguments, **found}


def count_parameters(arguments):
    """Counts the parameters of a `Transformer` from a mapping of its arguments."""
    given = with_head_dims({**DEFAULTS, **arguments})
    variations = Variations.of(given["variations"])
    width, hidden = given["d_model"], given["d_ff"]
    # Widths of the keys and of the values of all heads together.
    keys, values = (given["num_heads"] * given[k] for k in ("key_dim", "value_dim"))
    attention = 2 * width * (keys + values)
    if variations.attention_bias:
        attention += 2 * keys + values + width
    if given["score_mode"] == "additive":
        attention += keys
    feed_forward = 2 * width * hidden + hidden + width
    norm = 2 * width
    num_layers = given["num_layers"]
    num_decoder_layers = variations.num_decoder_layers or num_layers
    count = num_layers * (attention + feed_forward + 2 * norm)
    if given["positions"] == "relative":
        vectors = 2 * given["max_distance"] + 1
        dims = given["key_dim"] + given["value_dim"]
        count += (num_layers + num_decoder_layers) * vectors * dims
    count += num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    # Encoder and decoder can each begin and end with another layer normalization.
    has_final_norm = given["normalization"] == "pre"
    count += 2 * (variations.embedding_norm + has_final_norm) * norm
    num_outputs = given.get("output_size") or given["vocabulary_size"]
    rows = given["vocabulary_size"] + (variations.source_vocabulary_size or 0)
    rows += 0 if variations.tied_output else num_outputs
    if given["positions"] == "learned":
        rows += 2 * given["max_length"]
    return count + rows * width + variations.logits_bias * num_outputs
