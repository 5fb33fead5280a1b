"""Tests that any Unicode text and any bytes give one output per input.

Texts come from hypothesis and from `fuzzing.NASTY`.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import io
import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from commands import run_command
from fuzzing import ANY_TEXT, NASTY, encodable, is_text
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from process_memory import peak_bytes, reset_peak

from keras_transformer.errors import DataError
from keras_transformer.opening import open_model
from keras_transformer.pipelines import (
    TextFiles,
    decode_lines,
    encode_corpus,
    read_lines,
)
from keras_transformer.pipelines.lines import count_lines

pytestmark = pytest.mark.usefixtures("models_stay_open", "exports_load_once")
FEW_CASES = settings(
    max_examples=10,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
SHORT_TEXT = (st.text(st.characters(), max_size=9) | st.sampled_from(NASTY)).map(
    encodable
)
LISTS = st.lists(ANY_TEXT, max_size=12)
# Contents of files: text in several encodings, or arbitrary bytes.
ENCODED = st.tuples(
    ANY_TEXT, st.sampled_from(["utf-8", "utf-16", "utf-32", "latin-1", "cp1252"])
).map(lambda pair: pair[0].encode(pair[1], "replace"))
BYTES = st.lists(
    st.binary(max_size=9)
    | ENCODED
    | st.sampled_from([b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\0", b"\xff\xfe"])
    | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")),
    max_size=12,
).map(b"".join)
# Characters of texts without words, whose translation is empty.
BLANK = " \t\n\v\f\r"


def expected_lines(content):
    """Splits a file at LF only. Removes its byte order mark, and a CR ending a line."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return [line.removesuffix(b"\r") for line in lines]


@pytest.mark.fault("F15", "a line ends at \\n only; N input lines give N output lines")
@settings(FEW_CASES, max_examples=300)
@given(BYTES)
def test_read_lines_matches_lines_split_by_hand(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content)
    if not is_text(content):
        for errors in ("replace", "drop"):
            with pytest.raises(DataError, match=r"any\.txt:"):
                list(read_lines(path, errors=errors))
        return
    expected = expected_lines(content)
    replaced = list(read_lines(path, errors="replace"))
    assert replaced == [line.decode("utf-8", "replace") for line in expected]
    assert count_lines(path) == len(expected)
    dropped = list(read_lines(path, errors="drop"))
    for line, found in zip(expected, dropped, strict=True):
        try:
            assert found == line.decode()
        except UnicodeDecodeError:
            assert found is None
    assert list(decode_lines(io.BytesIO(content), "-", "replace")) == replaced


@pytest.mark.fault("F16", "training drops and counts the line and reports its number")
@pytest.mark.fault("F17", "every text that is kept can be restored from its ids")
@settings(FEW_CASES)
@given(BYTES, BYTES)
def test_encode_corpus_keeps_or_counts_every_line(
    tiny_model, tmp_path_factory, source, target
):
    tokenizer = tiny_model[1]
    folder = tmp_path_factory.mktemp("corpus")
    # A corpus must not be empty, so the first pair is always valid.
    sides = (each.replace(b"\0", b"") for each in (source, target))
    lines = [expected_lines(b"der Hund\n" + each) for each in sides]
    count = min(map(len, lines))
    for name, side in zip("ab", lines, strict=True):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in side[:count]))
    files = TextFiles(folder / "a", folder / "b")
    corpus = encode_corpus(files, tokenizer, tokenizer, folder / "ids")
    kept = count - sum(reason["count"] for reason in corpus.dropped.values())
    assert corpus.num_pairs == kept >= 1
    pairs = list(files)
    assert len(pairs) == count
    for row, number in enumerate(corpus.numbers(np.arange(kept))):
        for ids, text in zip(corpus.pair(row), pairs[number - 1], strict=True):
            assert tokenizer.detokenize([ids]).numpy()[0].decode() == text
    invalid = [number for number, pair in enumerate(pairs, 1) if None in pair]
    assert corpus.dropped["invalid_utf8"]["count"] == len(invalid)
    named = [f"{folder / 'a'}:{number}" for number in invalid]
    assert corpus.dropped["invalid_utf8"]["first"] == named[:5]
    shutil.rmtree(folder)


@pytest.mark.fault("F17", "one translation per text, with any content")
@settings(FEW_CASES)
@given(LISTS)
def test_translator_returns_one_result_per_text(tiny_translator, texts):
    found = tiny_translator.n_best(texts, 1)
    assert len(found) == len(texts)
    for text, ((translation, score, _), *_) in zip(texts, found, strict=True):
        translation.encode()
        assert math.isfinite(score)
        if not text.strip(BLANK):
            assert (translation, score) == ("", 0.0)
    assert len(tiny_translator.score(texts, texts[::-1])) == len(texts)
    assert len(tiny_translator.align(texts, texts[::-1])) == len(texts)


@pytest.mark.fault("F16", "invalid UTF-8 becomes U+FFFD")
@pytest.mark.fault("F17", "one translation per text, same as the translator's")
@settings(FEW_CASES, max_examples=8)
@given(st.lists(SHORT_TEXT.map(str.encode) | st.binary(), max_size=9))
def test_signatures_match_translator_on_any_bytes(
    tiny_signatures, tiny_translator, texts
):
    signatures = tiny_signatures
    inputs = tf.constant(texts, tf.string)
    found = signatures["serving_default"](inputs=inputs)
    ranked = signatures["translate_n_best"](inputs=inputs)
    expected = tiny_translator.n_best(
        [text.decode("utf-8", "replace") for text in texts], 1
    )
    for row, ((text, score, warnings), *_) in enumerate(expected):
        found["translations"].numpy()[row].decode()
        # The translator splits long texts into segments. The export truncates them.
        if not any("segments" in warning for warning in warnings):
            np.testing.assert_allclose(found["scores"][row], score, atol=1e-4)
            assert found["translations"].numpy()[row].decode() == text
    assert found["translations"].shape == found["scores"].shape == len(texts)
    assert ranked["translations"].shape == (len(texts), 4)
    pairs = {"inputs": inputs, "targets": inputs[::-1]}
    assert signatures["score"](**pairs)["log_probs"].shape == len(texts)
    assert np.isfinite(signatures["score"](**pairs)["log_probs"]).all()
    attended = signatures["attend"](**pairs)
    assert attended["attention"].shape[0] == len(texts)
    for pieces in (attended["source_pieces"], attended["target_pieces"]):
        for piece in pieces.numpy().ravel():
            piece.decode()  # raises an error unless it is UTF-8


def translate(model, content, *options):
    return run_command("translate", model, *options, stdin=content, code=0)


def is_utf8(line):
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.fault("F15", "`translate` writes one output line per input line")
@pytest.mark.fault("F16", "`translate` writes U+FFFD and names the line")
@settings(FEW_CASES, max_examples=3)
@given(st.lists(BYTES, min_size=9, max_size=20).map(b"\n".join))
def test_translate_command_writes_one_line_per_line(tiny_model_file, content):
    assume(is_text(content))
    result = translate(tiny_model_file, content)
    expected = expected_lines(content)
    assert result.stdout_bytes.count(b"\n") == len(expected)
    assert "Traceback" not in result.stderr
    written = result.stdout_bytes.decode().split("\n")
    for line, out in zip(expected, written, strict=False):
        if not line.decode("utf-8", "replace").strip(BLANK):
            assert out == ""
    invalid = [number for number, line in enumerate(expected, 1) if not is_utf8(line)]
    summary = "standard input: {} line(s) not UTF-8, the first is line {};"
    for number in invalid[:1]:
        assert summary.format(len(invalid), number) in result.stderr
    assert ("not UTF-8" in result.stderr) == bool(invalid)


@pytest.mark.slow
@pytest.mark.fault("F17", "one translation per text")
def test_translate_command_handles_every_nasty_text(tiny_model_file, tiny_export):
    # A text file has no NUL.
    lines = [text.replace("\n", " ").replace("\0", " ") for text in NASTY]
    content = "\n".join(map(encodable, lines)).encode() + b"\n"
    for model in (tiny_model_file, tiny_export):
        assert translate(model, content).stdout_bytes.count(b"\n") == len(lines)
    found = open_model(tiny_export).translate(NASTY)  # including lone surrogates
    assert len(found) == len(NASTY)


@pytest.mark.fault("F14", "10,000 empty lines give 10,000 empty lines")
def test_translate_command_keeps_empty_lines(tiny_model_file, tiny_export):
    content = b"\n" * 10_000
    for model in (tiny_model_file, tiny_export):
        assert translate(model, content).stdout_bytes == content


@pytest.mark.fault("F18", "encoded as bytes, never unknown; translated")
def test_translator_accepts_unseen_languages(tiny_model, tiny_translator):
    texts = ["漢字かな交じり文", "Привет, мир", "שלום עולם", "नमस्ते", "ሰላም", "𓀀𓀁", "ꙮ"]
    ids = tiny_model[1].tokenize(texts)
    assert not (ids.flat_values.numpy() == tiny_model[1].unknown_id).any()
    for text, row in zip(texts, ids.to_list(), strict=True):
        assert len(row) >= len(text.encode()) - text.count(" ")
    # The untrained model also writes bytes that form no character. They are left out.
    translations = tiny_translator.translate(texts)
    assert any(translations) and "\ufffd" not in "".join(translations)


@pytest.mark.fault(
    "F19", "translated in segments or cut, with a warning; bounded memory"
)
@pytest.mark.slow
@pytest.mark.parametrize("length", [20_000, 200_000])
def test_translate_command_bounds_memory_of_long_lines(
    tiny_model_file, tiny_export, length, record_property
):
    sizes = []
    for model, option in ((tiny_model_file, ["--beam-size", "1"]), (tiny_export, [])):
        # A model file translates all segments of a line, so its line is shorter. An
        # export truncates the line.
        count = length if model == tiny_model_file else 1 << 20
        short = translate(model, b"Hund\n", *option).stdout
        before = reset_peak()
        line = b"Hund und Katze. " * (count // 16)
        result = translate(model, line + b"\nHund\n", *option)
        sizes.append((peak_bytes() - before) >> 20)
        assert result.stdout.count("\n") == 2
        assert len(result.stdout.split("\n")[0]) > 1
        warnings = re.findall("warning: line 1: .*", result.stderr)
        assert len(set(warnings)) == len(warnings)
        cut = ("max_source_length", "cut off at the export's maximum length")
        assert sum(any(text in each for text in cut) for each in warnings) == 1
        assert result.stdout.split("\n")[1] + "\n" == short
    lines = (
        f"model file, {length:,} characters",
        "export, 1,048,576 characters",
    )
    grown = [
        f"{each}: {size} MiB more" for each, size in zip(lines, sizes, strict=True)
    ]
    record_property("happened", "; ".join(grown))
    assert max(sizes) < 700
