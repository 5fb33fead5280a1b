"""Damaged or hostile caches of encoded ids are rejected and written again.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import json
import os
import pickle

import numpy as np
import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    EncodedCorpus,
    TextFiles,
    encode_corpus,
    train_tokenizer,
)

LINES = [f"{word} Hund {number}" for word in ("ein", "kein") for number in range(6)]


@pytest.fixture(scope="module")
def tokenizers():
    return (train_tokenizer("bpe", LINES * 9, 290),) * 2


@pytest.fixture
def files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in LINES))
    return TextFiles(tmp_path / "a", tmp_path / "b")


class Executed:
    """An object that creates the file `unpickled` when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.fault("F23", "arrays with pickles or wrong offsets are rejected")
@pytest.mark.parametrize("name", ["dropped", "source_ids", "target_offsets"])
def test_hostile_cache_is_rejected(tokenizers, files, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = encode_corpus(files, *tokenizers, tmp_path / "ids").pair(3)
    path, archive = tmp_path / "ids" / f"{name}.npy", tmp_path / "archive.npz"
    whole = np.load(path)
    pickled = np.empty(1, object)
    pickled[0] = Executed()
    shifted = whole.copy()
    shifted[len(shifted) // 2 :] += 7
    hostile = [
        lambda: np.save(path, pickled, allow_pickle=True),
        lambda: path.write_bytes(pickle.dumps(Executed())),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(path.read_bytes()[:-5]),
        lambda: np.savez(archive, x=whole) or os.replace(archive, path),
        lambda: np.save(path, whole.astype(float)),
        lambda: np.save(path, whole[None]),
        lambda: np.save(path, whole.astype(">i8")),
        lambda: os.remove(path) or os.mkfifo(path),
    ]
    if name == "target_offsets":
        # Decreasing offsets must be detected even if int64 differences overflow.
        wrapped = whole.copy()
        wrapped[5] = -(2**63)
        falling = whole.copy()
        falling[5] = whole[6] + 1
        hostile += [lambda: np.save(path, shifted), lambda: np.save(path, -whole)]
        hostile += [
            lambda: np.save(path, wrapped),
            lambda: np.save(path, falling),
            lambda: np.save(path, falling.astype("u8")),
            lambda: np.save(path, whole.astype("u8")),
        ]
    if name == "dropped":
        hostile += [lambda: np.save(path, np.array([-1])), lambda: np.save(path, [99])]
    for make in hostile:
        make()
        with pytest.raises(DataError, match="ids: no readable encoded corpus"):
            EncodedCorpus.load(tmp_path / "ids")
        again = encode_corpus(files, *tokenizers, tmp_path / "ids").pair(3)
        assert [side.tolist() for side in again] == [side.tolist() for side in good]
    assert not (tmp_path / "unpickled").exists()
    # Unpickling would create the folder, so its absence above shows that no cache was
    # unpickled.
    np.save(path, pickled, allow_pickle=True)
    np.load(path, allow_pickle=True)
    assert (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "null", "{}", "{", "[" * 9000),
        *('{"num_pairs": 1e9}', '{"num_pairs": "a"}'),
        *('{"num_pairs": 1e999}', '{"num_segmentations": -1}', '{"dropped": {"x": 1}}'),
        '{"dropped": {"empty": {"count": 1, "first": [1]}}}',
    ],
)
def test_hostile_description_is_rejected(tokenizers, tmp_path, content):
    encode_corpus([("ein", "ein")], *tokenizers, tmp_path / "ids")
    path = tmp_path / "ids" / "corpus.json"
    facts = json.loads(path.read_text())
    # A non-empty mapping replaces single keys of the valid description.
    if content.startswith('{"'):
        content = json.dumps({**facts, **json.loads(content)})
    path.write_text(content)
    with pytest.raises(DataError, match="ids: no readable encoded corpus"):
        EncodedCorpus.load(tmp_path / "ids")


# The vocabulary has ids 0 to 289.
@pytest.mark.parametrize("wrong", [-1, 2**16, 290])
@pytest.mark.parametrize("name", ["source", "target", "pad_id", "start_id"])
def test_cache_of_another_tokenizer_is_rewritten(
    tokenizers, files, tmp_path, name, wrong
):
    good = encode_corpus(files, *tokenizers, tmp_path / "ids")
    expected = good.pad_id, good.start_id, *map(bytes, good.pair(0))
    if name.endswith("_id"):
        path = tmp_path / "ids" / "corpus.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: wrong}))
    else:
        path = tmp_path / "ids" / f"{name}_ids.npy"
        ids = np.load(path).astype(np.int32)
        ids[3] = wrong
        np.save(path, ids)
        with pytest.raises(DataError, match=f"{name} ids outside of the vocabulary"):
            sizes = [tokenizer.vocabulary_size for tokenizer in tokenizers]
            EncodedCorpus.load(tmp_path / "ids").check_ids(*sizes)
    again = encode_corpus(files, *tokenizers, tmp_path / "ids")
    for corpus in (again, EncodedCorpus.load(tmp_path / "ids")):
        found = corpus.pad_id, corpus.start_id, *map(bytes, corpus.pair(0))
        assert found == expected
