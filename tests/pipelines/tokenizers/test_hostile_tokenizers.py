"""Tokenizer files that were truncated or altered, read in a separate process.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import ast
import pathlib

import prepared
import pytest
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer, train_tokenizer

CHILD = pathlib.Path(__file__).with_name("hostile_tokenizers.py")
SENTENCES = ["der Hund läuft", "ein Hund und noch ein Hund", "die Katze schläft"]


def run(folder, kind, count):
    """Returns {"refused": count, "used": count} of the script hostile_tokenizers.py."""
    train_tokenizer(kind, SENTENCES, 300).save(folder / "good")
    arguments = (folder / "good", count)
    done = prepared.run(prepared.script(CHILD), *arguments, folder=folder, limit=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.fault("F24", "one line that names the file, no crash")
@pytest.mark.parametrize("count", [120, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_altered_files_are_rejected_or_used(tmp_path, kind, count, record_property):
    outcomes = run(tmp_path, kind, count)
    refused, used = outcomes["refused"], outcomes["used"]
    record_property("happened", f"{kind}: {refused} refused, {used} used")
    assert refused + used == count and min(refused, used) > 5


def change(content, alter):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    alter(model)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"x"), "table"),
        (lambda m: setattr(m.denormalizer_spec, "precompiled_charsmap", b"x"), "table"),
        (lambda m: setattr(m.pieces[270], "piece", ""), "piece 270 .* 0 characters"),
        (lambda m: setattr(m.pieces[270], "piece", "x" * 1001), "piece 270 .* 1,001"),
        (lambda m: setattr(m.pieces[270], "piece", "<s>"), "a piece twice"),
        (lambda m: setattr(m.pieces[270], "piece", "QZ"), "piece 270 .* not valid UTF"),
        (lambda m: m.pieces.add(piece="\0", type=3), "a one-character control"),
        (
            lambda m: setattr(m.pieces[270], "score", float("nan")),
            "a finite score. Received: nan",
        ),
        (lambda m: setattr(m.trainer_spec, "byte_fallback", False), "byte fallback"),
        (lambda m: m.ClearField("pieces"), "not a SentencePiece model"),
    ],
)
def test_model_check_reports_reason(tmp_path, alter, reason):
    train_tokenizer("bpe", SENTENCES, 300).save(tmp_path)
    path = tmp_path / "tokenizer.model"
    # `alter` cannot write invalid UTF-8 itself.
    content = change(path.read_bytes(), alter).replace(b"QZ", b"\xf4Z")
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"tokenizer\.model: .*{reason}"):
        load_tokenizer(tmp_path)
