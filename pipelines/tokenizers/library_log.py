"""Hides a message that SentencePiece logs for each model of this package."""

import re

from keras_transformer.native_output import filter_native_output

# The message reports that the normalization table is empty. The models of this package
# have no such table, so the message would be logged for each of them. tensorflow-text's
# copy of the library has no option for the log level.
_MESSAGE = re.compile(rb"normalizer\.cc\(\d+\) LOG\(INFO\) precompiled_charsmap is e")


def hide_normalizer_message():
    """Removes SentencePiece's message about normalization from standard error."""
    return filter_native_output(_MESSAGE.match)
