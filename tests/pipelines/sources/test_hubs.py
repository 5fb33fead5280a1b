"""`TfdsPairs` with small datasets of TFDS, and `HuggingFacePairs` with a local folder.

The package `datasets` is optional.
"""

import json
import os
import sys
from typing import ClassVar

import pytest
import tensorflow_datasets as tfds

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    HuggingFacePairs,
    TfdsPairs,
    encode_corpus,
    train_tokenizer,
)

ENGLISH = ["A man rides a bike.", "Two dogs run.", "  spaces  ", "Zoë’s café", "five"]
GERMAN = ["Ein Mann fährt Rad.", "Zwei Hunde rennen.", "Lücken", "Zoës Café", "fünf"]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


class SmallTranslate(tfds.core.GeneratorBasedBuilder):
    """A translation dataset with a `Translation` feature, like wmt14_translate."""

    VERSION = tfds.core.Version("1.2.3")
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="de-en")]

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.Translation(["de", "en"]),
            supervised_keys=("de", "en"),
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(),
            "validation": [(0, {"de": "d", "en": "e"})],
        }

    def _generate_examples(self):
        for number, (english, german) in enumerate(PAIRS):
            yield number, {"en": english, "de": german}


class SmallTalks(tfds.core.GeneratorBasedBuilder):
    """A dataset like ted_multi_translate, whose examples lack some languages."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "translations": tfds.features.TranslationVariableLanguages(
                        languages=["de", "en", "fr"]
                    ),
                    "talk": tfds.features.Text(),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 1, {"translations": {"en": "a", "de": "b", "fr": "c"}, "talk": "t"}
        yield 2, {"translations": {"en": "d", "fr": "f"}, "talk": "t"}
        yield 3, {"translations": {"fr": "g", "de": "h", "en": "i"}, "talk": "t"}


@pytest.fixture(scope="module")
def data_dir_of_tfds(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture
def folder_builder(tmp_path):
    for language, lines in {"en": ENGLISH, "de": GERMAN}.items():
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"{language}.train.txt").write_text(text, encoding="utf-8")
    return tfds.folder_dataset.TranslateFolder(str(tmp_path))


def test_tfds_pairs_yields_both_directions(data_dir_of_tfds):
    name = "small_translate/de-en"
    to_english = TfdsPairs(name, "train", data_dir=data_dir_of_tfds)
    to_german = TfdsPairs(name, "train", "en", "de", data_dir=data_dir_of_tfds)
    # TFDS stores examples in hash order, which is the same in every run.
    assert sorted(to_german) == sorted(PAIRS)
    assert [(source, target) for target, source in to_english] == list(to_german)
    assert list(to_german) == list(to_german)


def test_tfds_pairs_skips_examples_without_both_languages(data_dir_of_tfds):
    pairs = TfdsPairs("small_talks", "train", "de", "en", data_dir_of_tfds)
    assert sorted(pairs) == [("b", "a"), ("h", "i")]


def test_tfds_pairs_reads_translate_folder(folder_builder):
    assert list(TfdsPairs(folder_builder, "train", "en", "de")) == PAIRS
    # The files may change under the same version, so the encoded ids are not cached.
    assert TfdsPairs(folder_builder, "train", "en", "de").fingerprint() is None


def test_fingerprint_depends_on_split_and_direction(data_dir_of_tfds, tmp_path):
    name = "small_translate/de-en"
    arguments = [
        ("train", "en", "de"),
        ("train", "de", "en"),
        ("train[:2]", "en", "de"),
    ]
    fingerprints = {
        TfdsPairs(name, *each, data_dir_of_tfds).fingerprint() for each in arguments
    }
    assert len(fingerprints) == 3
    assert "1.2.3" in fingerprints.pop()
    pairs = TfdsPairs(name, *arguments[0], data_dir_of_tfds)
    tokenizer = train_tokenizer("bpe", ENGLISH + GERMAN, 300)
    corpus = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "ids")
    assert corpus.num_pairs == len(PAIRS)
    again = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "ids")
    assert again.fingerprint == corpus.fingerprint is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no_such_translate/x",), "data.name='no_such_translate/x'"),
        (("small_translate/xx-yy",), "data.name='small_translate/xx-yy'"),
        (("small_translate/de-en", "tset"), "small_translate, split 'tset'"),
        (
            ("small_translate/de-en", "train", "en", "fr"),
            "'en' and 'fr'.*Available: de, en",
        ),
        (("small_translate/de-en", "train", "en"), "Received: en, en"),
        (("small_talks",), "Received: None, None"),
        (("small_talks", "train", "de", "xx"), "'de' and 'xx'.*Available: de, "),
    ],
)
def test_tfds_pairs_rejects_invalid_arguments(data_dir_of_tfds, arguments, message):
    pairs = TfdsPairs(*arguments, data_dir=data_dir_of_tfds)
    with pytest.raises(DataError, match=message) as caught:
        next(iter(pairs))
    assert "\n" not in str(caught.value)


STORED = [("A man.", "Ein Mann."), ("Two dogs.", "Zwei Hunde."), ("", "leer")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"translation": {"en": source, "de": target}} for source, target in STORED]
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
    assert list(source) == list(source) == STORED
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
