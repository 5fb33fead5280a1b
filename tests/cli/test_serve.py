"""Argument errors of `serve`; the server is tested in tests/serving."""

import importlib.util

import pytest

from keras_transformer import export as exports
from keras_transformer import serving
from keras_transformer.errors import UserError
from keras_transformer.saving.names import packaged_models
from keras_transformer.serving.server import listen


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
