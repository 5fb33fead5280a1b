"""Checks of the values of options."""

import errno
import math
import pathlib
import re

from keras_transformer.errors import UserError, install_hint

# Python decodes the bytes of an argument that are not UTF-8 to lone surrogates.
SURROGATES = re.compile("[\ud800-\udfff]")


def check_values(arguments):
    """Raises `UserError` for values that no command can use.

    These are numbers that are not finite or do not fit in 64 bits, text that is not
    UTF-8, and paths with a loop of symbolic links.
    """
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, float) and not math.isfinite(each):
                raise UserError(f"{option} {each}: must be a finite number")
            if isinstance(each, int) and abs(each) >= 2**63:
                raise UserError(f"{option} {each}: must be below {2**63}")
            if isinstance(each, str) and SURROGATES.search(each):
                raise UserError(f"{each}: must be UTF-8")
            if isinstance(each, pathlib.Path):
                _check_links(each)


def _check_links(path):
    """Raises `UserError` if the symbolic links at `path` form a loop."""
    try:
        path.stat()
    except OSError as error:
        # The command itself reports other errors, with the purpose of the path.
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: {error.strerror}") from None


def check_bleu_tokenizer(name, label):
    """Raises `UserError` unless sacreBLEU has this tokenizer and its dependencies.

    The message begins with `label`.
    """
    from sacrebleu.metrics import BLEU

    from keras_transformer.recipes.schema import BLEU_EXTRAS, BLEU_TOKENIZERS

    if name not in BLEU_TOKENIZERS:
        known = ", ".join(BLEU_TOKENIZERS)
        raise UserError(f"{label}: must be one of {known}")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        # A package is missing, or sacreBLEU could not download a file.
        is_missing = name in BLEU_EXTRAS and not isinstance(error, OSError)
        reason = f"first run {install_hint(BLEU_EXTRAS[name])}" if is_missing else error
        raise UserError(f"{label}: {reason}") from None


def complete_scoring(given, defaults, metrics=("bleu",)):
    """Returns the scoring settings in `given`, with `defaults` in place of `None`."""
    scoring = {
        name: defaults[name] if value is None else value
        for name, value in given.items()
    }
    if "bleu" in metrics:
        is_given = given["tokenize"] is not None
        setting = "--tokenize " if is_given else "evaluation.tokenize="
        name = scoring["tokenize"]
        check_bleu_tokenizer(name, label=f"{setting}{name}")
    return scoring


def check_scoring_options(metrics, tokenize, lowercase):
    """Raises `UserError` for options that none of the metrics uses."""
    if tokenize is not None and "bleu" not in metrics:
        raise UserError("--tokenize needs --metric bleu")
    if lowercase is not None and {"bleu", "chrf"}.isdisjoint(metrics):
        option = "--lowercase" if lowercase else "--no-lowercase"
        raise UserError(f"{option} needs --metric bleu or chrf")


def check_moses_language(code):
    """Raises `UserError` unless the Moses tokenizer has rules for this language."""
    from keras_transformer.evaluation.compound_split import moses_languages

    if code not in moses_languages():
        known = ", ".join(moses_languages())
        raise UserError(f"--language {code}: must be one of {known}")
