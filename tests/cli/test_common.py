"""Options of all commands, help texts, messages, completion and versions."""

import contextlib
import importlib.metadata
import json
import logging
import os
import re
import subprocess
import sys
import types

import pytest
from commands import run_command
from typer.testing import CliRunner

from keras_transformer.cli import console
from keras_transformer.cli.app import COMMANDS, GROUPS, app, load_command
from keras_transformer.errors import UserError

ALL = [*(name for name in COMMANDS if name != "corpus"), "corpus prepare"]
WITHOUT_DEVICE = {"init", "plot", "info", "compare", "models"}
COMMAND = [sys.executable, "-m", "keras_transformer"]


@pytest.mark.parametrize("name", ALL)
def test_help_shows_an_example_and_the_common_options(name):
    text = run_command(*name.split(), "--help").stdout
    assert f"  keras-transformer {name} " in text.replace("\n", " \n")
    assert "  -q, --quiet  " in text
    assert "  -v, --verbose  " in text
    assert ("  --device DEVICE  " in text) == (name not in WITHOUT_DEVICE)
    assert run_command(*name.split(), "-h").stdout == text


def test_messages_of_commands_and_of_the_package(monkeypatch):
    logger = logging.getLogger("keras_transformer.any")

    def recipes():
        logger.debug("unimportant")
        logger.info("a status")
        logger.warning("%s: a\x1b warning", "config.yaml")
        try:
            raise ValueError("reason")
        except ValueError:
            logger.exception("an error")
        console.print_status("another status")
        console.warn("another warning")
        raise UserError("set `allow_changes`, `initial_model` or `another`")

    monkeypatch.setattr("keras_transformer.recipes.packaged_recipes", recipes)
    lines = run_command("train").stderr.splitlines()
    assert lines[:2] == ["a status", r"warning: config.yaml: a\x1b warning"]
    assert lines[2:4] == ["error: an error", "Traceback (most recent call last):"]
    # `train` has options for two of these arguments.
    error = "error: set --allow-changes, --from or `another`"
    expected = ["another status", "warning: another warning", error]
    assert lines[-4:] == ["ValueError: reason", *expected]
    quiet = [line for line in lines if "status" not in line]
    assert run_command("train", "--quiet").stderr.splitlines() == quiet
    assert not logging.getLogger("keras_transformer").handlers


def test_verbose_prints_the_traceback_of_an_error():
    result = run_command("info", "nowhere", "--verbose", code=2)
    assert result.stderr.startswith("Traceback")
    assert "\nerror: nowhere: no such file or folder" in result.stderr
    assert result.stderr.count("error: nowhere") == 1
    assert "Traceback" not in run_command("info", "nowhere").stderr


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cpu", None, "-1"),
        ("cpu", "0,1", "-1"),
        ("gpu", None, None),
        ("gpu", "2", "2"),
        ("gpu:0,2", None, "0,2"),
        ("gpu:1", "4,5", "5"),
        ("gpu:1,0", "GPU-a,GPU-b", "GPU-b,GPU-a"),
    ],
)
def test_device_selects_visible_gpus(monkeypatch, device, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run_command("train", "--device", device)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("arguments", "visible", "message"),
    [
        (["-q", "-v"], None, "--quiet and --verbose: pass only one of them"),
        (["--device", "tpu"], None, "tpu: must be cpu, gpu, or GPU numbers such as"),
        (["--device", "gpu:"], None, "gpu:: must be cpu, gpu"),
        (["--device", "gpu:a"], None, "gpu:a: must be cpu, gpu"),
        (["--device", "gpu:2"], "0,1", "CUDA_VISIBLE_DEVICES=0,1 makes only 2 GPU"),
        (["--device", "gpu:0"], "-1", "CUDA_VISIBLE_DEVICES=-1 makes only 0 GPU"),
    ],
)
def test_common_options_reject_values(monkeypatch, arguments, visible, message):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    result = run_command("train", *arguments, code=2)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("device", "found", "is_enough"),
    [("gpu", 0, False), ("gpu:0,1", 1, False), ("gpu:0,1", 2, True), ("cpu", 0, True)],
)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_device_must_be_found_by_the_backend(
    monkeypatch, backend, device, found, is_enough
):
    import keras
    import tensorflow as tf

    gpu = types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    count = {"tensorflow": 0, "jax": 0, backend: found}
    jax = types.SimpleNamespace(local_devices=lambda: [gpu] * count["jax"])
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    gpus = [gpu] * count["tensorflow"]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
    details = {"compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    monkeypatch.setattr(console, "settings", console.Settings(device=device))
    names = {"tensorflow": r"TensorFlow finds .*\[gpu\]", "jax": r"JAX finds .*cuda13"}
    with (
        contextlib.nullcontext()
        if is_enough
        else pytest.raises(UserError, match=names[backend])
    ):
        console.load_tensorflow()


def test_version_names_the_libraries(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    lines = run_command("--version").stdout.splitlines()
    version = importlib.metadata.version
    assert lines[1] == f"TensorFlow {version('tensorflow')}"
    assert lines[2].startswith(f"Keras {version('keras')}, backend torch ")
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert "backend tensorflow" in run_command("--version").stdout
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert "backend jax" in run_command("--version").stdout
    (tmp_path / "keras.json").write_text("[1]")
    assert "backend tensorflow" in run_command("--version").stdout


def test_short_help_of_commands_is_complete(monkeypatch):
    """With 80 columns, each command has one line."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = run_command("--help").stdout
    assert "--install-completion" in text and "--show-completion" in text
    lines = text.partition(f"{next(iter(GROUPS))}:\n")[2].splitlines()
    lines = [line for line in lines if line.startswith("  ")]
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert "..." not in "".join(lines)
    for name, first_line in COMMANDS.items():
        assert load_command(name).help.partition("\n")[0] == first_line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train phr", "phrases"),
        ("init --recipe multi30k_en_d", "multi30k_en_de"),
        ("train phrases --set training.war", "training.warmup_steps="),
        ("tra", "translate"),
        ("train --qu", "--quiet"),
    ],
)
def test_shell_completion_offers_commands_recipes_and_keys(words, expected):
    shell = {
        "_KERAS_TRANSFORMER_COMPLETE": "complete_bash",
        "COMP_WORDS": f"keras-transformer {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    result = CliRunner().invoke(app, [], prog_name="keras-transformer", env=shell)
    assert expected in result.stdout.split()


def test_python_m_completes_the_command_keras_transformer():
    environment = {**os.environ, "_KERAS_TRANSFORMER_COMPLETE": "source_bash"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment)
    assert re.search(r"complete .* keras-transformer$", done.stdout.strip())


@pytest.mark.parametrize(
    ("level", "expected"), [(None, False), ("0", True), ("2", True), ("3", False)]
)
def test_log_level_of_tensorflow_selects_its_messages(monkeypatch, level, expected):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    shows = isinstance(console.quiet_libraries(), contextlib.nullcontext)
    assert shows == expected
