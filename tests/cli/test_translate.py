"""The command `translate` with `ReversingTranslator` in place of a model."""

import gzip
import json
import os
import signal
import sys
from concurrent import futures
from types import SimpleNamespace

import pytest

from keras_transformer.cli.lines import chunk_size, input_lines
from keras_transformer.cli.output import open_output
from keras_transformer.errors import UserError


def test_translate_prints_one_line_per_input_line(run_command, model_path):
    result = run_command("translate", model_path, stdin="abc\n\nde f\n\n")
    assert result.exit_code == 0
    assert result.stdout == "cba\n\nf ed\n\n"
    assert result.stderr == ""


def test_translate_splits_lines_at_newlines_only(run_command, model_path):
    result = run_command("translate", model_path, stdin="a\u2028b\x0cc\r\nxy")
    assert result.stdout == "c\x0cb\u2028a\nyx\n"


def test_translate_of_no_input_prints_nothing(run_command, model_path):
    result = run_command("translate", model_path, stdin="")
    assert (result.exit_code, result.stdout) == (0, "")


def test_translate_handles_several_chunks(run_command, model_path):
    """The command translates chunks of 500 lines."""
    lines = [f"line {number}" for number in range(1_003)]
    result = run_command("translate", model_path, stdin="\n".join(lines))
    assert result.stdout.split("\n")[:-1] == [line[::-1] for line in lines]


def test_translate_reads_and_writes_files(run_command, model_path, tmp_path):
    with gzip.open(tmp_path / "in.gz", "wt", encoding="utf-8") as file:
        file.write("größer\n\n")
    output = tmp_path / "out"
    result = run_command(
        "translate", model_path, "--input", tmp_path / "in.gz", "--output", output
    )
    assert result.exit_code == 0
    assert result.stdout == ""
    assert output.read_text(encoding="utf-8") == "reßörg\n\n"
    assert not list(tmp_path.glob(".out*"))


def test_translate_prints_n_best_lists_with_scores(run_command, model_path):
    result = run_command(
        "translate", model_path, "--n-best", "2", "--scores", stdin="ab\n\ncd\n"
    )
    assert result.stdout.split("\n") == [
        "1\t-0.2500\tba",
        "1\t-1.2500\tba'",
        "2\t-0.2500\t",
        "3\t-0.2500\tdc",
        "3\t-1.2500\tdc'",
        "",
    ]


@pytest.mark.parametrize("scores", [(), ("--scores",)])
def test_translate_prints_a_line_of_json_per_line(run_command, model_path, scores):
    options = ("--json", "--n-best", "2", "--alignments", *scores)
    result = run_command("translate", model_path, *options, stdin="a\tb é\n\n")
    first, second = map(json.loads, result.stdout.splitlines())
    alignment = [[2, 0], [1, 1], [0, 2]]
    assert first == {
        "line": 1,
        "source": "a\tb é",
        "translations": [
            {"text": "é b\ta", "score": -0.25, "alignment": alignment},
            {"text": "é b\ta'", "score": -1.25, "alignment": alignment},
        ],
    }
    assert second["line"] == 2 and second["translations"][0]["text"] == ""


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("translate", ["five.en"], "five.en: give a file as --input five.en"),
        (
            "translate",
            ["Where is it?"],
            "'Where is it?': give text on standard input, as in `echo 'Where is it?' | "
            "{program} translate run`, or a file with --input",
        ),
        ("parse", ["A", "dog"], "'A dog': give text on standard input, as in `echo"),
    ],
)
def test_text_as_an_argument_gets_a_hint(
    run_command, tmp_path, monkeypatch, command, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.en").write_text("a\n")
    result = run_command(command, "run", *words)
    assert result.exit_code == 2
    program = result.stderr.split()[1]
    assert f"Error: {message.format(program=program)}" in result.stderr


def test_translate_prints_alignments_after_a_tab(run_command, model_path):
    result = run_command("translate", model_path, "--alignments", stdin="ab c\n\nd\n")
    assert result.stdout == "c ba\t1-0 0-1\n\t\nd\t0-0\n"


def test_translate_aligns_every_candidate(run_command, model_path):
    result = run_command(
        *["translate", model_path, "--alignments", "--scores", "--n-best", "2"],
        stdin="\nab c\n",
    )
    assert result.stdout.split("\n") == [
        "1\t-0.2500\t\t",
        "2\t-0.2500\tc ba\t1-0 0-1",
        "2\t-1.2500\tc ba'\t1-0 0-1",
        "",
    ]


def test_translate_replaces_line_ends_in_translations(
    run_command, model_path, translator, monkeypatch
):
    monkeypatch.setattr(
        translator,
        "n_best",
        lambda lines, n: [[SimpleNamespace(text="a\nb\rc", score=0.0)]] * len(lines),
    )
    assert run_command("translate", model_path, stdin="x\ny").stdout == "a b c\n" * 2


@pytest.mark.parametrize("resume", [[], ["--resume"]])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_translate_keeps_the_line_ends_of_a_file(
    run_command, model_path, translator, tmp_path, resume, end
):
    translator.fingerprint = lambda: "reversing"
    (tmp_path / "in").write_text(f"ab{end}{end}cd", newline="")
    arguments = ["-i", tmp_path / "in", "-o", tmp_path / "out", *resume]
    assert run_command("translate", model_path, *arguments).exit_code == 0
    assert (tmp_path / "out").read_bytes() == f"ba{end}{end}dc{end}".encode()


def test_translate_warnings_name_the_line(run_command, model_path):
    result = run_command(
        "translate", model_path, stdin=b"ok\n\xffz\n\xef\xbf\xbd\n" + b"w" * 33 + b"\n"
    )
    assert result.exit_code == 0
    assert result.stdout == f"ko\nz\ufffd\n\ufffd\n{'w' * 20}\n"
    warnings = result.stderr.splitlines()
    assert len(warnings) == 2
    assert "standard input: 1 line(s) not UTF-8, the first is line 2" in warnings[0]
    assert "line 4: too long" in warnings[1]


def test_alignment_warnings_name_the_line(run_command, model_path):
    # The third candidate of the second line has 19 letters and two apostrophes, more
    # than the 20 characters that the stand-in aligns.
    lines = ["ab", "x" * 19, "cd"]
    result = run_command(
        *["translate", model_path, "--alignments", "--n-best", "3"],
        stdin="\n".join(lines),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "warning: line 2: too long to align\n"


def test_translate_passes_its_search_options(run_command, model_path, translator):
    options = ["--beam-size", "7", "--patience", "0.5"]
    run_command("translate", model_path, *options, stdin="x")
    run_command("translate", model_path, stdin="x")
    assert translator.searches == [{"beam_size": 7, "patience": 0.5}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input", "missing.en"], "error: missing.en: no such file"),
        (["--beam-size", "2", "--n-best", "3"], "--n-best 3: must not exceed"),
        (["--output", "nowhere/out"], "nowhere/out: the folder nowhere does not exist"),
        (["--output", "out.gz"], "out.gz: output is not compressed"),
        (["--forbid-file", "-"], "standard input can be read only once"),
        (
            ["--input", "/dev/null", "--prefix-file", "-", "--forbid-file", "-"],
            "standard input can be read only once",
        ),
    ],
)
def test_translate_errors_are_one_line(run_command, model_path, arguments, expected):
    result = run_command("translate", model_path, *arguments, stdin="x\n")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_output_keeps_pipes_and_links(run_command, model_path, tmp_path):
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    with futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        for output in (pipe, link):
            result = run_command(
                "translate", model_path, "--output", output, stdin="ab\n\ncd\n"
            )
            assert result.exit_code == 0, result.stderr
        assert read.result(60) == file.read_text() == "ba\n\ndc\n"
    assert pipe.is_fifo() and link.is_symlink()


def test_tab_in_a_text_begins_no_column(run_command, model_path):
    plain = run_command("translate", model_path, stdin="a\tb\n")
    assert plain.stdout == "b\ta\n"
    scored = run_command("translate", model_path, "--scores", stdin="a\tb\n")
    assert scored.stdout == "-0.2500\tb a\n"


@pytest.mark.parametrize(
    ("path", "is_terminal", "expected"),
    [
        (None, True, 1),
        ("-", True, 1),
        (None, False, 99),
        ("text", True, 99),
    ],
)
def test_typed_lines_are_answered_one_by_one(monkeypatch, path, is_terminal, expected):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: is_terminal))
    assert chunk_size(path, 99) == expected


def test_closed_standard_streams_are_errors(monkeypatch):
    # Python sets streams that are closed at startup to `None`.
    monkeypatch.setattr(sys, "stdin", None)
    assert chunk_size(None, 99) == 99
    with pytest.raises(UserError, match=r"^standard input is closed$"):
        next(input_lines(None))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        with pytest.raises(UserError, match=r"^standard output is closed"):
            open_output(None).__enter__()


def test_translate_names_a_missing_model(run_command, tmp_path):
    result = run_command("translate", tmp_path / "none", stdin="x\n")
    assert result.exit_code == 2
    message = f"error: {tmp_path / 'none'}: no such file or folder, and no packaged"
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1


def interrupt(lines, n):
    raise KeyboardInterrupt


def terminate(lines, n):
    os.kill(os.getpid(), signal.SIGTERM)


def hang_up(lines, n):
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
    ("stop", "exit_code"), [(interrupt, 130), (terminate, 143), (hang_up, 129)]
)
def test_stopped_translate_keeps_the_old_output(
    run_command, model_path, translator, monkeypatch, tmp_path, stop, exit_code
):
    output = tmp_path / "out"
    output.write_text("old")
    monkeypatch.setattr(translator, "n_best", stop)
    result = run_command("translate", model_path, "--output", output, stdin="x\n")
    assert result.exit_code == exit_code
    assert output.read_text() == "old"
    assert not list(tmp_path.glob(".out*"))
