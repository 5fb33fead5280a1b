"""`HuggingFacePairs` with a local folder. The package `datasets` is optional."""

import json
import os
import sys

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import HuggingFacePairs

PAIRS = [("A man.", "Ein Mann."), ("Two dogs.", "Zwei Hunde."), ("", "leer")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text)
    return folder


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    module = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return module


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_pairs_keep_the_stored_order(datasets, folder, streaming):
    source = HuggingFacePairs(str(folder), streaming=streaming)
    assert list(source) == list(source) == PAIRS
    assert source.locate(2) == f"{folder}, split train, example 2"


def test_errors_name_the_dataset(datasets, folder):
    with pytest.raises(DataError, match=r"data.name .*data, split 'validation': "):
        list(HuggingFacePairs(str(folder), "validation"))
    with pytest.raises(DataError, match=r"example 1: data.source=translation.fr"):
        list(HuggingFacePairs(str(folder), source="translation.fr"))


def test_fingerprint_of_a_folder_changes_with_its_content(folder):
    before = HuggingFacePairs(str(folder)).fingerprint()
    assert HuggingFacePairs(str(folder)).fingerprint() == before
    assert HuggingFacePairs(str(folder), "train[:1]").fingerprint() != before
    # Git and download tools keep their own files in the folder.
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(b"\0")
    (folder / ".DS_Store").symlink_to("missing")
    assert HuggingFacePairs(str(folder)).fingerprint() == before
    with open(folder / "train.jsonl", "a") as file:
        file.write(json.dumps({"translation": {"en": "x", "de": "y"}}) + os.linesep)
    assert HuggingFacePairs(str(folder)).fingerprint() != before


def test_missing_package_gives_a_one_line_error(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"requires the package datasets: pip inst.*hf"):
        list(HuggingFacePairs(str(folder)))
