"""Vocabulary files: how Marian spells tokens in YAML, and files that are refused."""

import pytest
import yaml

from keras_transformer.errors import ModelError
from keras_transformer.interop.vocabularies import (
    format_vocabulary,
    read_entries,
    read_vocabulary,
)

# Spelling in YAML, and the token that it stands for.
SPELLED = {
    '"?"': "?",
    "a:b": "a:b",
    "yes": "yes",
    "0x1F": "0x1F",
    "1": "1",
    r"\n": r"\n",
    r'"\"quoted\""': '"quoted"',
    r'"\\\x07\u00e9\U0001F600\t\e\_"': "\\\x07é😀\t\x1b\xa0",
    "it's": "it's",
    "'it''s: 3'": "it's: 3",
    "\u2028": "\u2028",
    "\x85": "\x85",
    "\xa0": "\xa0",
    ">>fra<<": ">>fra<<",
    "a: 7": "a: 7",
    "# no comment": "# no comment",
    r'"\ud83d\ude01"': "😁",
    "": "",
    # YAML ignores spaces around a key.
    "b ": "b",
    "  c": "c",
    "d e\t ": "d e",
    " 'f ' ": "f ",
}


def test_tokens_of_vocab_yml_are_any_text(tmp_path):
    lines = [f"{spelled}: {n}\n" for n, spelled in enumerate(SPELLED)]
    path = tmp_path / "vocab.yml"
    path.write_text("".join(lines), encoding="utf-8")
    assert read_vocabulary(path) == tuple(SPELLED.values())
    # In YAML, key and value may be on separate lines, and entries in any order.
    lines = [f"? {spelled}\n: {n}\n" for n, spelled in enumerate(SPELLED)]
    path.write_text("".join(reversed(lines)), encoding="utf-8")
    assert read_vocabulary(path) == tuple(SPELLED.values())


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.txt", "</s>\n\u2028\na\n0: 1\n"),
        ("opus.spm32k.src.vocab", "</s>\n\u2028\na\n0: 1"),
        # Marian reads all files without a suffix of its other formats as text.
        ("v", "</s>\n\u2028\na\n0: 1"),
        ("v.yml", '</s>: 0\n? \u2028\n: 1\n"a": 2\n0: 1: 3\n'),
        ("v.yaml", "? '</s>'\n: 0\n\u2028: 1\n'0: 1': 3\na: 2"),
        ("v.json", '{"</s>": 0,\n"\u2028": 1,\n"0: 1": 3,\n"a": 2}\n'),
    ],
)
def test_vocabulary_has_any_format_line_ends_and_byte_order_mark(
    tmp_path, name, text, mark
):
    path = tmp_path / name
    for line_end in ("\n", "\r\n"):
        path.write_bytes((mark + text.replace("\n", line_end)).encode())
        assert read_vocabulary(path) == ("</s>", "\u2028", "a", "0: 1")


REFUSED = {
    # Marian also aborts on empty lines.
    "vocab.txt": [
        ("", "contains no subwords"),
        ("a\n\nb\n", "line 2: must have one subword, but is empty"),
        ("a\nb\n\n", "line 3: must have one subword, but is empty"),
        (" " * (65 << 20), "at most 67,108,864 bytes"),
    ],
    "vocab.yml": [
        ("a: 0\nb: 2\n", "no subword has the id 1"),
        ("a: 0\nb: 0\n", "the id 0 belongs to 'a' and 'b'"),
        ("a: 0\na: 1\n", "the subword 'a' has the ids 0 and 1"),
        ("a: 0\nb 1\n", "line 2: must be PIECE: ID. Received: 'b 1'"),
        ("a: 0\nb: -1\n", "line 2: must be PIECE: ID"),
        ("a: 0\nb: 99999999999999999999\n", "line 2: must be PIECE: ID"),
        ('a: 0\n"b: 1\n', "line 2: a subword in quotes must end"),
        ('a: 0\n"\\q": 1\n', "is not a YAML escape"),
        ('a: 0\n"\\U00110000": 1\n', "is not a character"),
        ('"\\ud800": 0\n', "is not valid text"),
        ("!!python/name:os.system : 0\n!!x: 1\n- 2", "line 3: must be PIECE: ID"),
        ("", "contains no subwords"),
        ("a: 1000000\n", "no subword has the id 0"),
        ("a\xff: 0\n", "not UTF-8"),
    ],
    "vocab.json": [('{"a": 0, "f": -1}', "'f' must be at least 0. Received: -1")],
    "vocab.fsv": [("", "factored vocabularies")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_vocabulary_is_refused(tmp_path, name):
    path = tmp_path / name
    for content, reason in REFUSED[name]:
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ModelError) as caught:
            read_vocabulary(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ") and reason in message


def test_entries_may_lack_ids_and_are_limited_to_a_size(tmp_path):
    path = tmp_path / "vocab.yml"
    path.write_text("d: 9\nb: 3\na: 0\nc: 5\na: 7\n")
    assert list(read_entries(path, 6).items()) == [(0, "a"), (3, "b"), (5, "c")]
    with pytest.raises(ModelError, match="the subword 'a' has the ids 0 and 7"):
        read_entries(path)
    with pytest.raises(ModelError, match="contains no subwords"):
        read_entries(path, 0)


def test_written_vocabulary_round_trips_through_all_readers(tmp_path):
    plain = [
        *("</s>", "<unk>", "▁a", "a'b", "''", '"', "\\", "\\x41", "\\n", "?", ":", "#"),
        *("? x", "a: 1", "- x", " ", "~", "null", "{a", "&b", "é", "😀", "日本"),
        *("\u00a0", "\x07", "\x85", "\r", "\n", "\t", "\x7f", "\ue000", "<0x41>"),
    ]
    # CTranslate2 does not support the escapes that these tokens require.
    escaped = ["\u2028", "a\u2029b", "\ufeff", "\x07ab", '\x07"\\', "\ufffe"]
    path = tmp_path / "vocab.yml"
    text = format_vocabulary([*plain, *escaped])
    path.write_text(text, encoding="utf-8")
    expected = [*plain, *escaped]
    assert read_vocabulary(path) == tuple(expected)
    numbers = {piece: str(number) for number, piece in enumerate(expected)}
    assert yaml.load(text, yaml.BaseLoader) == numbers
