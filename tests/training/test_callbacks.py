"""What happens after each step, on a simulated model and clock, and the logs."""

import errno
import io
import json
import math
import os
import signal
import types

import keras
import pytest
from rich.console import Console

from keras_transformer import progress as progress_bar
from keras_transformer.training.callbacks import AfterStep, Progress, SaveOnSignal
from keras_transformer.training.replicas import SingleProcess
from keras_transformer.training.reporting import MetricsLog


@pytest.fixture
def clock(monkeypatch):
    """Replaces the module `time`. Tests advance `now`."""
    clock = types.SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("keras_transformer.training.callbacks.time", clock)
    monkeypatch.setattr(progress_bar, "time", clock)
    return clock


class Simulation:
    """A `Trainer` with its model, of which a test sets the result of each step."""

    workers, writes, skip_nonfinite = SingleProcess(), True, True

    def __init__(self, folder, clock, stage="", **options):
        self.progress = options.pop("progress", Progress())
        self.log = MetricsLog(folder, self.progress)
        self.path = folder / "metrics.jsonl"
        self.clock, self.stage, self.saved = clock, stage, []
        defaults = {"steps": 99, "checkpoint_minutes": 1e9, "checkpoint_steps": None}
        defaults |= {"validate": None, "validation_steps": 1, "metric": "bleu"}
        defaults |= {"patience": None, "log_steps": 99, "bar": False}
        defaults |= {"max_consecutive_skips": 9, "locate_batch": None}
        self.after_step = AfterStep(self, **(defaults | options))
        self.begin()

    def begin(self):
        """Begins a `fit`."""
        model = types.SimpleNamespace(stop_training=False, metrics=())
        model.optimizer = types.SimpleNamespace(learning_rate=0.5)
        model.last_fault = keras.Variable(0, dtype="int32")
        model.num_tokens = 10**9  # counted by an earlier `fit`
        self.model = model
        self.after_step.set_model(model)
        self.after_step.on_train_begin()

    def save(self):
        self.saved.append(self.progress.step)

    def step(self, seconds=0, tokens=0, loss=1.0, is_skipped=False):
        self.clock.now += seconds
        self.model.num_tokens += tokens
        self.model.last_fault.assign(int(is_skipped))
        self.after_step.on_train_batch_end(0, {"loss": loss})

    def rows(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "step", "minutes", "saved"),
    [
        # With steps of 4 minutes, at least 10 minutes have passed after three steps.
        ({"checkpoint_minutes": 10}, 0, 4, [3, 6, 9, 12, 15, 18, 21, 24]),
        ({"checkpoint_steps": 7}, 5, 60, [7, 14, 21, 28, 35, 42]),
    ],
)
def test_checkpoints_are_saved_by_time_or_by_steps(
    tmp_path, clock, options, step, minutes, saved
):
    run = Simulation(tmp_path, clock, progress=Progress(step=step), **options)
    for number in range(40):
        if number == 20:  # In a resumed run, the steps since the last checkpoint count.
            run.begin()
        run.step(60 * minutes)
    assert run.saved[: len(saved)] == saved
    assert run.progress.seconds == 40 * minutes * 60


@pytest.mark.parametrize(
    "options", [{"checkpoint_steps": 2}, {"checkpoint_minutes": 1}]
)
def test_checkpoint_waits_for_the_end_of_skipped_steps(tmp_path, clock, options):
    """Steps 4, 5 and 8 are skipped. Two steps take a minute."""
    run = Simulation(tmp_path, clock, **options)
    for step in range(1, 11):
        run.step(30, is_skipped=step in (4, 5, 8))
    # By time, the next checkpoint is due a minute after the one of step 6.
    by_time = [2, 6, 9]
    assert run.saved == ([2, 6, 9, 10] if "checkpoint_steps" in options else by_time)


@pytest.mark.parametrize(
    ("metric", "scores", "is_best"),
    [
        ("bleu", [3.0, 5.0, 5.0, 4.0], [1, 1, 0, 0]),
        ("perplexity", [9.0, 7.0, 7.5, 6.5], [1, 1, 0, 1]),
        ("perplexity", [math.nan, 8.0, math.nan], [0, 1, 0]),
        ("bleu", [math.nan, 0.0], [0, 1]),
        # Of equal scores, the one with the lower perplexity is better.
        (
            "bleu",
            [(5.0, 9.0), (5.0, 8.0), (5.0, 8.5), (6.0, 20.0), (6.0, math.nan)],
            [1, 1, 0, 1, 0],
        ),
    ],
)
def test_progress_records_the_best_score(metric, scores, is_best):
    progress = Progress()
    scores = [each if isinstance(each, tuple) else (each, None) for each in scores]
    for score, best in zip(scores, is_best, strict=True):
        progress.step += 1
        assert progress.record_score(metric, *score) == best
    last = max(number for number, best in enumerate(is_best) if best)
    assert (progress.best_score, progress.best_perplexity) == scores[last]
    assert progress.best_step == last + 1
    assert progress.validations_since_best == len(scores) - last - 1
    # Scores of another metric cannot be compared.
    other = {"bleu": "perplexity", "perplexity": "bleu"}[metric]
    assert progress.record_score(other, 50.0, 50.0)
    assert (progress.best_metric, progress.best_score) == (other, 50.0)


def test_save_on_signal_raises_after_last_step():
    """No further step sees the signal, so the context manager itself must raise."""
    saved = []
    with (
        pytest.raises(KeyboardInterrupt),
        SaveOnSignal(lambda: saved.append(1), SingleProcess()) as on_signal,
    ):
        on_signal.stop_if_requested()
        signal.raise_signal(signal.SIGINT)
    assert saved == [1]


@pytest.mark.parametrize("number", SaveOnSignal.SIGNALS)
def test_ignored_signals_do_not_stop_training(number):
    """`nohup` starts a process with SIGHUP ignored, and `repeat` with Ctrl-C, too."""
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        with SaveOnSignal(pytest.fail, SingleProcess()) as on_signal:
            signal.raise_signal(number)
            on_signal.stop_if_requested()
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, previous)


def test_closing_terminal_may_send_two_hangups():
    saved = []
    with (
        pytest.raises(SystemExit) as error,
        SaveOnSignal(lambda: saved.append(1), SingleProcess()) as on_signal,
    ):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        on_signal.stop_if_requested()
    # 128 plus the number of SIGHUP, 1.
    assert (error.value.code, saved) == (129, [1])


def test_progress_is_printed_without_terminal(tmp_path, clock, capsys):
    """A run is resumed at step 3. Steps take 20 s and have 1,400 tokens."""
    run = Simulation(
        *(tmp_path, clock, "stage 2 of 3"),
        progress=Progress(step=3),
        steps=20,
        bar=True,
        validate=lambda: {"bleu": 12.345, "perplexity": 6.7},
        validation_steps=5,
    )
    run.save_model = lambda name: None
    run.moving_average = types.SimpleNamespace(use_average=io.StringIO)
    with run.after_step:
        run.step(20, 1400)
        run.step(20, 1400, 4.5678)
        run.progress.step = 19
        run.step(300, loss=1.25)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    # 15 steps of 20 s remain.
    assert first == (
        "step 5 of 20 (stage 2 of 3): loss 4.568, 70 target tokens/s, 5:00 left"
    )
    assert last == (
        "step 20 of 20 (stage 2 of 3): loss 1.250, 0 target tokens/s, "
        "validation at 5: bleu 12.35 perplexity 6.70, 0:00 left"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04")],
)
def test_progress_bar_formats_the_remaining_time(clock, capsys, seconds, text):
    """The first step, which traces the model, does not count in the estimate."""
    with progress_bar.ProgressBar("training", 3, line_seconds=0.0) as bar:
        for done, step_seconds in ((1, 61), (2, seconds)):
            clock.now += step_seconds
            assert bar.is_due(done)
            bar.show(done, "", f"step {done}")
    assert capsys.readouterr().err.splitlines() == ["step 1", f"step 2, {text} left"]


@pytest.mark.parametrize("width", [80, 120])
def test_progress_bar_draws_on_terminal(monkeypatch, width):
    """In a narrow terminal, only the details are cut off."""
    screen = io.StringIO()
    options = {"force_terminal": True, "color_system": None, "width": width}
    console = Console(file=screen, **options)
    monkeypatch.setattr(progress_bar, "_Console", lambda stderr: console)
    with progress_bar.ProgressBar("training", 100_000, 11_999) as bar:
        details = "loss 4.568, 12,345 target tokens/s, validation at 5: perplexity 4.50"
        bar.show(100_000, details, "")
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
    monkeypatch, is_terminal, number, closed_at_start
):
    """With FORCE_COLOR, a pipe counts as a terminal."""
    pipe = Pipe()
    console = progress_bar._Console(file=pipe, force_terminal=is_terminal)
    monkeypatch.setattr(progress_bar, "_Console", lambda stderr: console)
    monkeypatch.setattr("sys.stderr", pipe)
    bar = progress_bar.ProgressBar("training", 2, line_seconds=0.0)
    if closed_at_start:
        pipe.number = number
    with bar:
        pipe.number = number
        for done in (1, 2):
            bar.is_due(done)
            bar.show(done, "", "line")


def test_log_has_the_rate_since_its_last_line(tmp_path, clock):
    run = Simulation(tmp_path, clock, log_steps=2)
    for tokens, seconds in ((100, 5), (200, 10), (700, 10), (200, 20)):
        run.step(seconds, tokens)
    # 300 tokens in 15 s, and 900 tokens in 30 s.
    assert [row["tokens_per_second"] for row in run.rows()] == [20, 30]


def test_log_has_null_metrics_without_tokens(tmp_path, clock):
    """All updates were skipped. The metrics would be loss 0 and perplexity 1."""
    run = Simulation(tmp_path, clock, log_steps=1)
    run.step(loss=0.0)
    run.step(tokens=3, loss=3.0)
    assert [row["loss"] for row in run.rows()] == [None, 3.0]


def log_of(folder, step=0):
    return MetricsLog(folder, Progress(step=step, seconds=12.34))


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
