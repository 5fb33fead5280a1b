"""Search settings and license of a Hugging Face folder."""

import logging
import re
from typing import Any

from keras_transformer.errors import ModelError, RecipeError
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import escape_controls, read_json, shorten

logger = logging.getLogger(__name__)

_MAX_JSON_BYTES = 16 << 20
# The front matter of a README.md may list the scores of hundreds of language pairs.
_MAX_README_CHARACTERS = 1 << 18
# Settings of transformers' `generate` that have no equivalent, and the values with
# which they do not change translations.
_IGNORED_SETTINGS = {
    "begin_suppress_tokens": None,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "suppress_tokens": None,
}


def read_mapping(path):
    """Returns the mapping in a JSON file."""
    return read_json(path, dict[str, Any], _MAX_JSON_BYTES, ModelError)


def read_decoding(folder, config, end_id):
    """Converts settings of transformers' `generate` to a recipe's `decoding`.

    Logs a warning for settings that change translations and have no equivalent.
    """
    settings, path = config, folder / "config.json"
    if (folder / "generation_config.json").is_file():
        path = folder / "generation_config.json"
        settings = {**config, **read_mapping(path)}
    if settings.get("eos_token_id") not in (None, end_id, [end_id]):
        raise ModelError(
            f"{path}: eos_token_id must be {end_id}, the id of </s>. Received: "
            f"{settings['eos_token_id']!r:.80}"
        )
    beam_size, length_penalty = (
        1 if settings.get(name) is None else settings[name]
        for name in ("num_beams", "length_penalty")
    )
    for name, value, kinds, least, limit in (
        ("num_beams", beam_size, (int,), 1, 1000),
        ("length_penalty", length_penalty, (int, float), 0, 100),
    ):
        if type(value) not in kinds or not least <= value <= limit:
            noun = "a number" if float in kinds else "an integer"
            raise ModelError(
                f"{path}: {name} must be {noun} from {least} to {limit}. Received: "
                f"{value!r:.80}"
            )
    ignored = [
        f"{name}={settings[name]}"[:80]
        for name, neutral in _IGNORED_SETTINGS.items()
        if settings.get(name) not in (None, neutral)
    ]
    if ignored:
        logger.warning(
            "%s: settings without an equivalent are ignored: %s",
            folder,
            escape_controls(", ".join(ignored)),
        )
    decoding = {
        "beam_size": beam_size,
        "length_penalty": float(length_penalty),
        "length_penalty_kind": "power",
    }
    if settings.get("early_stopping") is True:
        # The search ends when `beam_size` hypotheses have finished.
        decoding["patience"] = 1.0
    return decoding


def read_license(folder):
    """Returns the license or licenses in the front matter of README.md, or `None`."""
    path = folder / "README.md"
    if not path.is_file():
        return None
    # This codec removes a byte order mark.
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        head = file.read(_MAX_README_CHARACTERS)
    front_matter = re.match(r"---[ \t]*\n(.*?\n)---[ \t]*(\n|\Z)", head, re.DOTALL)
    try:
        settings = read_yaml(front_matter[1]) if front_matter else None
    except RecipeError:
        return None
    licenses = settings.get("license") if isinstance(settings, dict) else None
    licenses = licenses if isinstance(licenses, list) else [licenses]
    if not licenses or not all(isinstance(each, str) and each for each in licenses):
        return None
    return shorten(", ".join(licenses))
