import gzip
import os
from concurrent import futures
from types import SimpleNamespace

import pytest


def test_one_line_for_each_in_order_and_empty_for_empty(run_command, model_path):
    result = run_command("translate", model_path, stdin="abc\n\nde f\n\n")
    assert result.exit_code == 0
    assert result.stdout == "cba\n\nf ed\n\n"
    assert result.stderr == ""


def test_no_final_newline_and_other_line_separators(run_command, model_path):
    result = run_command("translate", model_path, stdin="a\u2028b\x0cc\r\nxy")
    assert result.stdout == "c\x0cb\u2028a\nyx\n"


def test_no_input_gives_no_output(run_command, model_path):
    result = run_command("translate", model_path, stdin="")
    assert (result.exit_code, result.stdout) == (0, "")


def test_more_lines_than_a_block(run_command, model_path):
    lines = [f"line {number}" for number in range(4_003)]
    result = run_command("translate", model_path, stdin="\n".join(lines))
    assert result.stdout.split("\n")[:-1] == [line[::-1] for line in lines]


def test_files_in_and_out(run_command, model_path, tmp_path):
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


def test_n_best_with_scores(run_command, model_path):
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


def test_alignments_after_a_tab(run_command, model_path):
    result = run_command("translate", model_path, "--alignments", stdin="ab c\n\nd\n")
    assert result.stdout == "c ba\t1-0 0-1\n\t\nd\t0-0\n"


def test_alignments_of_every_candidate(run_command, model_path, reversing_model):
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
    assert reversing_model.aligned == [1, 2, 2]


def test_a_line_end_inside_a_translation_stays_inside(
    run_command, model_path, reversing_model, monkeypatch
):
    monkeypatch.setattr(
        reversing_model,
        "n_best",
        lambda lines, n: [[SimpleNamespace(text="a\nb\rc", score=0.0)]] * len(lines),
    )
    assert run_command("translate", model_path, stdin="x\ny").stdout == "a b c\n" * 2


def test_warnings_name_the_line_on_standard_error(run_command, model_path):
    result = run_command(
        "translate", model_path, stdin=b"ok\n\xffz\n\xef\xbf\xbd\n" + b"w" * 33 + b"\n"
    )
    assert result.exit_code == 0
    assert result.stdout == f"ko\nz\ufffd\n\ufffd\n{'w' * 20}\n"
    warnings = result.stderr.splitlines()
    assert len(warnings) == 2
    assert "standard input:2: not UTF-8" in warnings[0]
    assert "line 4: too long" in warnings[1]


def test_the_search_is_passed_on(run_command, model_path, reversing_model):
    options = ["--beam-size", "7", "--patience", "0.5"]
    run_command("translate", model_path, *options, stdin="x")
    run_command("translate", model_path, stdin="x")
    assert reversing_model.beam_sizes == [7, 4]
    assert reversing_model.patience == [0.5, None]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input", "missing.en"], "error: missing.en: no such file"),
        (["--beam-size", "2", "--n-best", "3"], "--n-best 3: must not exceed"),
        (["--output", "nowhere/out"], "nowhere/out: there is no folder nowhere"),
        (["--output", "out.gz"], "out.gz: what is written is not compressed"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    run_command, model_path, arguments, expected
):
    result = run_command("translate", model_path, *arguments, stdin="x\n")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_pipe_and_a_link_stay_what_they_are(run_command, model_path, tmp_path):
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


def test_missing_model(run_command, tmp_path):
    result = run_command("translate", tmp_path / "none", stdin="x\n")
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'none'}: no such file or folder\n"


def test_a_failed_run_leaves_the_old_output(
    run_command, model_path, reversing_model, monkeypatch, tmp_path
):
    output = tmp_path / "out"
    output.write_text("old")

    def fail(lines, n):
        raise KeyboardInterrupt

    monkeypatch.setattr(reversing_model, "n_best", fail)
    result = run_command("translate", model_path, "--output", output, stdin="x\n")
    assert result.exit_code == 130
    assert output.read_text() == "old"
    assert not list(tmp_path.glob(".out*"))
