"""Turns a finished run into a packaged model.

    keras-transformer train phrases --output runs/phrases
    python benchmarks/pretrained.py phrases runs/phrases

The script writes `keras_transformer/pretrained/NAME`: a preset with weights in half
precision, its recipe, and a model card with the scores of these weights. It also writes
`NOTICE`.
"""

import argparse
import pathlib
import sys
import tempfile
from typing import NamedTuple

import keras_transformer as kt
from keras_transformer import evaluation, recipes
from keras_transformer.errors import UserError
from keras_transformer.export import export_preset
from keras_transformer.files import replace_file
from keras_transformer.runs.corpora import load_pairs
from keras_transformer.saving.names import CONFIG, MODEL, PRETRAINED, packaged_models

ROOT = pathlib.Path(__file__).resolve().parents[1]
_RECIPES = pathlib.Path(recipes.__file__).parent
_WEIGHTS_LICENSE = "The weights have the license of this package, Apache-2.0."


class Packaged(NamedTuple):
    """A packaged model. `pack` needs a recipe of the same name.

    Attributes:
        description: One line for `keras-transformer models`.
        origin: Origin and license of the training text, with the attribution.
        max_bytes: Maximum size of the folder.
    """

    description: str
    origin: str
    max_bytes: int


_TATOEBA = (
    "sentence pairs from www.manythings.org/anki, which come from the Tatoeba project, "
    "https://tatoeba.org, under the license CC BY 2.0 FR, "
    "https://creativecommons.org/licenses/by/2.0/fr/"
)
MODELS = {
    "europarl_en_fr": Packaged(
        "English to French: news, debates, everyday sentences, software texts",
        "Trained on the proceedings of the European Parliament (Europarl v7, Koehn "
        "2005, https://www.statmt.org/europarl, whose makers know of no copyright "
        f"restrictions), on {_TATOEBA}, and on the translation catalogues of these "
        "GitHub repositories: under CC BY 4.0 google/comprehensive-rust, under CC BY "
        "3.0 GNOME/gnome-user-docs, KiCad/kicad-doc, under CC0 python/python-docs-fr "
        "(English: PSF license) and metabrainz/picard-docs, under BSD licenses "
        "django/django-docs-translations, ankitects/anki-core-i18n, "
        "OpenRefine/OpenRefine, shadow-maint/shadow, hotosm/tasking-manager and "
        "sphinx-doc/sphinx, under Apache 2.0 openstack/horizon, openstack/nova, "
        "matrix-org/matrix-react-sdk, pypi/warehouse and OpenPrinting/cups, and under "
        "the MIT license godotengine/godot-editor-l10n, "
        "cds-snc/notification-admin, cds-snc/platform-forms-client, gogs/gogs, "
        "bitcoin-dot-org/bitcoin.org, wikimedia/mediawiki-extensions-VisualEditor, "
        "wikimedia/mediawiki-extensions-Echo and KDE/kate. The text is not included.",
        27_000_000,
    ),
    "phrases": Packaged(
        "English to German: dates, times, numbers, amounts of money, measurements and "
        "names",
        "Trained on phrases from the Unicode Common Locale Data Repository (CLDR), "
        "https://cldr.unicode.org, as the package Babel contains it. Copyright "
        "Unicode, Inc., Unicode License v3, https://www.unicode.org/license.txt.",
        600_000,
    ),
    "tatoeba_en_de": Packaged(
        "English to German: short everyday sentences",
        f"Trained on {_TATOEBA}. The text is not included.",
        12_000_000,
    ),
}


def pack(name, run, folder=None, samples=0):
    """Packs a run. Returns the folder and the scores.

    Args:
        name: Key of `MODELS`.
        run: Folder of a finished run with the recipe of that name.
        folder: Folder to write. If `None`, `keras_transformer/pretrained/NAME`.
        samples: Number of evenly spaced test sentences to print with translations.

    Raises:
        UserError: If the run is unfinished, has other settings than the recipe, or the
            result exceeds `max_bytes`.
    """
    packaged, run = MODELS[name], pathlib.Path(run)
    if not (run / MODEL).is_file():
        raise UserError(f"{run}: this run is not finished: {MODEL} is missing")
    recipe = recipes.load_recipe(run / CONFIG)
    _check_recipe(run, recipe, recipes.load_recipe(name))
    translator = kt.open_model(run)
    translator.model = in_float32(translator.model)
    options = {
        "license": f"{_WEIGHTS_LICENSE} {packaged.origin}",
        "dtype": "float16",
        "description": packaged.description,
        "texts": {"recipe.yaml": (_RECIPES / f"{name}.yaml").read_text("utf-8")},
    }
    with tempfile.TemporaryDirectory() as temporary:
        # The scores are measured with the weights in half precision.
        half = export_preset(translator, f"{temporary}/{name}", **options)
        size = sum(each.stat().st_size for each in half.rglob("*") if each.is_file())
        if size > packaged.max_bytes:
            raise UserError(
                f"{name} must have at most {packaged.max_bytes:,} bytes. Received: "
                f"{size:,} bytes"
            )
        scores = _evaluate(kt.open_model(half), recipe, samples)
    folder = pathlib.Path(folder or PRETRAINED / name)
    return export_preset(translator, folder, scores=scores, **options), scores


def in_float32(model):
    """Returns a copy that computes in float32, which is fast on every processor."""
    config = {**model.get_config(), "dtype": "float32"}
    copy = kt.Transformer.from_config(config)
    copy.build({"source_ids": (None, None), "target_ids": (None, None)})
    copy.set_weights(model.get_weights())
    return copy


def _check_recipe(run, found, expected):
    """Raises `UserError` unless the run has the recipe's settings."""
    found, expected = (_flat(each.model_dump()) for each in (found, expected))
    keys = sorted(key for key in expected if found.get(key) != expected[key])
    if keys:
        raise UserError(f"{run}: differs from the recipe in {', '.join(keys)}")


def _flat(values, prefix=""):
    """Flattens nested mappings to dotted keys.

    Lists of paths in `data` are reduced to file names, because a run stores absolute
    paths.
    """
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif prefix.startswith("data.") and isinstance(value, list):
            flat[prefix + key] = [pathlib.PurePath(each).name for each in value]
        else:
            flat[prefix + key] = value
    return flat


def _evaluate(translator, recipe, samples):
    """Returns the scores on the test text or, if it is missing, the validation text.

    Prints `samples` sentences with their translations and references.
    """
    splits = load_pairs(recipe.data)
    split = "test" if "test" in splits else "validation"
    sources, references = map(list, zip(*splits[split], strict=True))
    hypotheses = translator.translate(sources)
    step = max(1, len(sources) // samples) if samples else len(sources) + 1
    for row in range(0, len(sources) if samples else 0, step)[:samples]:
        print(f"{sources[row]}\n  {hypotheses[row]}\n  ({references[row]})")
    scores = []
    for score in (
        evaluation.bleu(hypotheses, references),
        evaluation.chrf(hypotheses, references),
    ):
        named = {"name": f"{score.metric}, {split}, {len(sources)} sentences"}
        scores.append({**named, "score": score.score, "signature": score.signature})
    return scores


def notice():
    """Returns the content of `NOTICE` for the models that the package contains."""
    parts = ["keras_transformer\n\nModels of this package and the text behind them:\n"]
    for name in packaged_models():
        parts.append(f"keras_transformer/pretrained/{name}\n{MODELS[name].origin}\n")
    return "\n".join(parts)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=0, help="translations to print")
    options = parser.parse_args(arguments)
    try:
        folder, scores = pack(options.name, options.run, samples=options.samples)
    except UserError as error:
        sys.exit(f"error: {error}")
    with replace_file(ROOT / "NOTICE") as temporary:
        temporary.write_text(notice(), encoding="utf-8")
    print(folder)
    for each in scores:
        print(f"{each['name']}: {each['score']:.2f}  {each['signature']}")


if __name__ == "__main__":
    main()
