"""Architecture details in which models of other toolkits differ from the paper.

`Transformer` accepts these details as the single argument `variations`, so that its
other arguments match the paper. No model in the paper's Table 3 needs them.
"""

import dataclasses
from dataclasses import dataclass

POSITION_RATES = ("paper", "tensor2tensor")


@dataclass(frozen=True)
class Variations:
    """Details in which other toolkits differ from the paper.

    The defaults match the paper, or tensor2tensor where the paper gives no value.

    Args:
        num_decoder_layers: Number of decoder layers. If `None`, the same as in the
            encoder.
        attention_bias: Whether the four projections of each attention layer have
            biases.
        logits_bias: Whether each logit has a bias.
        layer_norm_epsilon: Number added to the variance in all layer normalizations.
        position_rates: Frequencies of the sinusoids, `"paper"` (section 3.5) or
            `"tensor2tensor"` (see `sinusoids`). Only for `positions="sinusoidal"`.
        first_position: Index of the first position. Only for
            `positions="sinusoidal"`.
        zero_start_id: Start id, if its embedding is always zero. If `None`, the start
            id has an ordinary embedding.
        embedding_norm: Whether the sums of embeddings and positions are
            layer-normalized.
        source_vocabulary_size: Number of source ids, which then have a separate
            embedding matrix. If `None`, source and target share one matrix.
        tied_output: Whether the target's embedding matrix is also the output projection
            (section 3.4).

    Raises:
        ValueError: If a value is out of range.
    """

    num_decoder_layers: int | None = None
    attention_bias: bool = False
    logits_bias: bool = False
    layer_norm_epsilon: float = 1e-6
    position_rates: str = "paper"
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
            if value is not None and value < minimum:
                raise ValueError(
                    f"`{name}` must be at least {minimum}. Received: {value}."
                )
        if not self.layer_norm_epsilon > 0:
            raise ValueError(
                "`layer_norm_epsilon` must be above 0. "
                f"Received: {self.layer_norm_epsilon}."
            )
        if self.position_rates not in POSITION_RATES:
            raise ValueError(
                f"`position_rates` must be one of {', '.join(POSITION_RATES)}. "
                f"Received: {self.position_rates!r}."
            )

    def changes(self):
        """Returns the fields that differ from their defaults, as a dict of values."""
        values = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: values[name] for name in values if values[name] != defaults[name]}

    @classmethod
    def of(cls, value):
        """Converts a `Variations`, a dict of its fields, or `None` to `Variations`."""
        return value if isinstance(value, cls) else cls(**(value or {}))
