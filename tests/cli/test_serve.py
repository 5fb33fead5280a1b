"""Argument errors of `serve`; the server is tested in tests/serving."""

import importlib.util

import pytest

from keras_transformer import serving
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


def test_serve_reports_an_occupied_port_first(tmp_path, run_command, monkeypatch):
    def never(*_):
        raise AssertionError("the model is loaded before the port is tried")

    monkeypatch.setattr(serving, "ServedModel", never)
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
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
