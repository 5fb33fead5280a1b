from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from keras_transformer.cli.app import app
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.saving import open as models


class Translation(NamedTuple):
    text: str
    score: float


class ReversingModel:
    """Reverses sentences, of which it reads 20 characters; marks later candidates."""

    def __init__(self):
        self.beam_sizes = []
        self.patience = []
        self.exported = None
        self.aligned = None
        self.warn = None

    def translate(self, lines, n_best=1, first_line=1, **search):
        self.beam_sizes.append(search["beam_size"])
        self.patience.append(search["patience"])
        for number, line in enumerate(lines, first_line):
            if len(line) > 20:
                self.warn(f"line {number}: too long")
        return [
            [
                Translation(line[:20][::-1] + "'" * rank, -rank - 0.25)
                for rank in range(n_best if line else 1)
            ]
            for line in lines
        ]

    def score(self, sources, targets):
        return [PairScore(-float(len(target)), len(target) + 1) for target in targets]

    def align(self, sources, targets, line_numbers=None):
        self.aligned = line_numbers
        counts = [len(target.split()) for target in targets]
        return [[(count - 1 - j, j) for j in range(count)] for count in counts]

    def export(
        self,
        folder,
        beam_size=None,
        length_penalty=None,
        scores=(),
        license=None,
        tokenizer_ops="text",
        parallel_parts=1,
        jit_compile=False,
        patience=None,
    ):
        self.patience.append(patience)
        self.exported = (folder, beam_size, length_penalty)
        self.tokenizer_ops = tokenizer_ops
        self.parallel_parts = parallel_parts
        self.jit_compile = jit_compile
        self.card = (scores, license)
        return folder / "1"


@pytest.fixture
def reversing_model(monkeypatch):
    model = ReversingModel()

    def open_model(path, warn=None, **_):
        model.warn = warn
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

    def open_model(path, warn=None, ensemble=(), **options):
        key = (str(path), *map(str, ensemble), *options.items())
        if key not in opened:
            opened[key] = real(path, warn, ensemble, **options)
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
