"""Keyword arguments of version 0.1, accepted with a warning for one release."""

import dataclasses
import warnings


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
