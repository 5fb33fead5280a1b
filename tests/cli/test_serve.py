"""Arguments of `serve`; the server is tested in tests/serving."""

import contextlib
import importlib.util
import shutil
import types

import pytest
from commands import error_of, run_command

from keras_transformer import export as exports
from keras_transformer import serving
from keras_transformer.errors import UserError
from keras_transformer.saving import hub
from keras_transformer.saving.names import packaged_models
from keras_transformer.serving.server import listen

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    """Folder that looks like an export."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder, and no packaged model (packa"),
        (["run"], "run: not a SavedModel. Create one with keras-transformer export r"),
        (
            ["a run/best.keras"],
            "Create one with keras-transformer export 'a run/best.keras' "
            "'saved_models/a run'\n",
        ),
        ([".", "--max-texts", "9", "--queue-size", "8"], "must not exceed --queue-si"),
        ([".", "--allow-host", "http://www.example.org"], "must be a host name"),
        ([".", "--allow-host", "*.example.org"], "must be a host name"),
        ([".", "--allow-host", ""], "must be a host name"),
        ([".", "--languages", "en"], "must be two codes, such as en,de"),
        ([".", "--languages", "en,xx"], "must be two codes, such as en,de"),
    ],
)
def test_serve_rejects_invalid_arguments(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    for name in ("run/model.keras", "a run/best.keras"):
        (folder / name).parent.mkdir()
        (folder / name).touch()
    assert message in error_of(run_command("serve", *arguments, "--port", 0))


@pytest.mark.parametrize(
    ("model", "name"),
    [(".", "phrases"), ("hf://me/opus-7.b", "opus-7.b"), ("hf://me/x@v1", "x")],
)
def test_served_preset_has_the_name_of_its_folder_or_repository(
    monkeypatch, tmp_path, model, name
):
    """A folder downloaded from the Hub is named after the commit."""
    downloaded = tmp_path / "snapshots" / COMMIT
    shutil.copytree(packaged_models()["phrases"], downloaded)

    def export(model, folder, warmup_requests=True):
        raise UserError(f"exported to {folder.name}, {warmup_requests=}")

    monkeypatch.setattr(hub, "download", lambda name: downloaded)
    monkeypatch.setattr(exports, "export_translator", export)
    monkeypatch.chdir(packaged_models()["phrases"])
    result = run_command("serve", model, "--port", 0)
    assert result.stderr == (
        f"loading the model\nexporting {name}\n"
        f"error: exported to {name}, warmup_requests=False\n"
    )


def test_serve_exports_a_preset_and_removes_the_export(monkeypatch, export_only):
    export_only("encode")
    folders = []

    def load(folder, *_):
        folders.append(folder)
        assert (folder / "1" / "saved_model.pb").is_file()
        raise UserError("loaded")

    monkeypatch.setattr(serving, "ServedModel", load)
    assert "error: loaded" in run_command("serve", "phrases", "--port", 0).stderr
    assert folders[0].name == "phrases" and not folders[0].parent.exists()


def test_serve_reports_an_occupied_port_first(folder, monkeypatch):
    def never(*_):
        raise AssertionError("the model is loaded before the port is tried")

    monkeypatch.setattr(serving, "ServedModel", never)
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        error = error_of(run_command("serve", folder, "--port", port))
    assert error == (
        f"error: 127.0.0.1:{port}: another program uses this port. Choose another with "
        "--port, or a free one with --port 0\n"
    )


def test_serve_names_the_missing_extra(folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert error_of(run_command("serve", folder)) == (
        "error: fastapi is not installed: "
        'pip install ".[serve]" in a clone of the repository\n'
    )


@pytest.fixture
def serve(monkeypatch, folder):
    """Function that runs `serve` and returns the arguments that reach the server.

    The result maps `listen`, `ServedModel` and `serve` to their arguments. Stand-ins
    replace all three.
    """
    received = {}

    def replace(name, run):
        def stand_in(*arguments):
            received[name] = arguments
            return run(*arguments)

        monkeypatch.setattr(serving, name, stand_in)

    replace("listen", lambda *_: contextlib.nullcontext("the socket"))
    model = types.SimpleNamespace(name="mine", version=3, limits=None)
    replace("ServedModel", lambda *_: model)
    replace("serve", lambda *arguments: arguments[4]("http://example.org:80/"))

    def run(*options):
        result = run_command("serve", folder, *options, code=0)
        lines = ["mine, version 3, at http://example.org:80/", "stopped"]
        assert result.stderr.splitlines()[-2:] == lines
        return received

    return run


def test_serve_options_reach_the_server(serve, folder):
    received = serve(
        *("--host", "0.0.0.0", "--port", 8080, "--name", "other", "--no-reload"),
        *("--allow-host", "www.example.org", "--allow-host", "example.org"),
        *("--max-batch-size", 2, "--max-wait-ms", 30, "--queue-size", 400),
        *("--max-texts", 5, "--max-text-length", 6, "--max-body-bytes", 700),
        *("--timeout", 8.5, "--allow-unsafe", "--languages", "en,de"),
    )
    assert received["listen"] == ("0.0.0.0", 8080)
    assert received["ServedModel"] == (folder, "other", True)
    _, *address, limits, _, hosts, listening, languages = received["serve"]
    assert languages == [("en", "English"), ("de", "German")]
    assert address == ["0.0.0.0", 8080]
    assert hosts == ["www.example.org", "example.org"]
    assert listening == "the socket"
    assert limits == serving.Limits(
        max_batch_size=2,
        max_wait=0.03,
        queue_size=400,
        max_texts=5,
        max_text_length=6,
        max_body_bytes=700,
        request_timeout=8.5,
        reload_interval=None,
    )


def test_serve_uses_the_default_limits(serve, folder):
    received = serve()
    assert received["listen"] == ("127.0.0.1", 8501)
    assert received["ServedModel"] == (folder, None, False)
    assert received["serve"][3] == serving.Limits()
    # Requests may fill a short queue.
    limits = serve("--queue-size", 100)["serve"][3]
    assert (limits.queue_size, limits.max_texts) == (100, 100)
