"""Ranges of values that are safe in float32. Does not import Keras."""

# Divisors of logits beyond these limits overflow or vanish.
MIN_TEMPERATURE = 1e-30
MAX_TEMPERATURE = 1e30
