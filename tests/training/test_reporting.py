"""The progress bar, and the log of metrics."""

import errno
import io
import json
import math
import os
import types

import pytest
from rich.console import Console

from keras_transformer import progress as progress_bar
from keras_transformer.training import callbacks, reporting


class Model:
    """The part of a model that the progress bar and the log use."""

    metrics = ()
    optimizer = types.SimpleNamespace(learning_rate=0.5)

    def __init__(self):
        self.tokens = 0.0
        self.token_counter = types.SimpleNamespace(result=lambda: self.tokens)


def test_progress_bar_prints_lines_without_terminal(clock, capsys):
    """A run is resumed at step 3 and has two steps of 10 s and 700 tokens each."""
    progress = callbacks.Progress(step=3)
    bar = reporting.ProgressReport(progress, 20, line_seconds=20.0)
    model = Model()
    model.tokens = 1e9  # counted by an earlier `fit`
    bar.set_model(model)
    with bar:
        bar.on_train_begin()
        for _ in range(2):
            clock.now += 10
            progress.step += 1
            model.tokens += 700
            bar.on_train_batch_end(0, {"loss": 4.5678})
        bar.show_validation({"bleu": 12.345, "perplexity": 6.7})
        clock.now += 400
        progress.step = 20
        bar.on_train_batch_end(0, {"loss": 1.25})
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    # 15 steps of 10 s remain.
    assert first == "step 5 of 20: loss 4.568, 70 target tokens/s, 2:30 left"
    assert last == (
        "step 20 of 20: loss 1.250, 0 target tokens/s, "
        "validation bleu 12.35 perplexity 6.70, 0:00 left"
    )


def test_progress_bar_names_the_stage(clock, capsys):
    bar = reporting.ProgressReport(
        callbacks.Progress(step=4, stage=2), 20, num_stages=3
    )
    bar.set_model(Model())
    with bar:
        bar.on_train_begin()
        bar.progress.step += 1
        clock.now += 30
        bar.on_train_batch_end(0, {"loss": 1.0})
    assert capsys.readouterr().err.startswith("step 5 of 20 (stage 2 of 3): loss 1.0")


@pytest.mark.parametrize("width", [80, 120])
def test_progress_bar_draws_on_terminal(monkeypatch, width):
    """In a narrow terminal, only the metrics are cut off."""
    screen = io.StringIO()
    options = {"force_terminal": True, "color_system": None, "width": width}
    console = Console(file=screen, **options)
    monkeypatch.setattr(progress_bar, "_Console", lambda stderr: console)
    bar = reporting.ProgressReport(callbacks.Progress(step=11_999), 100_000)
    bar.set_model(Model())
    with bar:
        bar.on_train_begin()
        bar.progress.step = 100_000
        bar.show_validation({"perplexity": 4.5, "bleu": 40.3})
        bar.on_train_batch_end(0, {"loss": 4.5678})
    *_, last = (line for line in screen.getvalue().splitlines() if "left" in line)
    assert "100000/100000 loss 4.568" in last and " left " in last
    assert ("target tokens/s" in last) == (width == 120)


class Pipe(io.StringIO):
    """A pipe or a terminal, which raises the error `number` once that is set."""

    number = None

    def write(self, text):
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)

    def flush(self):
        self.write("")


@pytest.mark.parametrize("closed_at_start", [False, True])
@pytest.mark.parametrize(
    ("is_terminal", "number"),
    [(False, errno.EPIPE), (True, errno.EPIPE), (True, errno.EIO)],
)
def test_progress_bar_ignores_closed_standard_error(
    monkeypatch, clock, is_terminal, number, closed_at_start
):
    """With FORCE_COLOR, a pipe counts as a terminal."""
    pipe = Pipe()
    console = progress_bar._Console(file=pipe, force_terminal=is_terminal)
    monkeypatch.setattr(progress_bar, "_Console", lambda stderr: console)
    monkeypatch.setattr("sys.stderr", pipe)
    bar = reporting.ProgressReport(callbacks.Progress(), 2, line_seconds=0.0)
    bar.set_model(Model())
    if closed_at_start:
        pipe.number = number
    with bar:
        pipe.number = number
        bar.on_train_begin()
        for _ in range(2):
            bar.progress.step += 1
            clock.now += 10
            bar.on_train_batch_end(0, {"loss": 1.0})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04")],
)
def test_progress_bar_formats_the_remaining_time(clock, capsys, seconds, text):
    """The first step, which traces the model, does not count in the estimate."""
    bar = reporting.ProgressReport(callbacks.Progress(), 3, line_seconds=0.0)
    bar.set_model(Model())
    with bar:
        bar.on_train_begin()
        for step_seconds in (61, seconds):
            bar.progress.step += 1
            clock.now += step_seconds
            bar.on_train_batch_end(0, {"loss": 1.0})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step 1 of 3: loss 1.000, 0 target tokens/s"
    assert second.endswith(f", {text} left")


def log_of(folder, step=0):
    return reporting.MetricsLog(folder, callbacks.Progress(step=step, seconds=12.34))


def test_training_log_writes_the_rate_since_the_last_line(tmp_path):
    log, model = log_of(tmp_path), Model()
    model.tokens = 1e9  # counted by an earlier `fit`
    callback = reporting.TrainingLog(log, every=2)
    callback.set_model(model)
    callback.on_train_begin()
    for tokens, seconds in ((100, 5), (200, 10), (700, 10), (200, 20)):
        log.progress.step += 1
        log.progress.seconds += seconds
        model.tokens += tokens
        callback.on_train_batch_end(0, {"loss": 1.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # 300 tokens in 15 s, and 900 tokens in 30 s.
    assert [json.loads(line)["tokens_per_second"] for line in lines] == [20, 30]


def test_training_log_has_null_metrics_without_tokens(tmp_path):
    """All updates were skipped. The metrics would be loss 0 and perplexity 1."""
    log, model = log_of(tmp_path), Model()
    callback = reporting.TrainingLog(log, every=1)
    callback.set_model(model)
    callback.on_train_begin()
    for tokens in (0.0, 3.0):
        log.progress.step += 1
        model.tokens += tokens
        callback.on_train_batch_end(0, {"loss": tokens})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [None, 3.0]


def test_metrics_log_writes_null_for_infinity(tmp_path):
    log_of(tmp_path, 7).write("validation", {"perplexity": math.inf, "bleu": 1 / 3})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "split": "validation",
        "step": 7,
        "seconds": 12.3,
        "perplexity": None,
        "bleu": 0.333333,
    }


def test_metrics_log_rewind_drops_later_steps(tmp_path):
    for step in (100, 200, 300):
        log_of(tmp_path, step).write("train", {"loss": 1.0})
    # A resumed run writes the scores of its final model again.
    log_of(tmp_path, 200).write("final", {"loss": 3.0})
    path = tmp_path / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"split": "train", "ste')  # killed while writing
    log = log_of(tmp_path, 200)
    log.rewind()
    log.progress.step = 300
    log.write("train", {"loss": 2.0})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [
        (100, 1.0),
        (200, 1.0),
        (300, 2.0),
    ]
