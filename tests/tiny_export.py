"""A small model with random weights, and its SavedModel, for tests of any kind."""

import contextlib
import dataclasses
import pathlib
from unittest import mock

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.export import export_saved_model, model_card
from keras_transformer.export.signatures import Signatures

SENTENCES = ["der Hund läuft", "ein Hund und noch ein Hund", "die Katze schläft"]
TEXTS = ["der Hund läuft", "", "ein Hund und noch ein Hund", "  \t ", "läuft 🙂 der"]
SEARCH = {
    "search": kt.BeamSearch(beam_size=4, length_penalty=0.6, extra_length=7),
    "max_source_length": 40,
}


def tiny_model(num_layers=2, noise=0.3, kind="bpe", **changes):
    """Returns a built `Transformer` with random weights, and its tokenizer.

    `noise` is the standard deviation of the noise that is added to the initial weights.
    `kind` is that of the tokenizer. `changes` are other arguments of `Transformer`.
    """
    tokenizer = pipelines.train_tokenizer(kind, SENTENCES, 300)
    keras.utils.set_random_seed(3)
    arguments = {"d_model": 24, "d_ff": 40, "num_heads": 3, **changes}
    model = kt.Transformer(tokenizer.vocabulary_size, num_layers, **arguments)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    add_noise(model, noise)
    return model, tokenizer


def add_noise(model, noise):
    """Adds noise, since all sources have the same output with initial weights."""
    rng = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(weight + noise * rng.normal(size=weight.shape))


def separate_tokenizers(source=290, target=300):
    """Returns BPE tokenizers of two vocabularies of the given sizes."""
    return pipelines.SeparateTokenizers(
        *(pipelines.train_tokenizer("bpe", SENTENCES, n) for n in (source, target))
    )


def open_translator(model, tokenizer, search):
    """Returns a `Translator` like the one that `open_model` returns for a file."""
    translator = kt.Translator(model, tokenizer, tokenizer.target, search)
    translator.path = pathlib.Path("model.keras")
    return translator


def export_to_folder(export, translator, tmp_path_factory):
    """Calls `export` with a license; returns the translator and the export's path."""
    folder = tmp_path_factory.mktemp("exports") / "model"
    return translator, export(translator, folder, license="CC0-1.0")


@contextlib.contextmanager
def only_signatures(*names):
    """Limits exports within the context to the named signatures, to save tracing."""
    real = Signatures.functions

    def functions(signatures):
        return [each for each in real(signatures) if each[0] in names]

    with mock.patch.object(Signatures, "functions", functions):
        yield


def tiny_export(model, tokenizer, folder, **options):
    """Writes a SavedModel and returns the path of its version folder."""
    settings = {
        **dataclasses.asdict(SEARCH["search"]),
        "max_source_length": SEARCH["max_source_length"],
    }
    card = model_card(model, tokenizer, settings, license="CC0-1.0")
    return export_saved_model(
        model, tokenizer, folder, **SEARCH, texts={"MODEL_CARD.md": card}, **options
    )
