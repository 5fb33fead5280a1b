from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from keras_transformer.cli.app import app
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.saving import open as models


class Translation(NamedTuple):
    text: str
    score: float


class ReversingTranslator:
    """Reverses the first 20 characters of a sentence and marks later candidates."""

    def __init__(self):
        self.searches = []
        self.warn = None

    def with_search(self, **changes):
        self.searches.append(changes)
        return self

    def translate(self, lines):
        return [best.text for best, *_ in self.n_best(lines)]

    def n_best(self, lines, n=1):
        for index, line in enumerate(lines):
            if len(line) > 20:
                self.warn(index, "too long")
        return [
            [
                Translation(line[:20][::-1] + "'" * rank, -rank - 0.25)
                for rank in range(n if line else 1)
            ]
            for line in lines
        ]

    def score(self, sources, targets):
        return [PairScore(-float(len(target)), len(target) + 1) for target in targets]

    def align(self, sources, targets):
        for index in range(len(targets)):
            if len(targets[index]) > 20:
                self.warn(index, "too long to align")
        counts = [len(target.split()) for target in targets]
        return [[(count - 1 - j, j) for j in range(count)] for count in counts]


@pytest.fixture
def translator(monkeypatch):
    translator = ReversingTranslator()

    def open_model(path, warn, **_):
        translator.warn = warn
        return translator

    monkeypatch.setattr(models, "open_model", open_model)
    return translator


@pytest.fixture
def model_path(tmp_path, translator):
    path = tmp_path / "run"
    path.mkdir()
    return str(path)


@pytest.fixture(scope="session")
def run_command():
    """Runs the command in this process and returns typer's result."""

    def run(*arguments, stdin=None):
        return CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)

    return run
