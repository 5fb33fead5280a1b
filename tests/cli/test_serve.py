"""Argument errors of `serve`; the server is tested in tests/serving."""

import importlib.util
import shutil

import pytest

from keras_transformer import export as exports
from keras_transformer import serving
from keras_transformer.errors import UserError
from keras_transformer.saving import hub
from keras_transformer.saving.names import packaged_models
from keras_transformer.serving.server import listen

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_serve_rejects_invalid_arguments(tmp_path, run_command):
    result = run_command("serve", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'nowhere'}: no such file or folder, and no packaged model "
        "(packaged: phrases, tatoeba_en_de)\n"
    )
    result = run_command("serve", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path}: not a SavedModel. "
        "Create one with keras-transformer export\n"
    )
    result = run_command("serve", tmp_path, "--max-texts", "9", "--queue-size", "8")
    assert (result.exit_code, "must not exceed --queue-size" in result.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize("name", ["http://www.example.org", "*.example.org", ""])
def test_serve_rejects_invalid_host_names(tmp_path, run_command, name):
    result = run_command("serve", tmp_path, "--allow-host", name)
    assert result.exit_code == 2
    assert f"--allow-host {name}: must be a host name" in result.stderr


def test_served_preset_has_the_name_of_its_folder(run_command, monkeypatch):
    def export(model, folder):
        raise UserError(f"exported to {folder.name}")

    monkeypatch.setattr(exports, "export_translator", export)
    monkeypatch.chdir(packaged_models()["phrases"])
    result = run_command("serve", ".", "--port", 0)
    assert result.stderr == "exporting phrases\nerror: exported to phrases\n"


@pytest.mark.parametrize("name", ["hf://me/opus-7.b", "hf://me/opus-7.b@v1"])
def test_served_hub_model_has_the_name_of_its_repository(
    run_command, monkeypatch, tmp_path, name
):
    """The downloaded folder is named after the commit."""
    folder = tmp_path / "snapshots" / COMMIT
    shutil.copytree(packaged_models()["phrases"], folder)

    def export(model, folder):
        raise UserError(f"exported to {folder.name}")

    monkeypatch.setattr(hub, "download", lambda name: folder)
    monkeypatch.setattr(exports, "export_translator", export)
    result = run_command("serve", name, "--port", 0)
    assert result.stderr == "exporting opus-7.b\nerror: exported to opus-7.b\n"


def test_serve_reports_an_occupied_port_first(tmp_path, run_command, monkeypatch):
    def never(*_):
        raise AssertionError("the model is loaded before the port is tried")

    monkeypatch.setattr(serving, "ServedModel", never)
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = run_command("serve", tmp_path, "--port", port)
    assert result.exit_code == 2
    assert result.stderr == f"error: 127.0.0.1:{port}: Address already in use\n"
    with pytest.raises(OSError) as error:
        listen("no.such.host.invalid", 0)
    assert error.value.filename == "no.such.host.invalid:0"


def test_serve_names_the_missing_extra(tmp_path, run_command, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run_command("serve", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: fastapi is not installed: "
        'pip install "keras-transformer-seq2seq[serve]"\n'
    )
