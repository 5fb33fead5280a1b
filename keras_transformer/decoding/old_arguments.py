"""Keyword arguments of version 0.1, accepted for one release."""

import warnings

from keras_transformer.decoding.loop import StepFunction
from keras_transformer.decoding.options import SpecialIds

_IDS = {"pad_id": "pad", "start_id": "start", "end_id": "end"}
_STEP = {
    "next_token_logits": "step",
    "reorder_cache": "reorder",
    "settle_cache": "compact",
    "normalized": "gives_log_probs",
}


def convert(function, settings, decoder, ids, drop_finished, old):
    """Converts old keywords to `(settings, decoder, ids, drop_finished)`.

    Args:
        function: Name of the function that received them.
        settings: `BeamSearch` or `Sampling`.
        decoder: Decoder, step function, or `None`.
        ids: `SpecialIds`.
        drop_finished: The new name of `compaction`.
        old: Mapping of the old keywords.

    Raises:
        TypeError: If a keyword is unknown.
    """
    if not old:
        return settings, decoder, ids, drop_finished
    old = dict(old)
    kind = type(settings)
    new = f"`search={kind.__name__}(...)`, `ids=SpecialIds(...)`, and a decoder"
    warnings.warn(
        f"{function}: the arguments {', '.join(old)} are deprecated. Use {new}.",
        DeprecationWarning,
        stacklevel=3,
    )
    step = {_STEP[name]: old.pop(name) for name in list(old) if name in _STEP}
    if step:
        decoder = StepFunction(**({"step": decoder} | step))
    given = {_IDS[name]: old.pop(name) for name in list(old) if name in _IDS}
    if "forbidden_ids" in old:
        (given["unknown"],) = old.pop("forbidden_ids") or (None,)
    ids = SpecialIds(**{**ids._asdict(), **given})
    drop_finished = old.pop("compaction", drop_finished)
    fields = kind.__dataclass_fields__
    unknown = sorted(set(old) - set(fields))
    if unknown:
        raise TypeError(f"{function}: unknown arguments {', '.join(unknown)}")
    if old:
        settings = kind(**old)
    return settings, decoder, ids, drop_finished
