"""Tokenizer files that were truncated or altered, read in a separate process.

`check_charsmap` accepts SentencePiece's normalization tables but no forged ones. A
table is a trie over bytes, stored as an array of 32-bit units, and the texts that
replace its matches. A unit's child for a byte is at the unit's base XOR the byte.
SentencePiece does not check bounds, so a forged table could make it read other memory.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import ast
import io
import pathlib
import struct

import numpy as np
import prepared
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer, train_tokenizer
from keras_transformer.pipelines.tokenizers.model_check import check_charsmap

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
        (lambda m: setattr(m.pieces[270], "piece", ""), "word 270 .* 0 characters"),
        (lambda m: setattr(m.pieces[270], "piece", "x" * 1001), "word 270 .* 1,001"),
        (lambda m: setattr(m.pieces[270], "piece", "<s>"), "Received: '<s>' twice"),
        (lambda m: setattr(m.pieces[270], "piece", "QZ"), "word 270 .* not valid UTF"),
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


def table_of(rule):
    """Returns the table of one of the library's normalization rules, in bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b cd ef"] * 9),
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


@pytest.fixture(scope="module")
def good():
    return table_of("nmt_nfkc")


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_check_charsmap_accepts_sentencepiece_tables(rule):
    table = table_of(rule)
    assert len(table) > 100_000
    check_charsmap(table)


def stays_inside(table):
    """Returns whether the library reads only inside this table, for any text.

    Follows every byte path through the table's trie, unit by unit.
    """
    size = struct.unpack_from("<I", table)[0]
    units = struct.unpack_from(f"<{size // 4}I", table, 4)
    texts = table[4 + size :]

    def offset(unit):
        return (unit >> 10) << ((unit & 512) >> 6)

    waiting, seen = [offset(units[0])], set()
    while waiting:
        base = waiting.pop()
        if base in seen:
            continue
        seen.add(base)
        for byte in range(1, 256):
            place = base ^ byte
            if place >= len(units):
                return False
            if units[place] & 0x800000FF == byte:
                after = place ^ offset(units[place])
                if units[place] & 256:
                    if after >= len(units):
                        return False
                    if b"\0" not in texts[units[after] & 0x7FFFFFFF :]:
                        return False
                waiting.append(after)
    return True


def test_altered_tables_pass_only_if_reads_stay_inside(good):
    generator = np.random.default_rng(5)
    size = struct.unpack_from("<I", good)[0]
    refused = 0
    for _ in range(12):
        changed = bytearray(good)
        for place in generator.integers(1, size // 4, 400):
            struct.pack_into("<I", changed, 4 * place, generator.integers(2**32))
        try:
            check_charsmap(bytes(changed))
        except DataError:
            refused += 1
        else:
            assert stays_inside(bytes(changed))
    assert refused > 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table[:3], "does not match its length"),
        (lambda table: b"\xff\xff\xff\x7f" + table[4:], "does not match its length"),
        (lambda table: b"\x06\0\0\0" + table[4:], "does not match its length"),
        (lambda table: table[:-1], "its last replacement is not null-terminated"),
        (lambda table: table[:4] + b"\xff\xff\xff\xff" + table[8:], "leaves the table"),
        (lambda table: table + bytes(3 << 20), "exceeds the limit of 2,097,152 bytes"),
    ],
)
def test_damaged_tables_are_refused(good, change, reason):
    with pytest.raises(DataError, match=reason):
        check_charsmap(change(good))


def forged(units, texts=b"a\0"):
    return (
        struct.pack("<I", 4 * len(units))
        + struct.pack(f"<{len(units)}I", *units)
        + texts
    )


def test_replacement_outside_of_the_table_is_refused():
    # The root, unit 0, has base 256. Its child for "a" has base 512, where the unit
    # has the offset of the replacement in `texts`. Offsets 0 and 1 exist.
    units = [0] * 768
    units[0] = 256 << 10
    place = 256 ^ ord("a")
    units[place] = ((place ^ 512) << 10) | 256 | ord("a")
    for value, is_good in ((0, True), (1, True), (2, False), (2**31 - 1, False)):
        units[512] = 0x80000000 | value
        if is_good:
            check_charsmap(forged(units))
        else:
            with pytest.raises(DataError, match="a replacement is outside"):
                check_charsmap(forged(units))


def test_loop_with_matches_is_refused():
    """The library has room for 32 matches. Here "aaa..." matches at every letter."""
    units = [0] * 512
    units[0] = 256 << 10
    place = 256 ^ ord("a")
    units[place] = ((place ^ 256) << 10) | 256 | ord("a")
    units[256] = 0x80000000
    with pytest.raises(DataError, match="more than 32 entries"):
        check_charsmap(forged(units))
