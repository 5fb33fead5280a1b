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
import types

import numpy as np
import prepared
import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer.cli import common, console

COMMAND = [sys.executable, "-m", "keras_transformer"]
# Runs a command, then prints which heavy modules it has imported.
LOADED = (
    "import sys; sys.argv = {arguments!r}\n"
    "from keras_transformer.cli import main\n"
    "try:\n    main()\n"
    "finally:\n    print([name for name in ('tensorflow', 'keras', 'pandas') "
    "if name in sys.modules], *(name for name in sys.modules if '.cli.' in name), "
    "file=sys.stderr)"
)


def loaded_modules(*arguments):
    """Returns the heavy modules and the modules of commands that a command imported."""
    script = LOADED.format(arguments=["keras-transformer", *map(str, arguments)])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    return done.stderr.splitlines()[-1]


def test_help_imports_no_heavy_library_and_no_command():
    assert loaded_modules("--help") == "[] keras_transformer.cli.app"


def test_package_runs_as_a_module():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"keras-transformer {keras_transformer.__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "nowhere"],
        ["translate", "phrases", "--input", "nowhere"],
        ["evaluate", "phrases", "--source", "nowhere", "--reference", "nowhere"],
        ["train"],
        ["train", "multi30k_en_d", "--output", "x"],
        ["train", "phrases", "--set", "training.step=3", "--output", "x"],
        ["train", "files", "--from", "nowhere", "--output", "x"],
        ["average", "nowhere"],
        ["translate", "phrases", "--sampling", "--top-p", "2"],
        ["update-vocabulary", "phrases", "--size", "3", "--output", "x"],
        ["compare", "--reference", "nowhere", "a", "b"],
        ["info", "nowhere"],
        ["plot", "nowhere"],
    ],
)
def test_argument_errors_need_no_tensorflow(arguments):
    assert loaded_modules(*arguments).startswith("[]")


def test_train_without_a_recipe_lists_recipes(run_command):
    result = run_command("train")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"phrases", "multi30k_en_de", "wmt14_en_fr_big", "files"} <= set(names)


def test_train_names_a_mistake(run_command, tmp_path):
    command = ["train", "phrases", "--set", "training.warmup_step=3"]
    result = run_command(*command, "--output", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: phrases: unknown key training.warmup_step; did you mean "
        "training.warmup_steps?\n",
    )
    assert not (tmp_path / "run").exists()
    result = run_command("train", "phrases")
    assert result.exit_code == 2 and "--output" in result.stderr


def replace_experiment(monkeypatch, run):
    """Makes commands call `run` instead of `runs.train.train`."""
    fake = types.SimpleNamespace(train=run)
    monkeypatch.setitem(sys.modules, "keras_transformer.runs.train", fake)


def test_train_passes_its_overrides(run_command, tmp_path, monkeypatch):
    calls = []

    def run(recipe, output, **options):
        calls.append((recipe, output, options))
        return {"steps": 7, "seconds": 1.23456}

    replace_experiment(monkeypatch, run)
    result = run_command(
        *["train", "files", "--output", tmp_path / "run"],
        *["--set", "data.train.source=a.en", "--set", "data.train.target=a.de"],
        *["--set", "training.steps=7", "--restart", "--deterministic"],
    )
    assert result.exit_code == 0, result.stderr
    recipe, output, options = calls[0]
    assert recipe.data.train.source == [os.path.abspath("a.en")]
    assert (recipe.training.steps, recipe.training.deterministic) == (7, True)
    assert output == tmp_path / "run"
    assert options == {
        "allow_changes": False,
        "restart": True,
        "worker_timeout": 30.0,
        "allow_unsafe": False,
        "progress": True,
    }
    assert result.stdout == "steps: 7\nseconds: 1.235\n"


def test_train_explains_how_to_resume(run_command, tmp_path, monkeypatch):
    def run(*_, **__):
        raise KeyboardInterrupt

    replace_experiment(monkeypatch, run)
    result = run_command("train", "phrases", "--output", tmp_path)
    assert result.exit_code == 130
    assert "run the same command again to resume" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("demo",), ("ablate", "phrases", "--output", "x")]
)
def test_other_commands_refuse_a_cluster(run_command, monkeypatch, arguments):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    result = run_command(*arguments)
    assert result.exit_code == 2
    assert f"TF_CONFIG is set, but {arguments[0]} does not" in result.stderr


# Runs `translate` with a model that returns its input after some seconds.
FAKE = textwrap.dedent("""
    import sys, time
    from collections import namedtuple
    from keras_transformer import opening as models
    Translation = namedtuple("Translation", "text score")
    class Model:
        def n_best(self, sentences, n):
            print("translating", file=sys.stderr, flush=True)
            time.sleep({seconds})
            return [[Translation(s, 0.0)] for s in sentences]
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


def test_average_names_the_expected_folder(run_command, tmp_path):
    (tmp_path / "model.keras").touch()
    (tmp_path / "config.yaml").touch()
    expected = "must be a run folder, with a config.yaml"
    result = run_command("average", tmp_path / "model.keras")
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: {tmp_path}/model.keras: {expected}. Did you mean {tmp_path}?\n",
    )


def test_output_folders_must_not_be_files(run_command, model_path):
    file = f"{model_path}/model.keras"
    for command in (
        ["export", model_path, file],
        ["train", "phrases", "--output", file],
        ["demo", "--output", file],
        ["demo", "--export", file],
        ["ablate", "phrases", "--output", file],
    ):
        result = run_command(*command)
        assert result.exit_code == 2
        assert result.stderr == f"error: {file}: must be a folder, not a file\n"
        inside = [f"{file}/inner" if word == file else word for word in command]
        result = run_command(*inside)
        expected = f"{file}/inner: {file}: must be a folder, not a file"
        assert result.stderr == f"error: {expected}\n"


def test_streams_of_quiet_libraries_stay_open(monkeypatch, tmp_path, capfd):
    """A library that keeps `sys.stderr` never writes into a file opened later.

    If `quiet_libraries` closed its stream, the next file would get the same descriptor.
    """
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    monkeypatch.setattr(common, "_SHOWS_LIBRARIES", False)
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
    run_command, model_path, translator, tmp_path, monkeypatch, exhaust
):
    def attention_of(*arguments):
        exhaust()

    translator.model = translator.tokenizer = None
    monkeypatch.setattr("keras_transformer.visualization.attention_of", attention_of)
    command = ("visualize", model_path, "--source", "x", "--output", tmp_path / "att")
    result = run_command(*command)
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    assert re.match("error: not enough memory: (Unable to allocate|OOM when)", error)


def test_too_many_open_files_are_not_reported_as_exhausted_memory(
    run_command, model_path, monkeypatch
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


def test_recipe_file_names_must_be_utf8(run_command, tmp_path):
    result = run_command("init", tmp_path / "caf\udce9.yaml")
    assert result.exit_code == 2
    assert result.stderr.endswith(r"caf\udce9.yaml: must be UTF-8" "\n")
    assert result.stderr.count("\n") == 1 and not [*tmp_path.iterdir()]
