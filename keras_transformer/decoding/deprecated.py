"""Keyword arguments of version 0.1, accepted with a warning for one release."""

import dataclasses
import warnings

from keras_transformer.decoding.loop import StepFunction

_IDS = {"pad_id": "pad", "start_id": "start", "end_id": "end"}
_STEP = {
    "next_token_logits": "step",
    "reorder_cache": "reorder",
    "settle_cache": "compact",
    "normalized": "gives_log_probs",
}


def warn_renamed(old, new, stacklevel=3):
    """Warns the caller of the deprecated function, or of one that takes `old`."""
    warnings.warn(
        f"`{old}` is deprecated. Use `{new}`.", DeprecationWarning, stacklevel
    )


def take_renamed(options, old, new, value):
    """Removes the argument `old` from `options` and returns it, or else `value`."""
    if old not in options:
        return value
    warn_renamed(f"{old}=", f"{new}=", 4)
    return options.pop(old)


def replace_fields(settings, options, argument):
    """Returns settings whose fields were given as keyword arguments.

    Args:
        settings: `BeamSearch` or `Sampling`.
        options: Mapping of field names to values.
        argument: Name of the argument that takes `settings` now.

    Raises:
        TypeError: If `settings` has no such field.
    """
    names = {field.name for field in dataclasses.fields(settings)}
    for name in options:
        if name not in names:
            raise TypeError(f"unexpected keyword argument {name!r}")
        warn_renamed(f"{name}=", f"{argument}={type(settings).__name__}({name}=...)", 4)
    return dataclasses.replace(settings, **options)


def convert_search_arguments(settings, decoder, ids, drop_finished, options):
    """Converts keyword arguments of a search.

    Args:
        settings: `BeamSearch` or `Sampling`.
        decoder: Decoder, step function, or `None`.
        ids: `SpecialIds`.
        drop_finished: The new name of `compaction`.
        options: Mapping of old names to values.

    Returns:
        `(settings, decoder, ids, drop_finished)`.

    Raises:
        TypeError: If a name is unknown.
    """
    if not options:
        return settings, decoder, ids, drop_finished
    options = dict(options)
    if not options.keys().isdisjoint(_STEP):
        step = {"step": decoder}
        for old, new in _STEP.items():
            step[new] = take_renamed(
                options, old, f"StepFunction({new})", step.get(new)
            )
        decoder = StepFunction(**step)
    changes = {}
    for old, new in _IDS.items():
        number = getattr(ids, new)
        changes[new] = take_renamed(options, old, f"SpecialIds({new})", number)
    forbidden = take_renamed(
        options, "forbidden_ids", "SpecialIds(unknown)", (ids.unknown,)
    )
    (changes["unknown"],) = forbidden or (None,)
    drop_finished = take_renamed(options, "compaction", "drop_finished", drop_finished)
    argument = "search" if hasattr(settings, "beam_size") else "sampling"
    settings = replace_fields(settings, options, argument)
    return settings, decoder, ids._replace(**changes), drop_finished
