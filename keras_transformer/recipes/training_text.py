"""Size of a recipe's training text, estimated without TensorFlow.

The files are not checked. If one cannot be read, training reports why.
"""

import os
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeInt

from keras_transformer.pipelines.lines import opened_lines
from keras_transformer.pipelines.sources.text_files import PAIR_LINES
from keras_transformer.untrusted import MAX_LOG_BYTES, read_json

# Bytes of text to read from each file. The sizes of larger files are extrapolated.
_SAMPLE_BYTES = 1 << 23


class TextSize(NamedTuple):
    """Size of a parallel corpus, extrapolated from its beginning."""

    pairs: int
    bytes: int  # of the longer side
    characters: int  # distinct characters in the samples of both sides
    words: int  # distinct words in the samples of both sides


class _Shard(BaseModel):
    name: str
    num_pairs: NonNegativeInt


class _Records(BaseModel):
    """The part of `records.json` that contains the sizes."""

    shards: list[_Shard]


def measure_training_text(data) -> TextSize | None:
    """Estimates the size of the training text, given the section `data` of a recipe.

    Returns `None` for text that cannot be read, or that would have to be downloaded.
    """
    try:
        if data.kind == "records":
            return _measure_records(data.train)
        if data.kind == "files":
            return _measure(_texts_of_files(data.train))
        if data.kind in PAIR_LINES:
            return _measure(_texts_of_tables(data))
    except (OSError, ValueError):  # a file or one of its lines is invalid
        pass
    return None


def _measure(samples):
    """Returns the `TextSize` of samples `(side, texts, size of the file / sample)`."""
    pairs, sizes, characters, words = [0, 0], [0, 0], set(), set()
    for side, texts, factor in samples:
        # A text that is not UTF-8 is `None`.
        text = "".join(f"{each or ''}\n" for each in texts)
        num_bytes = len(text.encode("utf-8", "replace"))
        pairs[side] += round(len(texts) * factor)
        sizes[side] += round(num_bytes * factor)
        characters.update(text)
        words.update(text.split())
    return TextSize(pairs[0], max(sizes), len(characters), len(words))


def _texts_of_files(train):
    for side, paths in enumerate((train.source, train.target)):
        for path in paths:
            yield side, *_sample(path)


def _texts_of_tables(data):
    source = PAIR_LINES[data.kind](data.train, data.source, data.target)
    for path in source.paths:
        lines, factor = _sample(path)
        sides = zip(*source.parse(lines, path), strict=True)
        for side, texts in enumerate(sides):
            yield side, texts, factor


def _sample(path):
    """Returns a file's first lines, and its size relative to theirs."""
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    lines, num_bytes, position = [], 0, 0
    with open(path, "rb") as file:
        for line in opened_lines(file, path, errors="drop"):
            if file.tell() != position:  # `line` is the first one of a chunk
                if num_bytes >= _SAMPLE_BYTES:
                    return lines, os.path.getsize(path) / position
                position = file.tell()  # counts the bytes of a compressed file
            lines.append(line)
            num_bytes += len((line or "").encode()) + 1
    return lines, 1.0


def _measure_records(folder):
    """Returns the `TextSize` of a folder of encoded pairs.

    The numbers of characters and words are unknown. The number of pairs stands in for
    the number of words, so that too few words do not limit the vocabulary size.
    """
    path = os.path.join(folder, "records.json")
    shards = read_json(path, _Records, MAX_LOG_BYTES).shards
    names = [os.path.basename(shard.name) for shard in shards]
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    # Records take about two bytes per id. Both sides' ids together take about as many
    # bytes as the text of one side.
    num_pairs = sum(shard.num_pairs for shard in shards)
    return TextSize(num_pairs, size, 0, num_pairs)
