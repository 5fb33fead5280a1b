"""Keyword arguments of version 0.1, accepted with a warning for one release."""

import copy
import dataclasses
import functools
import inspect
import sys

from keras_transformer._deprecated import take_renamed
from keras_transformer._deprecated import warn_deprecated
from keras_transformer.decoding.loop import StepDecoder

# Old names of arguments, and the fields of `SpecialIds` and `StepDecoder` that replace
# them.
_IDS = {"pad_id": "pad", "start_id": "start", "end_id": "end"}
_STEP = {
    "next_token_logits": "step",
    "reorder_cache": "reorder",
    "settle_cache": "compact",
    "normalized": "returns_log_probs",
}


def replace_fields(settings, options, argument):
    """Returns a copy of `settings` in which old keyword arguments replace fields.

    Args:
        settings: `BeamSearch` or `Sampling`.
        options: The old arguments, a mapping of field names to values.
        argument: Name of the argument that takes `settings` now.

    Raises:
        TypeError: If `settings` has no such field.
    """
    names = {field.name for field in dataclasses.fields(settings)}
    for name in options:
        if name not in names:
            raise TypeError(f"unexpected keyword argument {name!r}")
        new = f"{argument}={type(settings).__name__}({name}=...)"
        warn_deprecated(f"{name}=", new)
    return dataclasses.replace(settings, **options)


def accept_line_numbers(method):
    """Decorates a method of `Translator` so that it also accepts line numbers.

    The old arguments set the line numbers in warnings. `first_line` is the number of
    the first line, and `line_numbers` is a list with the number of each line.
    """

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        for old in {"first_line", "line_numbers"} & kwargs.keys():
            warn_deprecated(f"{old}=", "Translator(warn=...)")
            numbers = kwargs.pop(old)
            if old == "first_line":
                numbers = range(numbers, sys.maxsize)
            if numbers is not None:
                self = _renumber_lines(self, numbers)
        return method(self, *args, **kwargs)

    return wrapper


def _renumber_lines(translator, numbers):
    """Returns a copy of a translator whose warnings use `numbers` as line numbers."""
    renumbered = copy.copy(translator)
    renumbered.warn = lambda index, text: translator.warn(numbers[index] - 1, text)
    return renumbered


@accept_line_numbers
def translate_n_best(translator, lines, n_best=None, prefixes=None):
    """Deprecated name of `n_best`."""
    warn_deprecated("translate_n_best", "n_best")
    return translator.n_best(lines, n_best, prefixes)


def accept_old_arguments(search):
    """Decorates a search so that it also accepts the old keyword arguments."""
    signature = inspect.signature(search)
    names = signature.parameters

    @functools.wraps(search)
    def wrapper(*args, **kwargs):
        old = {name: kwargs.pop(name) for name in [*kwargs] if name not in names}
        if not old:
            return search(*args, **kwargs)
        given = signature.bind_partial(*args, **kwargs)
        given.apply_defaults()
        _convert(given.arguments, old)
        return search(*given.args, **given.kwargs)

    return wrapper


def _convert(arguments, options):
    """Applies old keyword arguments to the arguments of a search, in place.

    Raises:
        TypeError: If a name is unknown.
        ValueError: If `forbidden_ids` has more than one id.
    """
    take = functools.partial(take_renamed, options)
    if not options.keys().isdisjoint(_STEP):
        step = {"step": arguments.get("decoder")}
        for old, new in _STEP.items():
            step[new] = take(old, f"decoder=StepDecoder({new}=...)", step.get(new))
        arguments["decoder"] = StepDecoder(**step)
    ids = arguments["ids"]
    changes = {}
    for old, new in _IDS.items():
        number = getattr(ids, new)
        changes[new] = take(old, f"ids=SpecialIds({new}=...)", number)
    new = "ids=SpecialIds(unknown=...)"
    forbidden = take("forbidden_ids", new, (ids.unknown,))
    if len(forbidden) > 1:
        raise ValueError(
            f"`forbidden_ids` must have at most one id. Received: {forbidden}."
        )
    changes["unknown"] = forbidden[0] if forbidden else None
    arguments["ids"] = ids._replace(**changes)
    drop_finished = arguments["drop_finished"]
    arguments["drop_finished"] = take("compaction", "drop_finished=", drop_finished)
    name = "search" if "search" in arguments else "sampling"
    arguments[name] = replace_fields(arguments[name], options, name)
