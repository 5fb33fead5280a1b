"""Checks of options about scores, which depend on each other."""

from keras_transformer.errors import UserError, install_hint


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
