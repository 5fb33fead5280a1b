"""Commands name an unusable input file in one line and exit with code 2."""

import gzip
import os
import pathlib

import pytest
from commands import error_of, run_command

RECIPE = """\
data: {{train: {{source: [{source}], target: [{target}]}}}}
tokenizer: {{vocabulary_size: 300}}
model: {{size: tiny}}
training: {{steps: 1, warmup_steps: 1, batch_tokens: 100}}
"""


@pytest.fixture
def files(tmp_path):
    """Folder of files named after their fault. `good` has three lines."""
    text = b"ein Hund\nzwei\ndrei\n"
    content = {
        "good": text,
        "short": b"one\ntwo\n",
        "latin": b"one\nna\xefve\nthree\n",
        "empty": b"",
        "cut.gz": gzip.compress(text * 999)[:-9],
        "altered.gz": gzip.compress(text)[:-8] + b"\0" * 8,
        "nul": b"ein\0\nzwei\ndrei\n",
        "docx": b"PK\3\4\n\n\n",
        "tmx": b"<tmx>\n\n\n",
        "utf16": text.decode().encode("utf-16"),
    }
    for name, each in content.items():
        (tmp_path / name).write_bytes(each)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    # Permissions do not stop root, but reading memory at address 0 fails for everybody.
    (tmp_path / "unreadable").symlink_to("/proc/self/mem")
    return tmp_path


# Expected part of the error for each file. Commands word some errors differently, so
# `|` separates alternatives.
BAD = {
    "short": "the same number of lines|2 lines|one line per tree",
    "empty": "the file is empty",
    "cut.gz": "the gzip file is truncated, after line",
    "altered.gz": "not a valid gzip file, after line",
    "nul": "NUL byte",
    "docx": "a zip archive",
    "tmx": "TMX (for training, data.kind: tmx)",
    "folder": "must be a file, not a folder",
    "missing": "no such file",
    "loop": "Too many levels of symbolic links|no such file",
    "unreadable": "Input/output error",
    "utf16": "the text is UTF-16",
}


def assert_names(result, name, reason):
    error = error_of(result)
    assert name in error and "Traceback" not in error
    assert any(each in error for each in reason.split("|")), error


def skip_without(name):
    if name == "unreadable" and not pathlib.Path("/proc/self/mem").exists():
        pytest.skip("no /proc, and root can read every file")


@pytest.mark.fault("F13", "train, score and evaluate report both counts")
@pytest.mark.fault("F20", "train, score and evaluate name the file, exit code 2")
@pytest.mark.parametrize("name", BAD)
def test_commands_name_a_bad_parallel_file(files, model_path, name):
    skip_without(name)
    good, bad = files / "good", files / name
    recipe = files / "recipe.yaml"
    recipe.write_text(RECIPE.format(source=good, target=bad))
    result = run_command("train", recipe, "-o", files / "new" / "run")
    assert_names(result, name, BAD[name])
    # A failed start leaves no folder.
    assert not (files / "new").exists()
    result = run_command("score", model_path, "-s", good, "-t", bad)
    assert_names(result, name, BAD[name])
    result = run_command("evaluate", model_path, "-s", good, "-r", bad)
    assert_names(result, name, BAD[name])


@pytest.mark.fault("F20", "translate names the file; the output file is not written")
@pytest.mark.parametrize(
    "name", [name for name in BAD if name not in ("short", "empty")]
)
def test_translate_names_a_bad_input_file(files, model_path, name):
    skip_without(name)
    output = files / "output"
    result = run_command("translate", model_path, "-i", files / name, "-o", output)
    assert_names(result, name, BAD[name])
    assert not output.exists()


@pytest.mark.fault("F16", "score reports file, line and byte; train drops the line")
def test_score_names_the_invalid_byte(files, model_path):
    result = run_command(
        "score", model_path, "-s", files / "good", "-t", files / "latin"
    )
    place = "latin:2: not UTF-8 (byte 0xef at position 3"
    assert_names(result, place, "not UTF-8")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "must be a regular file, not a pipe"),
        ("huge", "must have at most 1,048,576 bytes"),
        ("folder", "must be a file, not a folder"),
        ("latin", "cannot be read"),
        ("missing", "no such file"),
    ],
)
def test_export_names_a_bad_file_of_scores(files, model_path, name, reason):
    os.mkfifo(files / "pipe")
    (files / "huge").write_bytes(b" " * 2**20 + b"{}")
    command = ("export", model_path, files / "new", "--score-file", files / name)
    assert_names(run_command(*command), name, reason)
    assert not (files / "new").exists()


@pytest.mark.parametrize(
    ("command", "inputs"),
    [
        ("translate", ["--input"]),
        ("translate", ["--forbid-file"]),
        ("parse", ["--input"]),
        ("score", ["--source", "--target"]),
        ("evaluate", ["--source", "--reference"]),
    ],
)
def test_an_output_must_not_be_an_input(model_path, tmp_path, command, inputs):
    """The output is named by another path, and the last input would be replaced."""
    paths = [tmp_path / f"{number}.txt" for number in range(len(inputs))]
    for path in paths:
        path.write_text("abc\n")
    files = [part for pair in zip(inputs, paths, strict=True) for part in pair]
    output = tmp_path / "link.txt"
    output.symlink_to(paths[-1])
    result = run_command(command, model_path, *files, "--output", output, code=2)
    assert "link.txt: must not be an input file" in result.stderr.splitlines()[-1]
    assert paths[-1].read_text() == "abc\n"
