"""Pairs of token ids in TFRecord files: their order, and errors that locate damage."""

import json

import pytest
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines import RecordFolder, train_tokenizer

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
    """Writes a folder with one shard. Returns its path and each record's offset."""
    path = folder / "records-00000-of-00001.tfrecord"
    places = []
    with open(path, "wb") as file:
        for each in records:
            places.append(file.tell())
            one = folder / "one"
            with tf.io.TFRecordWriter(str(one)) as writer:
                writer.write(each)
            file.write(one.read_bytes())
    facts = {"format": 1, "tokenizer": tokenizer.fingerprint()}
    facts["shards"] = [{"name": path.name, "num_pairs": len(records)}]
    (folder / "records.json").write_text(json.dumps(facts))
    return path, places


def read(folder, tokenizer):
    return list(RecordFolder(folder).id_chunks(tokenizer))


def test_records_are_read_in_order(tmp_path, tokenizer):
    write(tmp_path, tokenizer, [record(number) for number in range(NUM_RECORDS)])
    ((source, target),) = read(tmp_path, tokenizer)
    expected = [[4 + number] * (1 + number % 3) for number in range(NUM_RECORDS)]
    assert source.to_list() == target.to_list() == expected


@pytest.mark.parametrize("number", [0, 4, NUM_RECORDS - 1])
@pytest.mark.parametrize("how", ["content", "length", "cut", "not an example"])
def test_errors_locate_damaged_records(tmp_path, tokenizer, number, how):
    """The message gives the number of records before the damage."""
    records = [record(each) for each in range(NUM_RECORDS)]
    if how == "not an example":
        records[number] = b"\xff\xff"
    path, places = write(tmp_path, tokenizer, records)
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[places[number] + 20 :]
    elif how != "not an example":
        # In a TFRecord file, 12 bytes precede the content: its length and a checksum.
        content[places[number] + (16 if how == "content" else 1)] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path}: damaged after record {number}: "):
        read(tmp_path, tokenizer)
