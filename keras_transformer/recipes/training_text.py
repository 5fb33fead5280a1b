"""Size of a recipe's training text, estimated without TensorFlow.

The files are not checked. If one cannot be read, training reports why.
"""

import codecs
import os
import re
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeInt

from keras_transformer.errors import UserError
from keras_transformer.pipelines.lines import text_chunks
from keras_transformer.pipelines.sources.tables import PAIR_LINES
from keras_transformer.recipes.data_sections import DATA_KINDS
from keras_transformer.untrusted import MAX_LOG_BYTES, read_json

# Bytes of text to read from each file. The sizes of larger files are extrapolated.
_SAMPLE_BYTES = 1 << 23


class TextSize(NamedTuple):
    """Size of a parallel corpus, extrapolated from its beginning."""

    pairs: int
    bytes: int  # of the longer side
    characters: int  # distinct characters in the samples of both sides
    words: int  # distinct words in the samples of both sides


def measure_training_text(data) -> TextSize | None:
    """Estimates the size of the training text of a recipe.

    Args:
        data: Section `data` as a mapping, which need not be valid.

    Returns:
        `TextSize`, or `None` if the text cannot be read, or its kind is not `files`,
        `tsv`, `csv`, `jsonl` or `records`.
    """
    kind = data.get("kind", "files") if isinstance(data, dict) else None
    if kind == "files":
        train = data.get("train")
        if not isinstance(train, dict):
            return None
        sides = [_as_paths(train.get(side)) for side in ("source", "target")]
        return measure_text(*sides) if all(sides) else None
    if isinstance(kind, str) and kind in PAIR_LINES:
        try:
            return _measure_pairs(DATA_KINDS[kind].model_validate(data))
        except ValueError:  # the section or a line of a file is invalid
            return None
    if kind == "records" and isinstance(data.get("train"), str):
        return _measure_records(os.path.expanduser(data["train"]))
    return None


def measure_text(sources, targets) -> TextSize | None:
    """Estimates the size of a corpus from the beginning of its files.

    Args:
        sources: Paths of text files, plain or compressed.
        targets: Paths of the other side's files.

    Returns:
        `TextSize`, or `None` if a file is missing or cannot be read.
    """
    sides, vocabulary = [], _Vocabulary()
    for paths in (sources, targets):
        lines = size = 0
        for path in paths:
            sample = _read_sample(path)
            if sample is None:
                return None
            vocabulary.add(sample.text)
            lines += round(sample.text.count("\n") * sample.factor)
            size += round(sample.num_bytes * sample.factor)
        sides.append((lines, size))
    (pairs, source_bytes), (_, target_bytes) = sides
    return vocabulary.text_size(pairs, source_bytes, target_bytes)


def _measure_pairs(data):
    """Like `measure_text`, for the section of files with both sides on one line."""
    paths = _as_paths(data.train)
    source = PAIR_LINES[data.kind](paths, data.source, data.target)
    num_pairs, sizes, vocabulary = 0, [0, 0], _Vocabulary()
    for path in paths:
        sample = _read_sample(path)
        if sample is None:
            return None
        pairs = list(source.parse(sample.text.split("\n")[:-1], path))
        num_pairs += round(len(pairs) * sample.factor)
        for side, texts in enumerate(zip(*pairs, strict=True)):
            text = "".join(f"{each}\n" for each in texts)
            vocabulary.add(text)
            num_bytes = len(text.encode("utf-8", "replace"))
            sizes[side] += round(num_bytes * sample.factor)
    return vocabulary.text_size(num_pairs, *sizes)


class _Shard(BaseModel):
    name: str
    num_pairs: NonNegativeInt


class _Records(BaseModel):
    """The part of `records.json` that contains the sizes."""

    shards: list[_Shard]


def _measure_records(folder):
    """Returns the `TextSize` of a folder of encoded pairs, or `None`.

    The numbers of characters and words are unknown. The number of pairs stands in for
    the number of words, so that too few words do not limit the vocabulary size.
    """
    try:
        path = os.path.join(folder, "records.json")
        shards = read_json(path, _Records, MAX_LOG_BYTES).shards
        names = [os.path.basename(shard.name) for shard in shards]
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    except (OSError, ValueError, UserError):
        return None
    # Records take about two bytes per id. Both sides' ids together take about as many
    # bytes as the text of one side.
    num_pairs = sum(shard.num_pairs for shard in shards)
    return TextSize(num_pairs, size, 0, num_pairs)


class _Vocabulary:
    """Distinct characters and words of texts."""

    def __init__(self):
        self._characters = set()
        self._words = set()

    def add(self, text):
        self._characters.update(text)
        self._words.update(re.findall(r"\S+", text))

    def text_size(self, pairs, source_bytes, target_bytes):
        longer = max(source_bytes, target_bytes)
        return TextSize(pairs, longer, len(self._characters), len(self._words))


class _Sample(NamedTuple):
    """Beginning of a file."""

    text: str
    num_bytes: int  # uncompressed size of the sample
    factor: float  # size of the file relative to the sample


def _read_sample(path):
    """Returns a `_Sample`, or `None` if `path` is not a regular file or is damaged."""
    content, num_read, has_more = bytearray(), 0, False
    try:
        if not os.path.isfile(path):
            return None
        stored = os.path.getsize(path)
        with open(path, "rb") as file:
            for chunk, _ in text_chunks(file, path):
                has_more = len(content) >= _SAMPLE_BYTES
                if has_more:
                    break
                content += chunk
                num_read = file.tell()  # compressed bytes of a compressed file
    except (OSError, ValueError):
        return None
    factor = stored / num_read if has_more and num_read else 1.0
    # As when training reads the file, a byte order mark and the line ends of Windows
    # are not part of the text, and the last line needs no line end.
    content = content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")
    if content and not has_more and not content.endswith(b"\n"):
        content += b"\n"
    return _Sample(content.decode("utf-8", "ignore"), len(content), factor)


def _as_paths(value):
    """Returns a path or list of paths as a list, or `None` for any other value."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return None
    return [os.path.expanduser(path) for path in paths]
