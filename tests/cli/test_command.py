"""The program as a whole: fast start, errors, signals, and streams.

Stand-ins replace models and training (see `ReversingTranslator` in conftest.py). The
module `prepared` starts processes that have already imported TensorFlow.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import prepared
import pytest
import tensorflow as tf
from commands import error_of, run_command

import keras_transformer
from keras_transformer.cli import console

COMMAND = [sys.executable, "-m", "keras_transformer"]
# Runs commands, then prints the heavy modules and those of commands that are imported.
LOADED = """
import sys
sys.argv = ["keras-transformer"]
from keras_transformer.cli import main
for words in {commands!r}:
    sys.argv = ["keras-transformer", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == {code}, words
heavy = {{"tensorflow", "keras", "pandas"}} & {{*sys.modules}}
print(*heavy, *(name for name in sys.modules if ".cli." in name), file=sys.stderr)
"""


def loaded_modules(*commands, code):
    """Returns the heavy modules and the modules of commands that commands import."""
    script = LOADED.format(commands=commands, code=code)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


def test_help_imports_no_heavy_library_and_no_command():
    assert loaded_modules(["--help"], code=0) == "keras_transformer.cli.app"


def test_package_runs_as_a_module():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"keras-transformer {keras_transformer.__version__}"


def test_argument_errors_need_no_tensorflow():
    found = loaded_modules(
        ["translate", "nowhere"],
        ["translate", "phrases", "--input", "nowhere"],
        ["evaluate", "phrases", "--source", "nowhere", "--reference", "nowhere"],
        ["train", "multi30k_en_d", "--output", "x"],
        ["train", "phrases", "--set", "training.step=3", "--output", "x"],
        ["train", "files", "--from", "nowhere", "--output", "x"],
        ["average", "nowhere"],
        ["translate", "phrases", "--sampling", "--top-p", "2"],
        ["extend-vocabulary", "phrases", "--size", "3", "--output", "x"],
        ["compare", "--reference", "nowhere", "a", "b"],
        ["info", "nowhere"],
        ["plot", "nowhere"],
        code=2,
    )
    assert found.startswith("keras_transformer.cli.")


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo",),
        ("ablate", "phrases", "--output", "x"),
        ("distill", "phrases", "--source", "x", "--output", "x"),
    ],
)
def test_other_commands_refuse_a_cluster(monkeypatch, arguments):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    error = error_of(run_command(*arguments))
    assert f"TF_CONFIG is set, but {arguments[0]} does not" in error


# Runs `translate` with a model that returns its input after some seconds.
FAKE = textwrap.dedent("""
    import sys, time
    from collections import namedtuple
    from keras_transformer import opening as models
    Translation = namedtuple("Translation", "text score warnings")
    class Model:
        def n_best(self, sentences, n):
            print("translating", file=sys.stderr, flush=True)
            time.sleep({seconds})
            return [[Translation(s, 0.0, ())] for s in sentences]
    models.open_model = lambda path, warn, **_: Model()
    sys.argv = ["keras-transformer", "translate", "phrases", *{options!r}]
    from keras_transformer.cli import main
    main()
""")


def test_translate_ends_quietly_on_a_broken_pipe(tmp_path):
    (tmp_path / "in").write_text("line\n" * 5_000)
    reader, writer = prepared.output_pipe()
    reader.close()
    process = prepared.start(
        FAKE.format(seconds=0, options=[]),
        stdin=tmp_path / "in",
        stdout=writer,
        stderr=tmp_path / "errors",
    )
    process.join()
    # 128 + 13, the number of SIGPIPE.
    assert process.exitcode == 141
    errors = (tmp_path / "errors").read_text()
    assert "Traceback" not in errors
    assert "Exception" not in errors


@pytest.mark.parametrize(
    ("code", "stdout", "message"),
    [
        (prepared.COMMAND, "/dev/full", "reading or writing failed: No space left"),
        (
            FAKE.format(seconds=0, options=["-o", "/dev/full"]),
            "out",
            "/dev/full: cannot be written (No space left",
        ),
    ],
)
def test_full_output_is_reported_in_one_line(tmp_path, code, stdout, message):
    (tmp_path / "in").write_text("line\n")
    process = prepared.start(
        code,
        "models",
        stdin=tmp_path / "in",
        stdout=tmp_path / stdout,
        stderr=tmp_path / "errors",
    )
    process.join()
    assert process.exitcode == 2
    errors = (tmp_path / "errors").read_text().removeprefix("translating\n")
    assert errors.startswith(f"error: {message}") and errors.count("\n") == 1


def test_translate_exits_with_130_on_ctrl_c(tmp_path):
    (tmp_path / "in").write_text("line\n")
    errors, stderr = prepared.output_pipe()
    process = prepared.start(
        FAKE.format(seconds=60, options=[]),
        stdin=tmp_path / "in",
        stdout=tmp_path / "out",
        stderr=stderr,
    )
    with errors:
        assert "translating\n" in iter(errors.readline, "")
        os.kill(process.pid, signal.SIGINT)
        text = errors.read()
    process.join()
    # 128 + 2, the number of SIGINT.
    assert process.exitcode == 130
    assert text.strip().endswith("interrupted")
    assert "Traceback" not in text


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_output_to_a_descriptor_does_not_truncate_its_file(tmp_path, path):
    """Same as `{ echo before; keras-transformer translate M -o PATH; } > file`."""
    code = "import os; os.write(1, b'before\\n')\n"
    code += FAKE.format(seconds=0, options=["-o", path])
    done = prepared.run(code, folder=tmp_path, stdin="line\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "before" and len(lines) == 2


@pytest.mark.parametrize(
    "command",
    [
        "export {model} {file}",
        "train phrases --output {file}",
        "demo --output {file}",
        "demo --export {file}",
        "ablate phrases --output {file}",
    ],
)
def test_output_folders_must_not_be_files(model_path, command):
    file = f"{model_path}/model.keras"
    for path, prefix in ((file, ""), (f"{file}/inner", f"{file}/inner: ")):
        words = command.format(model=model_path, file=path).split()
        message = f"error: {prefix}{file}: must be a folder, not a file\n"
        assert error_of(run_command(*words)) == message


def test_streams_of_quiet_libraries_stay_open(monkeypatch, tmp_path, capfd):
    """A library that keeps `sys.stderr` never writes into a file opened later.

    If `quiet_libraries` closed its stream, the next file would get the same descriptor.
    """
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    kept = []
    for _ in range(2):
        with console.quiet_libraries(), console.quiet_libraries():
            kept.append(sys.stderr)
            os.write(2, b"noise")
            print("message", file=sys.stderr)
        assert sys.stderr is sys.__stderr__
    with contextlib.ExitStack() as stack:
        for number in range(8):
            stack.enter_context(open(tmp_path / str(number), "w"))
        for number, stream in enumerate(kept):
            print(f"late {number}", file=stream, flush=True)
    assert all(path.read_text() == "" for path in tmp_path.iterdir())
    os.write(2, b"end\n")
    expected = ["message", "message", "late 0", "late 1", "end"]
    assert capfd.readouterr().err.splitlines() == expected


@pytest.mark.parametrize(
    "exhaust",
    [
        lambda: np.empty(2**62, "int8"),
        lambda: tf.random.stateless_uniform([2**17, 2**36], seed=[1, 2]),
        # The shape is an argument, so that TensorFlow does not fold it at tracing.
        lambda: tf.function(tf.random.stateless_uniform)(
            tf.constant([2**17, 2**30]), seed=[1, 2]
        ),
    ],
)
def test_exhausted_memory_is_an_error_in_one_line(
    model_path, translator, tmp_path, monkeypatch, exhaust
):
    def compute_attention(*arguments):
        exhaust()

    translator.model = translator.tokenizer = None
    monkeypatch.setattr(
        "keras_transformer.visualization.compute_attention", compute_attention
    )
    command = ("visualize", model_path, "--source", "x", "--output", tmp_path / "att")
    result = run_command(*command, code=2)
    error = result.stderr.splitlines()[-1]
    assert re.match("error: not enough memory: (Unable to allocate|OOM when)", error)


def test_too_many_open_files_are_not_reported_as_exhausted_memory(
    model_path, monkeypatch
):
    def require_exists(*paths):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            tf.io.read_file(str(model_path))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    monkeypatch.setattr("keras_transformer.cli.console.require_exists", require_exists)
    result = run_command("score", model_path, "--source", "a", "--target", "b")
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    assert error == f"error: {model_path}: Too many open files"


def test_file_names_may_contain_any_bytes(tmp_path):
    (tmp_path / "config.yaml").touch()
    row = {"split": "train", "step": 1, "seconds": 2.0, "loss": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    done = prepared.run(
        *(prepared.COMMAND, "plot", ".", "-o", "caf\udce9.png"),
        folder=tmp_path,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".stdout").read_bytes() == b"caf\xe9.png\n"
    assert b"caf\xe9.png" in os.listdir(os.fsencode(tmp_path))


def test_recipe_file_names_must_be_utf8(tmp_path):
    error = error_of(run_command("init", tmp_path / "caf\udce9.yaml"))
    assert error.endswith(r"caf\udce9.yaml: must be UTF-8" "\n")
    assert not [*tmp_path.iterdir()]
