"""Download and upload of presets, with a fake of the package huggingface_hub."""

import fnmatch
import shutil
import sys
import types

import pytest
from tiny_export import SEARCH

import keras_transformer as kt
from keras_transformer.errors import ModelError
from keras_transformer.saving import hub
from keras_transformer.saving.info import model_info
from keras_transformer.saving.preset import FILES


@pytest.fixture(scope="module")
def preset(tiny_model, tmp_path_factory):
    model, tokenizer = tiny_model
    folder = tmp_path_factory.mktemp("presets") / "tiny"
    return model.save_to_preset(folder, tokenizer, search=SEARCH["search"])


@pytest.fixture
def fake_hub(monkeypatch, preset, tmp_path):
    """Replaces the module huggingface_hub with a fake. Returns the list of calls."""
    calls = []

    def snapshot_download(repository, revision=None, allow_patterns=None):
        calls.append(("download", repository, revision))
        if repository == "me/missing":
            raise OSError("404 Client Error\nRepository not found")
        assert "model.weights.h5" in allow_patterns
        return str(preset)

    def create_repo(repository, private, exist_ok):
        calls.append(("create", repository, private))

    def upload_folder(repo_id, folder_path, revision, commit_message, delete_patterns):
        remote = tmp_path / "uploaded"
        for path in [path for path in remote.rglob("*") if path.is_file()]:
            name = path.relative_to(remote).as_posix()
            if any(fnmatch.fnmatch(name, pattern) for pattern in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, remote, dirs_exist_ok=True)
        calls.append(("upload", repo_id, revision))
        return "https://huggingface.co/commit"

    module = types.SimpleNamespace(
        snapshot_download=snapshot_download,
        create_repo=create_repo,
        file_exists=lambda _, name, revision: (tmp_path / "uploaded" / name).exists(),
        upload_folder=upload_folder,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_hub_names_are_downloaded(fake_hub, preset):
    opened = kt.open_model("hf://me/tiny@v1")
    assert fake_hub == [("download", "me/tiny", "v1")]
    assert opened.path == preset and opened.search == SEARCH["search"]
    # On the command line, the name is parsed as a path, which turns "//" into "/".
    assert model_info("hf:/me/tiny")["kind"] == "preset"
    assert kt.Transformer.from_preset("hf://me/tiny").d_model == 24
    assert fake_hub[1:] == [("download", "me/tiny", None)] * 2


def test_hub_errors_are_one_line(fake_hub, monkeypatch):
    message = "hf://me/missing: cannot be downloaded: 404 Client Error Repository not"
    with pytest.raises(ModelError, match=message):
        kt.open_model("hf://me/missing")
    for name in ("hf://me", "hf://me/a/b", "hf://", "hf://me/a b"):
        with pytest.raises(ModelError, match="must have the form hf://OWNER/NAME"):
            kt.open_model(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"not installed: pip install .*\[hub\]"):
        kt.open_model("hf://me/tiny")


def test_push_to_hub_uploads_a_preset(fake_hub, tiny_model, tmp_path):
    model, tokenizer = tiny_model
    url = model.push_to_hub("me/tiny", tokenizer, private=True, dtype="float16")
    assert url == "https://huggingface.co/commit"
    assert fake_hub == [("create", "me/tiny", True), ("upload", "me/tiny", None)]
    readme = (tmp_path / "uploaded" / "README.md").read_text()
    assert readme.startswith("---\nlibrary_name: keras_transformer\n")
    assert 'kt.open_model("hf://me/tiny")' in readme
    assert kt.open_model(tmp_path / "uploaded").tokenizer.vocabulary_size == 300


def test_push_to_hub_replaces_only_preset_files(fake_hub, tiny_model, tmp_path):
    model, tokenizer = tiny_model
    remote = tmp_path / "uploaded"
    model.push_to_hub("me/tiny")
    assert 'from_preset("hf://me/tiny")' in (remote / "README.md").read_text()
    model.push_to_hub("me/tiny", tokenizer)
    for name in ("README.md", "MODEL_CARD.md", "figure.png"):
        (remote / name).write_text("mine")
    model.push_to_hub("me/tiny")
    names = {path.name for path in remote.rglob("*") if path.is_file()}
    assert names == {*FILES[:3], "README.md", "figure.png"}
    assert (remote / "README.md").read_text() == "mine"


def test_upload_error_is_one_line(fake_hub, preset, monkeypatch):
    def upload_folder(**_):
        raise OSError("401\nUnauthorized")

    monkeypatch.setattr(sys.modules["huggingface_hub"], "upload_folder", upload_folder)
    with pytest.raises(ModelError, match=r"^me/x: cannot be uploaded: 401 Unauth"):
        hub.upload(preset, "me/x")
