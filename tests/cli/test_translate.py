"""The command `translate` with `ReversingTranslator` in place of a model."""

import gzip
import importlib
import json
import os
import pathlib
import signal
import sys
from concurrent import futures
from types import SimpleNamespace

import pytest
from commands import error_of, run_command

from keras_transformer import opening as models
from keras_transformer.cli.lines import chunk_size, input_lines, open_output
from keras_transformer.errors import UserError

# Options, standard input and output.
WORDS = ["".join(chr(ord("a") + int(c)) for c in str(n)) for n in range(1003)]
OUTPUTS = {
    "a line per line": ([], "abc\n\nde f\n\n", "cba\n\nf ed\n\n"),
    "lines end at newlines": ([], "a\u2028b\x0cc\r\nxy", "c\x0cb\u2028a\nyx\n"),
    "no input": ([], "", ""),
    "n-best lists": (
        ["--n-best", "2", "--scores"],
        "ab\n\ncd\n",
        "1\t-0.2500\tba\n1\t-1.2500\tba'\n2\t-0.2500\t\n"
        "3\t-0.2500\tdc\n3\t-1.2500\tdc'\n",
    ),
    "alignments": (["--alignments"], "ab c\n\nd\n", "c ba\t1-0 0-1\n\t\nd\t0-0\n"),
    "alignments of candidates": (
        ["--alignments", "--scores", "--n-best", "2"],
        "\nab c\n",
        "1\t-0.2500\t\t\n2\t-0.2500\tc ba\t1-0 0-1\n2\t-1.2500\tc ba'\t1-0 0-1\n",
    ),
    "a tab": ([], "a\tb\n", "b\ta\n"),
    "a tab is no column": (["--scores"], "a\tb\n", "-0.2500\tb a\n"),
    # The command translates chunks of 500 lines.
    "several chunks": (
        [],
        "".join(f"{word}\n" for word in WORDS),
        "".join(f"{word[::-1]}\n" for word in WORDS),
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_translate_prints(model_path, name):
    options, stdin, stdout = OUTPUTS[name]
    result = run_command("translate", model_path, *options, stdin=stdin)
    assert (result.exit_code, result.stderr, result.stdout) == (0, "", stdout)


def test_translate_prints_a_line_of_json_per_line(model_path):
    options = ("--json", "--n-best", "2", "--alignments")
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
    ("arguments", "message"),
    [
        (["--input", "missing.en"], "missing.en: no such file"),
        (["--input", "."], ".: must be a file, not a folder"),
        (["--beam-size", "2", "--n-best", "3"], "--n-best 3: must not exceed"),
        (["--output", "nowhere/out"], "nowhere/out: the folder nowhere does not exist"),
        (["--output", "out.gz"], "out.gz: output is not compressed"),
        (["--forbid-file", "-"], "standard input can be read only once"),
        (["--patience", "inf"], "--patience inf: must be a finite number"),
        (["--prefix", "caf\udce9"], r"caf\udce9: must be UTF-8"),
        (["--forbid", "a", "--forbid", "\udcff"], r"\udcff: must be UTF-8"),
        (["--seed", "9" * 20], "--seed 99999999999999999999: must be below 9223372"),
        (["--top-k", "3"], "--top-k: needs --sampling"),
        (["--sampling", "--beam-size", "3"], "--beam-size: cannot be used with --samp"),
        (["--sampling", "--parallel-parts", "2"], "--parallel-parts: cannot be used "),
        (["--prefix-file", "nine"], "nine: must have one prefix per line of five. Rec"),
        (["--ensemble", "run", "--alignments"], "run: an ensemble cannot align words"),
        (["--prefix", "a", "--prefix-file", "."], "--prefix and --prefix-file: pass"),
        (["--ensemble", "nowhere"], "nowhere: no such file"),
        (["--resume"], "--resume: needs --output, and regular files as inputs"),
    ],
)
def test_translate_refuses_before_it_opens_the_model(
    model_path, monkeypatch, arguments, message
):
    def never(*_, **__):
        raise AssertionError("the model is opened before the value is checked")

    monkeypatch.setattr(models, "open_model", never)
    monkeypatch.chdir(pathlib.Path(model_path).parent)
    for name, count in (("five", 5), ("nine", 9)):
        pathlib.Path(name).write_text("x\n" * count)
    if "nine" in arguments:
        arguments = [*arguments, "--input", "five"]
    error = error_of(run_command("translate", "run", *arguments, stdin="x\n"))
    assert error.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        *(("--patience", value, "above 0") for value in ("0", "-1", "nan")),
        *(("--top-p", value, "above 0 and at most 1") for value in ("0", "1.5")),
        *(("--temperature", value, "above 0, from 1e-30 ") for value in ("0", "1e-40")),
    ],
)
def test_translate_names_an_option_out_of_range(model_path, option, value, rule):
    result = run_command("translate", model_path, option, value, stdin="x\n", code=2)
    assert result.stdout == ""
    assert f"'{option}': {float(value)}: must be {rule}" in result.stderr


def test_tables_are_plain_text_with_a_warning(model_path, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n")
    result = run_command("translate", model_path, "--input", path, code=0)
    assert result.stderr == f"warning: {path}: plain text, so cells are not separated\n"


def test_prefixes_and_forbidden_words_reach_the_model(model_path, translator, tmp_path):
    def calls(*options):
        translator.searches.clear()
        translator.calls.clear()
        command = ("translate", model_path, *options)
        result = run_command(*command, stdin="a\n\nb\n")
        return result, translator.searches, translator.calls

    (tmp_path / "words").write_text("x*\n\ny z\n")
    (tmp_path / "prefixes").write_text("c\n\nd\n")
    options = ("--forbid", "w", "--forbid-file", tmp_path / "words", "--prefix", "ein")
    _, *found = calls(*options)
    assert found == [[{"forbidden": ["w", "x*", "y z"]}], [{"prefixes": ["ein"] * 3}]]
    _, *found = calls("--prefix-file", tmp_path / "prefixes")
    assert found == [[], [{"prefixes": ["c", "", "d"]}]]
    for text, message in (
        ("a\n", "fewer lines than the input (line 2)"),
        ("a\n" * 9, "more lines than the input (line 4)"),
    ):
        (tmp_path / "prefixes").write_text(text)
        result, *_ = calls("--prefix-file", tmp_path / "prefixes")
        assert message in error_of(result)


def test_sampling_uses_a_seed_per_chunk(model_path, translator, monkeypatch, tmp_path):
    """Chunks of equal lines have different samples, also if the output is resumable."""
    module = importlib.import_module("keras_transformer.cli.translate")
    monkeypatch.setattr(module, "CHUNK_SIZE", 2)
    (tmp_path / "in").write_text("a\n" * 6)
    files = ("-i", tmp_path / "in", "-o", tmp_path / "out")

    def samplings(*options):
        translator.calls.clear()
        (tmp_path / "out").unlink(missing_ok=True)
        command = ("translate", model_path, *files, "--sampling", *options)
        assert run_command(*command).exit_code == 0
        return [call[0] for call in translator.calls if isinstance(call, tuple)]

    found = samplings("--n-best", "3", "--top-k", "9", "--top-p", "0.5")
    values = [(each.num_samples, each.top_k, each.top_p) for each in found]
    assert values == [(3, 9, 0.5)] * 3
    assert all(each.temperature == 1 for each in found)
    default = samplings("--temperature", "0.5")
    assert default == samplings("--temperature", "0.5", "--seed", "1", "--resume")
    assert all(each.temperature == 0.5 for each in default)
    seeds = [each.seed for each in [*default, *samplings("--seed", "2")]]
    assert len({*seeds}) == len(seeds) == 6


def test_translate_reads_and_writes_files(model_path, tmp_path):
    with gzip.open(tmp_path / "in.gz", "wt", encoding="utf-8") as file:
        file.write("größer\n\n")
    files = ["--input", tmp_path / "in.gz", "--output", tmp_path / "out"]
    result = run_command("translate", model_path, *files)
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "reßörg\n\n"
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("translate", ["five.en"], "five.en: pass a file as --input five.en"),
        (
            "translate",
            ["Where is it?"],
            "'Where is it?': pass text on standard input, as in `echo 'Where is it?' | "
            "{program} translate run`, or a file as --input",
        ),
        ("parse", ["A", "dog"], "'A dog': pass text on standard input, as in `echo"),
    ],
)
def test_text_as_an_argument_gets_a_hint(
    tmp_path, monkeypatch, command, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.en").write_text("a\n")
    result = run_command(command, "run", *words, code=2)
    program = result.stderr.split()[1]
    assert f"Error: {message.format(program=program)}" in result.stderr


def test_translate_replaces_line_ends_in_translations(
    model_path, translator, monkeypatch
):
    found = SimpleNamespace(text="a\nb\rc", score=0.0, warnings=())
    monkeypatch.setattr(translator, "n_best", lambda lines, n: [[found]] * len(lines))
    assert run_command("translate", model_path, stdin="x\ny").stdout == "a b c\n" * 2


@pytest.mark.parametrize("resume", [[], ["--resume"]])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_translate_keeps_the_line_ends_of_a_file(
    model_path, translator, tmp_path, resume, end
):
    translator.fingerprint = lambda: "reversing"
    (tmp_path / "in").write_text(f"ab{end}{end}cd", newline="")
    arguments = ["-i", tmp_path / "in", "-o", tmp_path / "out", *resume]
    assert run_command("translate", model_path, *arguments).exit_code == 0
    assert (tmp_path / "out").read_bytes() == f"ba{end}{end}dc{end}".encode()


def test_warnings_name_the_line(model_path):
    stdin = b"ok\n\xffz\n\xef\xbf\xbd\n" + b"w" * 33 + b"\n"
    result = run_command("translate", model_path, stdin=stdin, code=0)
    assert result.stdout == f"ko\nz\ufffd\n\ufffd\n{'w' * 20}\n"
    unreadable, long = result.stderr.splitlines()
    assert "standard input: 1 line(s) not UTF-8, the first is line 2" in unreadable
    assert "line 4: too long" in long
    # The third candidate of the second line has 19 letters and two apostrophes, more
    # than the 20 characters that the stand-in aligns.
    lines = "\n".join(["ab", "x" * 19, "cd"])
    options = ["--alignments", "--n-best", "3"]
    result = run_command("translate", model_path, *options, stdin=lines)
    assert result.stderr == "warning: line 2: too long to align\n"


def test_output_keeps_pipes_and_links(model_path, tmp_path):
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    with futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        for output in (pipe, link):
            run_command(
                "translate", model_path, "--output", output, stdin="ab\n\ncd\n", code=0
            )
        assert read.result(60) == file.read_text() == "ba\n\ndc\n"
    assert pipe.is_fifo() and link.is_symlink()


@pytest.mark.parametrize(
    ("path", "is_terminal", "expected"),
    [(None, True, 1), ("-", True, 1), (None, False, 99), ("text", True, 99)],
)
def test_typed_lines_are_answered_one_by_one(monkeypatch, path, is_terminal, expected):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: is_terminal))
    assert chunk_size(path, 99) == expected


def test_closed_standard_streams_are_errors(monkeypatch):
    # Python sets streams that are closed at startup to `None`.
    monkeypatch.setattr(sys, "stdin", None)
    assert chunk_size(None, 99) == 99
    with pytest.raises(UserError, match=r"^standard input is closed\. Pass a file"):
        next(input_lines(None))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        with pytest.raises(UserError, match=r"^standard output is closed"):
            open_output(None).__enter__()


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
    model_path, translator, monkeypatch, tmp_path, stop, exit_code
):
    output = tmp_path / "out"
    output.write_text("old")
    monkeypatch.setattr(translator, "n_best", stop)
    result = run_command("translate", model_path, "--output", output, stdin="x\n")
    assert result.exit_code == exit_code
    assert output.read_text() == "old"
    assert not list(tmp_path.glob(".out*"))
