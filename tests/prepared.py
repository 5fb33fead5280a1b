"""Python processes that start in milliseconds, with TensorFlow already imported.

A server process imports the libraries once, which takes seconds, and forks for each
process. Tests of the modules that a process imports must use `subprocess` instead.
"""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import traceback
import types

LIBRARIES = ["tensorflow", "tensorflow_text", "keras_transformer.cli.app"]
LIBRARIES += ["keras_transformer.opening", "keras_transformer.training.trainer"]
LIBRARIES += ["keras_transformer.runs.train", "keras_transformer.export"]
# Runs the command line in `sys.argv[1:]`.
COMMAND = "from keras_transformer.cli import main; main()"
# Timeout in seconds. It is generous, because it only has to end hangs.
LIMIT = 300

_STREAMS = ("stdin", "stdout", "stderr")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LIBRARIES)


def start(code, *arguments, env=(), cwd=None, stdin=os.devnull, stdout, stderr):
    """Starts a process that runs like `python -c CODE ARGUMENTS`.

    `env` has the environment variables to change; `None` unsets one. A stream is the
    path of a file, to which output is appended, or the end of a pipe from
    `output_pipe`. Returns a `multiprocessing.Process`. If a signal ended it, its
    `exitcode` is negative.
    """
    streams = (stdin, stdout, stderr)
    words = ["-c", *map(str, arguments)]
    process = _context.Process(target=_run, args=(code, words, dict(env), cwd, streams))
    process.start()
    for stream in streams:
        if hasattr(stream, "close"):
            stream.close()
    return process


def script(path):
    """Returns code that runs a file like `python FILE`."""
    return f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"


def output_pipe():
    """Returns a text file to read from, and the end of the pipe for `start`."""
    reader, writer = _context.Pipe(duplex=False)
    with reader:
        return open(os.dup(reader.fileno()), encoding="utf-8"), writer


def run(code, *arguments, folder, stdin="", limit=LIMIT, **options):
    """Runs a process (see `start`) to its end, at most `limit` seconds.

    `stdin` is a text. `folder` gets files with standard input, output and error.
    Returns an object like `subprocess.run`, with `returncode`, `stdout` and `stderr`.
    """
    paths = {name: pathlib.Path(folder, f".{name}") for name in _STREAMS}
    for name, text in zip(_STREAMS, (stdin, "", ""), strict=True):
        paths[name].write_text(text, encoding="utf-8")
    process = start(code, *arguments, **paths, **options)
    try:
        process.join(limit)
        assert process.exitcode is not None, f"still running after {limit} s"
    finally:
        process.kill()
    texts = (paths[name].read_text("utf-8", "replace") for name in _STREAMS[1:])
    return types.SimpleNamespace(
        returncode=process.exitcode, **dict(zip(_STREAMS[1:], texts, strict=True))
    )


def _run(code, words, env, cwd, streams):
    """Runs a program in the fork. Never returns."""
    for number, stream in enumerate(streams):
        # Two streams may append to one file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        is_path = isinstance(stream, str | os.PathLike)
        opened = os.open(stream, flags, 0o644) if is_path else stream.fileno()
        os.dup2(opened, number)
        os.close(opened)
    for number, (name, mode) in enumerate(zip(_STREAMS, "rww", strict=True)):
        # As in a new Python process, only standard error is line-buffered.
        stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=number == 2)
        setattr(sys, name, stream)
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if cwd is not None:
        os.chdir(cwd)
    # Ctrl-C raises `KeyboardInterrupt`, as in a shell's foreground job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    exit_code = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        exit_code = end.code or 0
        if not isinstance(exit_code, int):
            print(exit_code, file=sys.stderr)
            exit_code = 1
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
