"""Commands refuse models that can run code, unless --allow-unsafe is given.

The export and the `.keras` file create a file, the marker, when they are loaded without
checks.
"""

import malicious_files
import pytest
from commands import error_of, run_command
from malicious_graphs import write_unsafe_export

from keras_transformer import serving
from keras_transformer.cli.app import COMMANDS, load_command

# Arguments after the model. The working folder contains the file `text`.
ARGUMENTS = {
    "translate": ["--input", "text"],
    "parse": ["--input", "text"],
    "score": ["--source", "text", "--target", "text"],
    "evaluate": ["--source", "text", "--reference", "text"],
    "filter": [
        *("--source", "text", "--target", "text", "--min-score=-9"),
        *("--output-source", "kept.source", "--output-target", "kept.target"),
    ],
    "visualize": ["--source", "a", "--target", "a"],
    "export": ["exported"],
    "serve": ["--port", "0", "--quiet"],
    "extend-vocabulary": ["--text", "text", "--size", "5", "--output", "grown"],
}
WITHOUT_EXPORTS = {"parse", "filter", "export", "extend-vocabulary"}
WITHOUT_FILES = {"serve"}
HAVE_ENSEMBLES = ["translate", "parse", "score", "evaluate"]


def test_commands_that_load_a_model_have_allow_unsafe():
    found = {
        name
        for name in COMMANDS
        for parameter in load_command(name).params
        if parameter.name == "allow_unsafe" and "run any code" in parameter.help
    }
    assert found == {*ARGUMENTS, "train", "distill"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("unsafe")


@pytest.fixture(scope="module")
def unsafe(folder, tiny_model):
    """Paths of an export and of a `.keras` file, by kind, next to the file `marker`."""
    write_unsafe_export(folder / "export" / "1", folder / "marker")
    malicious_files.write_lambda_model(folder / "model.keras", folder / "marker")
    tiny_model[1].save(folder)
    return {"export": folder / "export", "file": folder / "model.keras"}


@pytest.fixture
def marker(folder):
    marker = folder / "marker"
    marker.unlink(missing_ok=True)
    return marker


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Function that runs a command in a folder that contains only the file `text`."""

    def run(name, model, *options):
        return run_command(name, model, *ARGUMENTS[name], *options)

    monkeypatch.setattr(serving, "serve", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a\n")
    yield run
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


REASONS = {
    "export": "the operation 'WriteFile' is not allowed",
    "file": "Received: 'Sequential'",
}


def assert_refused(result, kind):
    """Asserts that a command failed with one line on standard error, the refusal."""
    error = error_of(result)
    assert ": refused: " in error and REASONS[kind] in error
    assert "If you trust the file, pass --allow-unsafe" in error


def assert_warned(result, *paths):
    """Asserts that the first lines on standard error warn of unchecked models."""
    warnings = [
        f"warning: {path}: not checked, so it can run any code (--allow-unsafe)"
        for path in paths
    ]
    assert result.stderr.splitlines()[: len(paths)] == warnings


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "export") for name in ARGUMENTS if name not in WITHOUT_EXPORTS),
        *((name, "file") for name in ARGUMENTS if name not in WITHOUT_FILES),
    ],
)
def test_unsafe_model_needs_allow_unsafe(run, unsafe, marker, name, kind):
    assert_refused(run(name, unsafe[kind]), kind)
    assert not marker.exists()
    assert_warned(run(name, unsafe[kind], "--allow-unsafe"), unsafe[kind])
    assert marker.exists()


def test_distill_passes_allow_unsafe_on(tmp_path, unsafe, marker):
    (tmp_path / "text").write_text("a\n")
    command = ["distill", unsafe["file"], "--source", tmp_path / "text"]
    command += ["--output", tmp_path / "run"]
    assert ": refused: " in run_command(*command, code=2).stderr
    assert not marker.exists()
    assert "not checked" in run_command(*command, "--allow-unsafe").stderr
    assert marker.exists()


@pytest.mark.parametrize("name", HAVE_ENSEMBLES)
def test_unsafe_member_of_an_ensemble_needs_allow_unsafe(
    run, tiny_model_file, unsafe, marker, name
):
    options = ["--ensemble", unsafe["file"]]
    assert_refused(run(name, tiny_model_file, *options), "file")
    assert not marker.exists()
    result = run(name, tiny_model_file, *options, "--allow-unsafe")
    assert_warned(result, tiny_model_file, unsafe["file"])
    assert marker.exists()


@pytest.mark.parametrize("option", ["--from={}", "--set=training.initial_model={}"])
def test_training_from_an_unsafe_file_is_refused(tmp_path, unsafe, marker, option):
    """The option --from reads the model's settings before the training starts."""
    command = ["train", "phrases", "--output", tmp_path / "run"]
    command.append(option.format(unsafe["file"]))
    assert_refused(run_command(*command), "file")
    assert not marker.exists()
    result = run_command(*command, "--allow-unsafe", code=2)
    assert marker.exists()
    warning = f"warning: {unsafe['file']}: not checked, so it can run any code"
    assert result.stderr.count(warning) == 1
    assert not (tmp_path / "run").exists()


def test_presets_are_checked_despite_allow_unsafe(run):
    result = run("score", "phrases", "--allow-unsafe")
    assert result.exit_code == 0
    assert "not checked" not in result.stderr


def test_info_of_an_unsafe_model_runs_no_code(unsafe, marker):
    assert run_command("info", unsafe["export"]).exit_code == 0
    error = error_of(run_command("info", unsafe["file"]))
    assert error.startswith(f"error: {unsafe['file']}: refused: ")
    # The command has no option --allow-unsafe.
    assert "--allow-unsafe" not in error
    assert not marker.exists()
