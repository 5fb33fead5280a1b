"""Reads altered tokenizer files in a separate process, which they could crash.

    python hostile_tokenizers.py FOLDER COUNT

FOLDER contains a valid tokenizer. The script alters its file COUNT times. It prints how
many altered files a `DataError` rejected and how many were used. Any other error ends
the process.
"""

import contextlib
import json
import pathlib
import random
import sys
import tempfile
from collections import Counter

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer

TEXTS = ["der Hund läuft", "", "a" * 50, "\u2581 x", "日本 😀\x00", "  ", "\u202e"]
PIECES = ["", "a", "\u2581" * 50, "<0xZZ>", "<0x1>", "x" * 10_000, "<s>", "\x00", "ä"]
SCORES = [float("nan"), float("inf"), -float("inf"), 1e38, 0.0]
NUMBERS = [-1, 0, 1, 2, 3, 299, 300, 10**6, 2**31 - 1, -(2**31)]


def altered(content, draw):
    """Returns a file's content, altered by the `random.Random` instance `draw`."""
    kind = draw.randrange(6)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        place = draw.randrange(len(content))
        return content[:place] + draw.randbytes(draw.randint(1, 50)) + content[place:]
    if kind == 2:
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 5, 20])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if content[:1] == b"{":
        fields = json.loads(content)
        _fields(fields, draw)
        return json.dumps(fields).encode()
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    (_tables, _pieces, _settings)[kind - 3](model, draw)
    return model.SerializeToString()


def _fields(fields, draw):
    """Alters the JSON of a WordPiece tokenizer."""
    vocabulary = fields["vocabulary"]
    values = [*PIECES, 1, None, ["a"], "\ud800", "##ä"]
    added = ["zz", "##zz", "##", "\u2581\u2581", "x" * 900]
    for _ in range(draw.randint(1, 3)):
        # Pieces 0 to 260 are fixed (special, bytes, space). Changing one is an error.
        place = draw.randrange(255, len(vocabulary))
        change = draw.choice(
            [
                lambda at: vocabulary.__setitem__(at, draw.choice(values)),
                lambda at: vocabulary.__setitem__(at, vocabulary[-1]),
                lambda at: vocabulary.pop(at),
                lambda _: vocabulary.pop(),
                lambda _: vocabulary.append(draw.choice(added)),
                lambda _: fields.update(split_digits=draw.choice([True, 1, "x"])),
            ]
        )
        change(place)


def _tables(model, draw):
    """Replaces a normalization table of a SentencePiece model."""
    size = draw.choice([4, 8, 64, 1024])
    table = size.to_bytes(4, "little") + draw.randbytes(size + draw.randrange(20))
    spec = draw.choice([model.normalizer_spec, model.denormalizer_spec])
    spec.precompiled_charsmap = draw.choice([table, draw.randbytes(size)])


def _pieces(model, draw):
    """Alters pieces of a SentencePiece model."""
    for _ in range(draw.randint(1, 5)):
        piece = draw.choice(model.pieces)
        change = draw.choice(
            [
                lambda each: setattr(each, "type", draw.randint(1, 6)),
                lambda each: setattr(each, "piece", draw.choice(PIECES)),
                lambda each: setattr(each, "score", draw.choice(SCORES)),
                model.pieces.remove,
                lambda each: model.pieces.add().CopyFrom(each),
            ]
        )
        change(piece)


def _settings(model, draw):
    """Alters the settings of a SentencePiece model."""
    spec = model.trainer_spec
    spec.model_type = draw.randint(1, 4)
    for name in ("unk_id", "bos_id", "eos_id", "pad_id"):
        if draw.random() < 0.2:
            setattr(spec, name, draw.choice(NUMBERS))
    spec.treat_whitespace_as_suffix = draw.random() < 0.3
    spec.unk_surface = "x" * draw.choice([0, 1, 10**5])
    model.normalizer_spec.add_dummy_prefix = draw.random() < 0.5
    model.normalizer_spec.escape_whitespaces = draw.random() < 0.5
    model.normalizer_spec.remove_extra_whitespaces = draw.random() < 0.5


def use(tokenizer):
    """Uses a tokenizer as training, translation and export do."""
    import tensorflow as tf

    texts = tf.constant([text.encode() for text in TEXTS])
    ids = tokenizer.tokenize(texts)
    assert ids.nrows() == len(TEXTS)
    tokenizer.detokenize(ids)
    size = tokenizer.vocabulary_size
    tokenizer.detokenize([[*range(9), size - 1, size, -1, 2**31 - 1]])
    assert len(tokenizer.pieces()) == len(tokenizer.piece_bytes()) == size
    if tokenizer.kind == "bpe":
        # An altered model may not be of type BPE. `sample` rejects other types.
        with contextlib.suppress(DataError):
            tokenizer.sample(TEXTS, 0.3, 1)


def main():
    folder, count = sys.argv[1], int(sys.argv[2])
    (good,) = pathlib.Path(folder).iterdir()
    content = good.read_bytes()
    outcomes = Counter()
    with tempfile.TemporaryDirectory() as other:
        path = pathlib.Path(other) / good.name
        for seed in range(count):
            path.write_bytes(altered(content, random.Random(seed)))
            try:
                tokenizer = load_tokenizer(other)
            except DataError as error:
                assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
                outcomes["refused"] += 1
            else:
                use(tokenizer)
                outcomes["used"] += 1
    print(dict(outcomes))


if __name__ == "__main__":
    main()
