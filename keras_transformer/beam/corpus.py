"""Apache Beam pipeline from a parallel corpus to files of token ids for training.

It is for corpora that are too large for one machine. The runner's workers read, check
and tokenize the files and distribute the sentence pairs over shards. The output does
not depend on the number of workers: a pair's file number and line number determine its
shard and its place in the shard.

The output folder contains `records-00000-of-00016.tfrecord` and so on, the tokenizer,
and `records.json`, which is written last (see `RecordFolder`). Each record is a
`tf.train.Example` with the int64 features `source` and `target`. They contain no start
and end ids.
"""

import hashlib
import json
import os
import tempfile
import zlib

import apache_beam as beam
import tensorflow as tf
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from keras_transformer.beam.run import (
    check_same_number,
    line_pairs,
    make_folder,
    output_folder,
    run_pipeline,
    write_file,
)
from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash
from keras_transformer.pipelines.sources.records import (
    DROP_TEXTS,
    EMPTY,
    FORMAT,
    INVALID,
    RECORDS,
    REPEATED,
    TOO_LONG,
    UNEVEN,
    describe_dropped,
)
from keras_transformer.pipelines.tokenizers.registry import (
    SeparateTokenizers,
    load_tokenizer,
)
from keras_transformer.saving.names import TEXT


def encode_with_apache_beam(
    sources,
    targets,
    tokenizer_folder,
    output,
    shards=16,
    max_length=256,
    max_ratio=None,
    deduplicate=False,
    pipeline_options=(),
):
    """Tokenizes, filters and shards a corpus of line-aligned files.

    Args:
        sources: Paths of text files, plain or compressed, on any filesystem that Beam
            supports. Each file is read by a single worker, so a few large files are
            slower than many small ones.
        targets: Paths of the translations of `sources`, in the same order.
        tokenizer_folder: Folder that `Tokenizer.save` wrote, visible to every worker.
        output: The output folder. It must not contain `records.json` yet.
        shards: Number of output files.
        max_length: Maximum number of ids per side, including the end id. Longer pairs
            are dropped.
        max_ratio: Maximum number of ids on the longer side per id on the shorter side,
            including end ids. Pairs above it are dropped. If `None`, there is no limit.
        deduplicate: Whether to drop repetitions of a pair.
        pipeline_options: Command-line options of Beam and its runner, a
            sequence of str.

    Returns:
        The content of `records.json`, a dict. It includes the counts `num_read`,
        `num_pairs` and `dropped` (by reason), and the list `shards`, whose items have
        `name`, `num_pairs` and `sha256`.

    Raises:
        DataError: If files are not line-aligned or cannot be read, if no pair is left,
            if `shards` is below 1, if the folder contains a corpus or cannot be
            created, or if Beam rejects an option.
    """
    sources, targets = [*map(os.fspath, sources)], [*map(os.fspath, targets)]
    output = os.fspath(output)
    check_same_number(sources, targets)
    if shards < 1:
        raise DataError(f"shards must be at least 1. Received: {shards}")
    tokenizer = load_tokenizer(tokenizer_folder)
    metadata = {
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint(),
        "max_length": max_length,
    }
    files = [*enumerate(zip(sources, targets, strict=True))]
    encode = _Tokenize(os.fspath(tokenizer_folder), max_length, max_ratio, shards)

    def build(pipeline):
        pairs, counts = _read_pairs(pipeline, files, deduplicate)
        written, totals = _write_shards(pairs, counts, encode, output, shards)
        return (
            pipeline
            | "once" >> beam.Create([metadata])
            | "write metadata"
            >> beam.Map(
                _write_metadata,
                metadata_path,
                beam.pvalue.AsSingleton(written),
                beam.pvalue.AsSingleton(totals),
            )
        )

    with output_folder(output, kept=[RECORDS]):
        metadata_path = FileSystems.join(output, RECORDS)
        if FileSystems.exists(metadata_path):
            raise DataError(
                f"{output}: already contains a corpus. Choose another folder"
            )
        _copy_tokenizer(tokenizer, tokenizer_folder, output)
        run_pipeline(build, pipeline_options)
        return _read_metadata(metadata_path)


def _read_pairs(pipeline, files, deduplicate):
    """Returns a collection of (place, texts) and a list of collections of counts."""
    read = (
        pipeline
        | "files" >> beam.Create(files)
        | "distribute files" >> beam.Reshuffle()
        | "read" >> beam.ParDo(_ReadPairs()).with_outputs("counts", main="pairs")
    )
    if not deduplicate:
        return read.pairs, [read.counts]
    first = (
        read.pairs
        | "key by text" >> beam.Map(_key_by_text)
        | "same texts" >> beam.GroupByKey()
        | "keep the first"
        >> beam.ParDo(_KeepFirst()).with_outputs("counts", main="pairs")
    )
    return first.pairs, [read.counts, first.counts]


def _write_shards(pairs, counts, encode, output, shards):
    """Returns two collections: the list of shards, and the dict of counts."""
    encoded = (
        pairs
        | "batch" >> beam.BatchElements(min_batch_size=64, max_batch_size=4096)
        | "tokenize" >> beam.ParDo(encode).with_outputs("counts", main="pairs")
    )
    written = (
        encoded.pairs
        | "shard" >> beam.GroupByKey()
        | "write" >> beam.ParDo(_WriteShard(output, shards))
        | "list shards" >> beam.combiners.ToList()
    )
    totals = (
        (*counts, encoded.counts)
        | "all counts" >> beam.Flatten()
        | "sum counts" >> beam.CombinePerKey(sum)
        | "list counts" >> beam.combiners.ToDict()
    )
    return written, totals


class _ReadPairs(beam.DoFn):
    """Maps (file number, paths) to (place, texts). A place is (file number, line)."""

    def process(self, element):
        file, (source, target) = element
        for line, *texts in line_pairs(source, target):
            yield beam.pvalue.TaggedOutput("counts", ("num_read", 1))
            if None in texts:
                yield beam.pvalue.TaggedOutput("counts", (INVALID, 1))
            elif not all(text.strip() for text in texts):
                yield beam.pvalue.TaggedOutput("counts", (EMPTY, 1))
            else:
                yield (file, line), tuple(texts)


def _key_by_text(element):
    place, (source, target) = element
    text = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).digest(), (place, (source, target))


class _KeepFirst(beam.DoFn):
    """Maps (key, pairs with the same texts) to the first pair."""

    def process(self, element):
        pairs = sorted(element[1])
        if len(pairs) > 1:
            yield beam.pvalue.TaggedOutput("counts", (REPEATED, len(pairs) - 1))
        yield pairs[0]


# Without this type, Beam infers a union with `TaggedOutput`, and `GroupByKey` fails.
@beam.typehints.with_output_types(beam.typehints.KV[int, beam.typehints.Any])
class _Tokenize(beam.DoFn):
    """Maps lists of (place, texts) to (shard, (place, source ids, target ids))."""

    def __init__(self, tokenizer_folder, max_length, max_ratio, shards):
        self._folder = tokenizer_folder
        self._max_length = max_length
        self._max_ratio = max_ratio
        self._shards = shards
        self._tokenizer = None

    def setup(self):
        self._tokenizer = load_tokenizer(self._folder)

    def process(self, batch):
        places, texts = zip(*batch, strict=True)
        tokenizers = self._tokenizer, self._tokenizer.target
        sides = [
            tokenizer.tokenize([text.encode() for text in side]).to_list()
            for tokenizer, side in zip(
                tokenizers, zip(*texts, strict=True), strict=True
            )
        ]
        for place, source, target in zip(places, *sides, strict=True):
            reason = self._drop_reason(len(source) + 1, len(target) + 1)
            if reason:
                yield beam.pvalue.TaggedOutput("counts", (reason, 1))
            else:
                shard = zlib.crc32(f"{place[0]}:{place[1]}".encode()) % self._shards
                yield shard, (place, source, target)

    def _drop_reason(self, *lengths):
        if max(lengths) > self._max_length:
            return TOO_LONG
        if self._max_ratio and max(lengths) > self._max_ratio * min(lengths):
            return UNEVEN
        return None


class _WriteShard(beam.DoFn):
    """Writes (shard, pairs) to a file and yields its entry for `records.json`."""

    def __init__(self, output, shards):
        self._output = output
        self._shards = shards

    def process(self, element):
        shard, pairs = element
        name = f"records-{shard:05}-of-{self._shards:05}.tfrecord"
        pairs = sorted(pairs)
        # TensorFlow supports fewer filesystems than Beam, so it writes a local file.
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, name)
            with tf.io.TFRecordWriter(local) as writer:
                for _, source, target in pairs:
                    writer.write(_example(source, target))
            with open(local, "rb") as file:
                write_file(FileSystems.join(self._output, name), file)
            digest = content_hash(local)
        yield {"name": name, "num_pairs": len(pairs), "sha256": digest}


def _example(source, target):
    def ids(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = tf.train.Features(feature={"source": ids(source), "target": ids(target)})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def _read_metadata(path):
    """Reads `records.json`. If the corpus has no pairs, deletes the file and raises."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        metadata = json.loads(file.read())
    if not metadata["num_pairs"]:
        FileSystems.delete([path])
        raise DataError(
            f"no training examples: {metadata['num_read']:,} pairs read, dropped: "
            f"{describe_dropped(metadata['dropped']) or 'none'}"
        )
    return metadata


def _write_metadata(metadata, path, shards, counts):
    metadata = {
        **metadata,
        "num_read": counts.get("num_read", 0),
        "num_pairs": sum(shard["num_pairs"] for shard in shards),
        "dropped": {name: counts[name] for name in DROP_TEXTS if name in counts},
        "shards": sorted(shards, key=lambda shard: shard["name"]),
    }
    write_file(path, [json.dumps(metadata, indent=1).encode()])


def _copy_tokenizer(tokenizer, folder, output):
    sides = {"": tokenizer}
    if isinstance(tokenizer, SeparateTokenizers):
        sides = {"source": tokenizer.source, "target": tokenizer.target}
    for side, each in sides.items():
        into = FileSystems.join(output, "tokenizer", side)
        make_folder(into)
        for name in (each.file_name, *([] if each.text is None else [TEXT])):
            with open(os.path.join(folder, side, name), "rb") as file:
                write_file(FileSystems.join(into, name), [file.read()])
