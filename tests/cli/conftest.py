import dataclasses
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from keras_transformer.cli.app import app
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.saving import open as models


class Translation(NamedTuple):
    text: str
    score: float


class ReversingModel:
    """A translator that reverses 20 characters and marks later candidates."""

    def __init__(self):
        self.beam_sizes = []
        self.patience = []
        self.aligned = None
        self.warn = None
        self.search = BeamSearch()

    def with_search(self, forbidden=None, **changes):
        self.search = dataclasses.replace(BeamSearch(), **changes)
        return self

    def translate(self, lines):
        return [best.text for best, *_ in self.n_best(lines, 1)]

    def n_best(self, lines, n):
        self.beam_sizes.append(self.search.beam_size)
        self.patience.append(self.search.patience)
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
        self.aligned = self.warn.numbers
        counts = [len(target.split()) for target in targets]
        return [[(count - 1 - j, j) for j in range(count)] for count in counts]


@pytest.fixture
def reversing_model(monkeypatch):
    model = ReversingModel()

    def open_model(path, warn=None, **_):
        model.warn = warn
        model.search = BeamSearch()
        return model

    monkeypatch.setattr(models, "open_model", open_model)
    return model


@pytest.fixture
def model_path(tmp_path, reversing_model):
    path = tmp_path / "run"
    path.mkdir()
    return str(path)


@pytest.fixture(scope="module")
def models_stay_open():
    """A model that a module's tests open again is the one that has compiled already."""
    opened = {}
    real = models.open_model

    def open_model(path, ensemble=(), warn=None, **options):
        key = (str(path), *map(str, ensemble), *options.items())
        if key not in opened:
            opened[key] = real(path, ensemble=ensemble, **options)
        opened[key].warn = warn
        return opened[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "open_model", open_model)
        yield


@pytest.fixture(scope="session")
def run_command():
    """Runs the command in this process; gives typer's result."""

    def run(*arguments, stdin=None):
        return CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)

    return run
