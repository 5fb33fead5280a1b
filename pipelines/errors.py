"""The one error that stands for a mistake in the user's data."""


class DataError(ValueError):
    """Text, a tokenizer or a data setting cannot be used.

    The message is one line that names the file, the line or the setting, so that a
    command line can print it as it is.
    """
