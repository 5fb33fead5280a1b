"""Length penalties, which divide a hypothesis's log-probability.

A length counts the tokens of a hypothesis, including a forced prefix and the end id,
but not the start id.
"""

import functools
import math

from keras import ops


def gnmt(length, alpha):
    """Computes `((5 + length) / 6) ** alpha` in float32.

    The paper (section 6.1) takes this penalty from GNMT (Wu et al., 2016).
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, float(alpha))


def power(length, alpha):
    """Computes `length ** alpha` in float32, as fairseq, Marian, and CTranslate2 do.

    With `alpha=1`, scores are mean log-probabilities per token.
    """
    return ops.power(ops.cast(length, "float32"), float(alpha))


LENGTH_PENALTIES = {"gnmt": gnmt, "power": power}


def get_length_penalty(kind, alpha):
    """Returns the penalty `kind` with exponent `alpha` as a function of the length.

    Raises:
        ValueError: If `kind` is unknown, or `alpha` is infinite or below 0. A negative
            one would reward short hypotheses and invalidate the bound that stops the
            search.
    """
    if kind not in LENGTH_PENALTIES:
        raise ValueError(
            f"`length_penalty_kind` must be one of {sorted(LENGTH_PENALTIES)}. "
            f"Received: length_penalty_kind={kind!r}."
        )
    if not 0 <= alpha < math.inf:
        raise ValueError(
            "`length_penalty` must be at least 0 and finite. "
            f"Received: length_penalty={alpha}."
        )
    return functools.partial(LENGTH_PENALTIES[kind], alpha=alpha)
