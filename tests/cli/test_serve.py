"""Arguments of `serve`; the server is tested in tests/serving."""

import contextlib
import importlib.util
import inspect
import shutil
import types

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
        "(packaged: europarl_en_fr, phrases, tatoeba_en_de)\n"
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
    def export(model, folder, **_):
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

    def export(model, folder, **_):
        raise UserError(f"exported to {folder.name}")

    monkeypatch.setattr(hub, "download", lambda name: folder)
    monkeypatch.setattr(exports, "export_translator", export)
    result = run_command("serve", name, "--port", 0)
    assert result.stderr == "exporting opus-7.b\nerror: exported to opus-7.b\n"


def test_serve_exports_a_preset_without_requests_for_tf_serving(
    run_command, monkeypatch
):
    def export(model, folder, warmup_requests=True):
        raise UserError(f"exported with {warmup_requests=}")

    monkeypatch.setattr(exports, "export_translator", export)
    result = run_command("serve", "phrases", "--port", 0)
    assert result.stderr.endswith("error: exported with warmup_requests=False\n")


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


@pytest.fixture
def serve(run_command, monkeypatch, tmp_path):
    """Function that runs `serve` and returns the arguments that reach the server.

    The result maps `listen`, `ServedModel` and `serve` to mappings of their arguments.
    Stand-ins replace all three.
    """
    received = {}

    def replace(name, run):
        signature = inspect.signature(getattr(serving, name))

        def stand_in(*arguments, **options):
            bound = signature.bind(*arguments, **options)
            bound.apply_defaults()
            received[name] = bound.arguments
            return run(**bound.arguments)

        monkeypatch.setattr(serving, name, stand_in)

    replace("listen", lambda **_: contextlib.nullcontext("the socket"))
    replace("ServedModel", lambda **_: types.SimpleNamespace(name="mine", version=3))
    replace("serve", lambda started, **_: started("http://example.org:80/"))

    def run(*options):
        result = run_command("serve", tmp_path, *options)
        assert result.exit_code == 0, result.stderr
        lines = ["mine, version 3, at http://example.org:80/", "stopped"]
        assert result.stderr.splitlines()[-2:] == lines
        return received

    return run


def test_serve_options_reach_the_server(serve, tmp_path):
    received = serve(
        *("--host", "0.0.0.0", "--port", 8080, "--name", "other", "--no-reload"),
        *("--allow-host", "www.example.org", "--allow-host", "example.org"),
        *("--max-batch-size", 2, "--max-wait-ms", 30, "--queue-size", 400),
        *("--max-texts", 5, "--max-text-length", 6, "--max-body-bytes", 700),
        *("--timeout", 8.5, "--allow-unsafe"),
    )
    assert received["listen"] == {"host": "0.0.0.0", "port": 8080}
    opened = {"folder": tmp_path, "name": "other", "allow_unsafe": True}
    assert received["ServedModel"] == opened
    arguments = received["serve"]
    assert (arguments["host"], arguments["port"]) == ("0.0.0.0", 8080)
    assert arguments["hosts"] == ["www.example.org", "example.org"]
    assert arguments["listening"] == "the socket"
    assert arguments["model"].version == 3
    assert arguments["limits"] == serving.Limits(
        max_batch_size=2,
        max_wait=0.03,
        queue_size=400,
        max_texts=5,
        max_text_length=6,
        max_body_bytes=700,
        request_timeout=8.5,
        reload_interval=None,
    )


def test_serve_uses_the_default_limits(serve, tmp_path):
    received = serve()
    assert received["listen"] == {"host": "127.0.0.1", "port": 8501}
    opened = {"folder": tmp_path, "name": None, "allow_unsafe": False}
    assert received["ServedModel"] == opened
    assert received["serve"]["limits"] == serving.Limits()
    assert [*received["serve"]["hosts"]] == []


def test_serve_accepts_requests_that_fill_a_short_queue(serve):
    limits = serve("--queue-size", 100)["serve"]["limits"]
    assert (limits.queue_size, limits.max_texts) == (100, 100)
