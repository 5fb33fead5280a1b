"""Fixtures for tests of commands: a stand-in for models, and a runner."""

import os
from typing import NamedTuple
from unittest import mock

import pytest

from keras_transformer import opening as models
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding.scoring import PairScore


class Translation(NamedTuple):
    text: str
    score: float
    warnings: tuple[str, ...] = ()


class ReversingTranslator:
    """Stand-in for a `Translator`, whose results can be worked out by hand.

    A translation is the first 20 characters of the line, reversed. Candidate r (from 0)
    ends in r apostrophes and has the score -r - 0.25. A pair has the log-probability
    -n and n + 1 tokens, where n is the number of characters of the target. Words are
    aligned in reverse order. Lines of more than 20 characters cause a warning.

    `searches` receives the arguments of each call of `with_search`, and `calls` the
    other arguments of `n_best` and `sample`. The fixture `translator` sets `warn` when
    a command opens the model, and adds the other options of `open_model` to `opened`.
    """

    max_source_length = 256
    search = BeamSearch()

    def __init__(self):
        self.opened = []
        self.searches = []
        self.calls = []
        self.warn = None

    def with_search(self, **changes):
        self.searches.append(changes)
        return self

    def translate(self, lines, protect=()):
        return [best.text for best, *_ in self.n_best(lines)]

    def fingerprint(self):
        return "weights"

    def sample(self, lines, sampling, **options):
        self.calls.append((sampling, options))
        return self.n_best(lines, sampling.num_samples)

    def n_best(self, lines, n=1, **options):
        self.calls.append(options)
        warnings = [("too long",) * (len(line) > 20) for line in lines]
        for index, found in enumerate(warnings):
            for warning in found:
                self.warn(index, warning)
        return [
            [
                Translation(line[:20][::-1] + "'" * rank, -rank - 0.25, found)
                for rank in range(n if line else 1)
            ]
            for line, found in zip(lines, warnings, strict=True)
        ]

    def score(self, sources, targets):
        return [PairScore(-float(len(target)), len(target) + 1) for target in targets]

    def align(self, sources, targets):
        for index in range(len(targets)):
            if len(targets[index]) > 20:
                self.warn(index, "too long to align")
        counts = [len(target.split()) for target in targets]
        return [[(count - 1 - j, j) for j in range(count)] for count in counts]


@pytest.fixture(autouse=True)
def environment():
    """Restores the variables that the options of commands set."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def translator(monkeypatch):
    """The `ReversingTranslator` that `open_model` returns for any path."""
    translator = ReversingTranslator()

    def open_model(path, *, warn, **options):
        translator.warn = warn
        translator.opened.append(options)
        return translator

    monkeypatch.setattr(models, "open_model", open_model)
    return translator


@pytest.fixture
def model_path(tmp_path, translator):
    """Path that commands open as a `ReversingTranslator`."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "model.keras").touch()
    return str(path)
