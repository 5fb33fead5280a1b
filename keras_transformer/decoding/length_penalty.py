"""Length penalties: what a hypothesis's log-probability is divided by.

A length counts generated tokens, the end id included and the start id not.
"""

import functools

from keras import ops


def gnmt(length, alpha):
    """GNMT's penalty, `((5 + length) / 6) ** alpha` (paper section 6.1).

    Args:
        length: integer or float tensor of any shape, at least 1.
        alpha: float, at least 0; 0 means no penalty.

    Returns:
        float32 tensor of the shape of `length`.
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, float(alpha))


def power(length, alpha):
    """The plain `length ** alpha` of fairseq, Marian and CTranslate2.

    Args and result are those of `gnmt`; with `alpha=1` scores are means per token.
    """
    return ops.power(ops.cast(length, "float32"), float(alpha))


LENGTH_PENALTIES = {"gnmt": gnmt, "power": power}


def get_length_penalty(kind, alpha):
    """The penalty called `kind` as a function of the length alone.

    Raises:
        ValueError: unknown `kind`, or an `alpha` below 0, which would reward
            hypotheses for being short and undo the search's proof that it may stop.
    """
    if kind not in LENGTH_PENALTIES:
        raise ValueError(
            f"`length_penalty_kind` must be one of {sorted(LENGTH_PENALTIES)}. "
            f"Received: length_penalty_kind={kind!r}."
        )
    if not alpha >= 0:
        raise ValueError(
            f"`length_penalty` must be at least 0. Received: length_penalty={alpha}."
        )
    return functools.partial(LENGTH_PENALTIES[kind], alpha=alpha)
