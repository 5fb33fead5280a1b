"""Translates and scores on the backend of KERAS_BACKEND.

test_model_on_backends.py runs this script on JAX, and `results` in its own process, on
TensorFlow. The arguments are the paths of two `.keras` files and of a JSON file to
write.
"""

import json
import pathlib
import sys

import keras
from characters import Characters

from keras_transformer.decoding import BeamSearch, Ensemble, Sampling, Translator

# Of each length up to the limit, and lines that are divided or blank.
LINES = ["abc", "", "gfedcba", "a", "bad cafe.", "fed. bad. cab! ace, gag.", "dd"]


def translator_of(model):
    return Translator(
        model,
        Characters(),
        search=BeamSearch(3, extra_length=4),
        max_source_length=12,
        warn=lambda *_: None,
    )


def results(path, path_of_learned):
    """Returns n-best lists, scores, samples, and translations with prefixes.

    The second model has as many learned positions as `max_source_length`.
    """
    model = keras.saving.load_model(path)
    learned = keras.saving.load_model(path_of_learned)
    translator = translator_of(model)
    alone = [translator.translate([line])[0] for line in LINES]
    assert alone == translator.translate(LINES)
    samples = [translator.sample(LINES, Sampling(2, seed=seed)) for seed in (3, 4, 3)]
    assert samples[0] == samples[2] != samples[1]
    targets = ["abc", "", "gag", "e", "bad", "cab.", "a"]
    return {
        "n_best": translator.n_best(LINES, 3),
        "scores": translator.score(LINES, targets),
        "greedy": translator.sample(LINES, Sampling(2, top_k=1, seed=3)),
        "learned": translator_of(learned).n_best(LINES, 2),
        "ensemble": translator_of(Ensemble([model, model])).n_best(LINES, 2),
        "prefixes": translator.n_best(LINES, 2, prefixes=["ab"] * len(LINES)),
        "required": translator.n_best(
            LINES, 2, required=[["ga", ["be", "cad"]]] * len(LINES)
        ),
    }


if __name__ == "__main__":
    *models, output = sys.argv[1:]
    pathlib.Path(output).write_text(json.dumps(results(*models)), encoding="utf-8")
