"""Progress on standard error: a bar in a terminal, else a line every half minute."""

import contextlib
import sys
import time

from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text


class _Console(Console):
    """Console that, unlike rich's, does not end the process after a broken pipe."""

    def on_broken_pipe(self):
        self.quiet = True


class _DetailsColumn(progress.ProgressColumn):
    """Column of details, the only one that is truncated in a narrow terminal."""

    def render(self, task):
        return Text(task.fields["details"], no_wrap=True, overflow="ellipsis")


class ProgressBar:
    """Shows progress on standard error, or nothing if it is closed.

    The label is in front of the bar, and the details are behind it. `total` may be
    `None`. If `transient`, the bar disappears at the end. If `has_first_line`,
    `show_count` prints a line at its first call, too.
    """

    def __init__(
        self,
        label,
        total,
        done=0,
        details="",
        line_seconds=30.0,
        transient=False,
        has_first_line=False,
    ):
        self.total = total
        self._has_first_line = has_first_line
        self._columns = label, done, details
        self._first = None  # time and number of units at the first call of `is_due`
        console = _Console(stderr=True)
        self._interval = 0.5 if console.is_terminal else line_seconds
        self._bar = None
        if console.is_terminal:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=20),
                progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
                _DetailsColumn(),
                progress.TimeElapsedColumn(table_column=Column(no_wrap=True)),
                progress.TextColumn("left"),
                progress.TextColumn("{task.fields[left]}"),
                console=console,
                transient=transient,
            )

    def __enter__(self):
        self._shown = time.monotonic()
        if self._bar is not None:
            label, done, details = self._columns
            fields = {"completed": done, "details": details, "left": "-:--"}
            try:
                self._bar.start()
                self._task = self._bar.add_task(label, total=self.total, **fields)
            except OSError:
                self.__exit__()
                self._bar = None
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()

    @property
    def seconds_since_shown(self):
        """Seconds since the last call of `show`, or since the start."""
        return time.monotonic() - self._shown

    def is_due(self, done):
        """Returns whether to call `show`. To be called after each group of units."""
        if self._first is None:
            self._first = time.monotonic(), done
        return self.seconds_since_shown >= self._interval

    def show(self, done, details, line):
        """Shows that `done` units are done.

        In a terminal, `details` is the text behind the bar. Otherwise, `line` is
        printed, with the time left at its end.
        """
        self._shown = now = time.monotonic()
        # The first unit is slower, because TensorFlow traces its functions. Only later
        # ones count in the estimate.
        left, (start, first) = None, self._first or (now, done)
        if self.total is not None and done > first:
            left = _clock((now - start) / (done - first) * (self.total - done))
        if self._bar is not None:
            fields = {"total": self.total, "completed": done, "left": left or "-:--"}
            self._bar.update(self._task, details=details, **fields)
            return
        with contextlib.suppress(OSError):
            line += f", {left} left" if left else ""
            print(line, file=sys.stderr, flush=True)

    def show_count(self, done, unit):
        """Shows the number of done units, if it is due."""
        is_first = self._first is None and self._has_first_line
        if self.is_due(done) or is_first:
            total = None if self.total is None else f"{self.total:,}"
            # "0 of 900" would read as if there were nothing to read.
            counts = [f"{done:,}"] if done else []
            counts += [total] if total else []
            line = f"{' of '.join(counts)} {unit}" if counts else "started"
            self.show(done, unit, f"{self._columns[0]}: {line}")

    @contextlib.contextmanager
    def pause(self, details):
        """Shows `details` in a terminal, and leaves this time out of estimates."""
        started = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, details=details)
        yield
        seconds = time.monotonic() - started
        self._shown += seconds
        if self._first is not None:
            self._first = self._first[0] + seconds, self._first[1]


def _clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
