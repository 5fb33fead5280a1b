"""The program as a whole: help, fast start, options, errors, signals, and streams.

Stand-ins replace models and training (see `ReversingTranslator` in conftest.py). The
module `prepared` starts processes that have already imported TensorFlow.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import types

import prepared
import pytest

import keras_transformer
from keras_transformer.cli import common, console

COMMANDS = [
    *("demo", "train", "evaluate", "translate", "score", "average", "export"),
    *("visualize", "ablate", "info", "compare", "filter", "update-vocabulary"),
    *("serve", "parse", "init", "plot"),
]
SUBCOMMANDS = ["corpus prepare", "corpus translate", "corpus score"]
COMMAND = [sys.executable, "-m", "keras_transformer"]
# Runs a command, then prints which heavy modules it has imported.
LOADED = (
    "import sys; sys.argv = {arguments!r}\n"
    "from keras_transformer.cli import main\n"
    "try:\n    main()\n"
    "finally:\n    print([name for name in ('tensorflow', 'keras', 'pandas') "
    "if name in sys.modules], file=sys.stderr)"
)


def loaded_modules(*arguments):
    """Returns the list of heavy modules that a command imported, as text."""
    script = LOADED.format(arguments=["keras-transformer", *map(str, arguments)])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", [*COMMANDS, *SUBCOMMANDS])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_each_command_shows_an_example(run_command, name, option):
    result = run_command(*name.split(), option)
    assert result.exit_code == 0
    assert f"  keras-transformer {name} " in result.stdout.replace("\n", " \n")


def test_help_imports_no_heavy_library():
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True)
    assert all(f"  {name} " in done.stdout for name in [*COMMANDS, "corpus"])
    assert loaded_modules("--help") == "[]"


def test_package_runs_as_a_module():
    command = [sys.executable, "-m", "keras_transformer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"keras-transformer {keras_transformer.__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "nowhere"],
        ["translate", ".", "--input", "nowhere"],
        ["evaluate", ".", "--source", "nowhere", "--reference", "nowhere"],
        ["evaluate", "."],
        ["train"],
        ["train", "multi30k_en_d", "--output", "x"],
        ["train", "phrases", "--set", "training.step=3", "--output", "x"],
        ["export", "nowhere", "x"],
        ["average", "nowhere"],
        ["train", "files", "--from", "nowhere", "--output", "x"],
        ["translate", ".", "--sampling", "--top-p", "2"],
        ["update-vocabulary", ".", "--size", "3", "--output", "x"],
        ["compare", "--reference", "nowhere", "a", "b"],
        ["filter", ".", "-s", "a", "-t", "b", "--output-source", "c"],
        ["info", "nowhere"],
        ["plot", "nowhere"],
        ["train", "phrases", "--output", "x", "--device", "tpu"],
    ],
)
def test_argument_errors_need_no_tensorflow(arguments):
    assert loaded_modules(*arguments) == "[]"


def test_train_without_a_recipe_lists_recipes(run_command):
    result = run_command("train")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"phrases", "multi30k_en_de", "wmt14_en_fr_big", "files"} <= set(names)


def test_train_names_an_unknown_recipe_key(run_command, tmp_path):
    result = run_command(
        *["train", "phrases", "--output", tmp_path / "run"],
        *["--set", "training.warmup_step=3"],
    )
    assert result.exit_code == 2
    assert result.stderr == (
        "error: phrases: unknown key training.warmup_step; did you mean "
        "training.warmup_steps?\n"
    )
    assert not (tmp_path / "run").exists()


def test_train_requires_an_output_folder(run_command):
    result = run_command("train", "phrases")
    assert result.exit_code == 2
    assert "--output" in result.stderr


def replace_experiment(monkeypatch, run):
    """Makes commands call `run` instead of `experiments.train.train`."""
    fake = types.SimpleNamespace(train=run)
    monkeypatch.setitem(sys.modules, "keras_transformer.experiments.train", fake)


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
    assert recipe.training.steps == 7
    assert output == tmp_path / "run"
    assert recipe.training.deterministic is True
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


def test_export_passes_its_search_options(
    run_command, model_path, translator, tmp_path, monkeypatch
):
    calls = []

    def export_translator(*arguments, **options):
        calls.append((arguments, options))
        return folder / "1"

    monkeypatch.setattr("keras_transformer.export.export_translator", export_translator)
    folder = tmp_path / "saved_models" / "mine"
    result = run_command(
        *("export", model_path, folder, "--beam-size", "3", "--parallel-parts", "2"),
        *("--jit-compile", "--patience", "1.5"),
    )
    assert result.exit_code == 0, result.stderr
    assert translator.searches == [{"beam_size": 3, "patience": 1.5}]
    options = {"scores": (), "license": None, "tokenizer_ops": "text"}
    options |= {"parallel_parts": 2, "jit_compile": True}
    assert calls == [((translator, folder), options)]
    assert result.stdout == f"{folder / '1'}\n"


# Runs `translate` with a model that returns its input after some seconds.
FAKE = textwrap.dedent("""
    import sys, time
    from collections import namedtuple
    from keras_transformer.saving import open as models
    Translation = namedtuple("Translation", "text score")
    class Model:
        def n_best(self, sentences, n):
            print("translating", file=sys.stderr, flush=True)
            time.sleep({seconds})
            return [[Translation(s, 0.0)] for s in sentences]
    models.open_model = lambda path, warn, **_: Model()
    sys.argv = ["keras-transformer", "translate", ".", *{options!r}]
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


def test_info_rejects_a_path_that_is_no_model(run_command):
    result = run_command("info", os.devnull)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {os.devnull}: neither a .keras file nor a folder\n"
    )


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
    """Same as `{ echo before; keras-transformer translate . -o PATH; } > file`."""
    code = "import os; os.write(1, b'before\\n')\n"
    code += FAKE.format(seconds=0, options=["-o", path])
    done = prepared.run(code, folder=tmp_path, stdin="line\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "before" and len(lines) == 2


def test_average_and_export_name_the_expected_folder(
    run_command, model_path, translator, tmp_path
):
    file, checkpoints = (tmp_path / "run" / name for name in ("model.keras", "ckpt"))
    file.touch()
    checkpoints.mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    for path in (file, checkpoints):
        result = run_command("average", path)
        assert result.exit_code == 2
        expected = f"{path}: must be a run folder, with a config.yaml. Did you mean "
        assert result.stderr == f"error: {expected}{file.parent}?\n"
    result = run_command("average", tmp_path)
    expected = f"{tmp_path}: must be a run folder, with a config.yaml"
    assert result.stderr == f"error: {expected}\n"


def test_output_folders_must_not_be_files(run_command, model_path, translator):
    file = f"{model_path}/model.keras"
    with open(file, "w"):
        pass
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


@pytest.mark.parametrize("name", ["att", "att.png", "att.html"])
def test_visualize_accepts_a_name_with_a_suffix(
    run_command, model_path, translator, tmp_path, monkeypatch, name
):
    from keras_transformer import visualization

    translator.model = translator.tokenizer = None
    monkeypatch.setattr(visualization, "attention_of", lambda *_: None)
    for function in ("write_figure", "write_page"):
        write = lambda attention, path, *_: path.touch()  # noqa: E731
        monkeypatch.setattr(visualization, function, write)
    output = tmp_path / name
    result = run_command("visualize", model_path, "--source", "x", "--output", output)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'att.png'}\n{tmp_path / 'att.html'}\n"


@pytest.mark.parametrize("path", [".", ".."])
def test_visualize_requires_a_file_name(run_command, model_path, path):
    result = run_command("visualize", model_path, "--source", "x", "--output", path)
    assert result.exit_code == 2
    assert f"--output {path}: must be a file name, not a folder" in result.stderr


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
