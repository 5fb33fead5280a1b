"""`RecordFolder`: order of pairs, invalid `records.json`, and errors in records."""

import hashlib
import json
import os

import pytest
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines import RecordFolder, train_tokenizer

GOOD = {
    "format": 1,
    "tokenizer": "0" * 64,
    "num_pairs": 2,
    "shards": [{"name": "records-00000-of-00001.tfrecord", "num_pairs": 2}],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "records-00000-of-00001.tfrecord").touch()
    (tmp_path / "records.json").write_text(json.dumps(GOOD))
    return tmp_path


def test_record_folder_locates_pairs(folder):
    shards = GOOD["shards"] * 2
    (folder / "records.json").write_text(json.dumps({**GOOD, "shards": shards}))
    records = RecordFolder(folder)
    path = folder / shards[0]["name"]
    assert records.locate(2) == records.locate(4) == f"{path}:2"
    with pytest.raises(IndexError, match="no pair 5"):
        records.locate(5)


def shard(**changes):
    return {"shards": [{**GOOD["shards"][0], **changes}]}


@pytest.mark.fault("F23", "an invalid records.json is rejected with a one-line error")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer": None}, "'tokenizer' is wrong"),
        ({"shards": {}}, "'shards' is wrong"),
        ({"format": "1"}, "'format' is wrong"),
        ({"format": 2}, "another version"),
        (shard(num_pairs=-1), "'shards.0.num_pairs' is wrong"),
        (shard(num_pairs=float("inf")), "not finite"),
        (shard(sha256=1), "'shards.0.sha256' is wrong"),
        (shard(name="../../etc/passwd"), "'shards.0.name' is wrong"),
        (shard(name="/dev/zero"), "'shards.0.name' is wrong"),
        (shard(name=".."), "'shards.0.name' is wrong"),
        (shard(name="missing.tfrecord"), "missing.tfrecord: no such file"),
        (shard(name="pipe"), "pipe: must be a regular file"),
    ],
)
def test_record_folder_names_the_invalid_value(folder, changes, reason):
    os.mkfifo(folder / "pipe")
    (folder / "records.json").write_text(json.dumps({**GOOD, **changes}))
    with pytest.raises(DataError, match=reason) as caught:
        RecordFolder(folder)
    assert str(caught.value).startswith(str(folder))


def test_fingerprint_names_a_shard_of_another_corpus(folder):
    path = folder / GOOD["shards"][0]["name"]
    path.write_bytes(b"records of this corpus")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "records.json").write_text(json.dumps({**GOOD, **shard(sha256=digest)}))
    before = RecordFolder(folder).fingerprint()
    path.write_bytes(b"records of another one")
    with pytest.raises(DataError, match=f"^{path}: altered or damaged"):
        RecordFolder(folder).fingerprint()
    path.write_bytes(b"records of this corpus")
    assert RecordFolder(folder).fingerprint() == before


def test_record_folder_needs_its_description(folder):
    (folder / "records.json").unlink()
    with pytest.raises(DataError, match=r"records.json: no such file"):
        RecordFolder(folder)
    os.mkfifo(folder / "records.json")
    with pytest.raises(DataError, match="must be a regular file"):
        RecordFolder(folder)


NUM_RECORDS = 9


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("bpe", ["ein Mann läuft"] * 9, 280)


def record(number):
    ids = tf.train.Int64List(value=[4 + number] * (1 + number % 3))
    feature = tf.train.Feature(int64_list=ids)
    features = tf.train.Features(feature={"source": feature, "target": feature})
    return tf.train.Example(features=features).SerializeToString()


def write(folder, tokenizer, records):
    """Writes a folder with one shard and returns the path of the shard."""
    path = folder / "records-00000-of-00001.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for each in records:
            writer.write(each)
    facts = {"format": 1, "tokenizer": tokenizer.fingerprint()}
    facts["shards"] = [{"name": path.name, "num_pairs": len(records)}]
    (folder / "records.json").write_text(json.dumps(facts))
    return path


def read(folder, tokenizer):
    return list(RecordFolder(folder).id_chunks(tokenizer))


def test_records_are_read_in_order(tmp_path, tokenizer):
    write(tmp_path, tokenizer, [record(number) for number in range(NUM_RECORDS)])
    ((source, target),) = read(tmp_path, tokenizer)
    expected = [[4 + number] * (1 + number % 3) for number in range(NUM_RECORDS)]
    assert source.to_list() == target.to_list() == expected


@pytest.mark.parametrize("how", ["content", "length", "cut", "not an example"])
def test_damaged_records_are_rejected(tmp_path, tokenizer, how):
    records = [record(each) for each in range(NUM_RECORDS)]
    if how == "not an example":
        records[4] = b"\xff\xff"
    path = write(tmp_path, tokenizer, records)
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[-20:]
    elif how != "not an example":
        # In a TFRecord file, 12 bytes precede the content: its length and a checksum.
        content[16 if how == "content" else 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path}: damaged: "):
        read(tmp_path, tokenizer)
