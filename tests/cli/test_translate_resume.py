"""Translation of large files: `--resume` after kills, pipes, and bounded memory."""

import fcntl
import importlib
import os
import re
import signal
import subprocess
import textwrap
import time
from types import SimpleNamespace

import prepared
import pytest
from commands import error_of, run_command
from waiting import wait_until

from keras_transformer import opening as models
from keras_transformer import progress as progress_bar
from keras_transformer.decoding import BeamSearch

LINES = [f"line {number}" for number in range(57)]
BLOCK = 10


class BlockModel:
    """Stand-in for a `Translator`. Each translation contains its chunk's first line.

    So the output differs if a resumed command divides the input into other chunks.
    `calls` receives the first line and the size of each chunk.
    """

    def __init__(self):
        self.calls = []
        self.weights = "weights"

    def with_search(self, **changes):
        return self

    def n_best(self, lines, n=1):
        self.calls.append((lines[0], len(lines)))
        return [
            [
                SimpleNamespace(
                    text=f"{line} of {lines[0]} {rank}", score=-rank, warnings=()
                )
                for rank in range(1 + len(line) % n)
            ]
            for line in lines
        ]

    def fingerprint(self):
        return self.weights


@pytest.fixture
def model(monkeypatch, tmp_path):
    """The `BlockModel` that `open_model` returns; chunks have `BLOCK` lines."""
    model = BlockModel()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").touch()
    monkeypatch.setattr(models, "open_model", lambda path, warn, **_: model)
    module = importlib.import_module("keras_transformer.cli.translate")
    monkeypatch.setattr(module, "CHUNK_SIZE", BLOCK)
    return model


@pytest.fixture
def files(tmp_path):
    """Paths of the input, of the output, which does not exist yet, and of the model."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in", tmp_path / "out", tmp_path / "run"


@pytest.fixture
def translate(files, model):
    def run(*arguments, output=files[1]):
        return run_command(
            "translate", files[2], "-i", files[0], "-o", output, "--resume", *arguments
        )

    return run


@pytest.fixture
def part(files):
    """Path of the partial output."""
    return files[1].with_name("out.part")


@pytest.fixture
def uninterrupted(translate, files, model):
    """Function that returns the whole output, and removes it but not its record."""

    def run(*arguments):
        result = translate(*arguments)
        assert result.exit_code == 0, result.stderr
        text = files[1].read_bytes()
        files[1].unlink()
        model.calls.clear()
        return text

    return run


@pytest.mark.parametrize("num_bytes", [1, 200, 201, 1133])
def test_resume_continues_after_the_last_complete_line(
    uninterrupted, translate, files, part, model, num_bytes
):
    text = uninterrupted()
    part.write_bytes(text[:num_bytes])
    result = translate()
    assert result.exit_code == 0, result.stderr
    assert files[1].read_bytes() == text
    assert not part.exists()
    # Translation resumes with the first incomplete chunk.
    first = text[:num_bytes].count(b"\n") // BLOCK * BLOCK
    assert model.calls[0] == (LINES[first], min(BLOCK, len(LINES) - first))


def test_resume_keeps_an_output_that_is_a_link(translate, files, tmp_path):
    (tmp_path / "link").symlink_to(files[1])
    for _ in range(2):  # The second command finds the finished output.
        assert translate(output=tmp_path / "link").exit_code == 0
        assert (tmp_path / "link").is_symlink()
        assert files[1].read_text().count("\n") == len(LINES)


@pytest.mark.parametrize("form", ["--scores", "--json"])
@pytest.mark.parametrize("num_bytes", [30, 333, 1000])
def test_resume_continues_n_best_lists(
    uninterrupted, translate, files, part, form, num_bytes
):
    options = ("--n-best", "4", form)
    text = uninterrupted(*options)
    part.write_bytes(text[:num_bytes])
    assert translate(*options).exit_code == 0
    assert files[1].read_bytes() == text


OTHER = {
    "model": lambda model, _: setattr(model, "weights", "others"),
    "input": lambda _, path: path.write_text(path.read_text().replace("3", "4")),
    "record": lambda _, path: path.with_name(".out.made.json").write_text("{"),
    "--beam-size=3": None,
    "--forbid=x": None,
}


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("change", OTHER)
def test_resume_refuses_the_output_of_another_job(
    uninterrupted, translate, files, part, model, change, is_finished
):
    output = files[1] if is_finished else part
    text = uninterrupted() if is_finished else uninterrupted()[:300]
    output.write_bytes(text)
    # Only the content of the input counts, not its modification time.
    os.utime(files[0], (time.time() + 9, time.time() + 9))
    options = [change] if OTHER[change] is None else []
    if not options:
        OTHER[change](model, files[0])
    result = translate(*options)
    names = {"--beam-size=3": "value of beam_size", "--forbid=x": "value of forbidden"}
    name = names.get(change, change)
    message = f"{output}: was made with a different {name}. Remove it to start over"
    if change == "record":
        message = f"{output}: its record .out.made.json is missing or damaged. Delete "
    assert message in error_of(result)
    assert (output.read_bytes(), model.calls) == (text, [])
    assert files[1].exists() == is_finished


def test_resume_refuses_more_lines_than_the_input_has(uninterrupted, translate, part):
    part.write_bytes(uninterrupted() + b"one more\n")
    message = "output of 58 input lines, but the input has only 57"
    assert message in error_of(translate())


def test_resume_keeps_a_finished_output(translate, files, model):
    assert translate().exit_code == 0
    before = files[1].read_bytes()
    model.calls.clear()
    again = translate()
    assert (again.exit_code, model.calls) == (0, [])
    assert "out: all lines are already translated" in again.stderr
    assert files[1].read_bytes() == before


@pytest.mark.parametrize("sampling", [[], ["--sampling"]])
@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("length_penalty", {"search": BeamSearch(length_penalty=1.0)}),
        ("length_penalty_kind", {"search": BeamSearch(length_penalty_kind="power")}),
        ("patience", {"search": BeamSearch(patience=1.0)}),
        ("extra_length", {"search": BeamSearch(extra_length=6)}),
        ("max_source_length", {"max_source_length": 39}),
    ],
)
def test_resume_refuses_changed_settings_of_the_model(
    model_path, translator, tmp_path, sampling, setting, changes
):
    (tmp_path / "in").write_text("ab\ncd\nef\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    command = ["translate", model_path, *files, "--resume", *sampling]
    assert run_command(*command).exit_code == 0
    (tmp_path / "out").rename(tmp_path / "out.part")
    for name, value in changes.items():
        setattr(translator, name, value)
    error = error_of(run_command(*command))
    assert f"out.part: was made with a different value of {setting}. " in error
    assert (tmp_path / "out.part").exists() and not (tmp_path / "out").exists()


def test_translate_reads_a_pipe_once(model, tmp_path):
    """The text exceeds a pipe's buffer and has a line that is not UTF-8."""
    lines = [b"line %d" % number for number in range(20_000)]
    lines[7] = b"\xff"
    (tmp_path / "in").write_bytes(b"".join(line + b"\n" for line in lines))
    os.mkfifo(tmp_path / "pipe")
    arguments = ("--output", tmp_path / "from_file", "--input", tmp_path / "in")
    assert run_command("translate", tmp_path / "run", *arguments).exit_code == 0
    with subprocess.Popen(f"cat {tmp_path}/in > {tmp_path}/pipe", shell=True):
        arguments = ("--output", tmp_path / "out", "--input", tmp_path / "pipe")
        result = run_command("translate", tmp_path / "run", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "pipe: 1 line(s) not UTF-8, the first is line 8" in result.stderr
    text = (tmp_path / "out").read_bytes()
    assert text.count(b"\n") == 20_000
    assert text == (tmp_path / "from_file").read_bytes()


def test_resume_locks_the_output(translate, part):
    with open(part, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process is writing to it" in error_of(translate())


def test_interrupted_command_says_how_to_continue(translate, part, model):
    real = model.n_best

    def n_best(lines, n=1):
        if lines[0] == LINES[2 * BLOCK]:
            raise KeyboardInterrupt
        return real(lines, n)

    model.n_best = n_best
    result = translate()
    assert result.exit_code == 130
    first, command = result.stderr.splitlines()
    assert first == f"interrupted. To continue {part}, run:"
    assert re.fullmatch(r"  \S+ translate .* --resume\b.*", command)
    assert part.read_bytes().count(b"\n") == 2 * BLOCK
    model.n_best = real
    assert translate().exit_code == 0


def test_progress_is_printed_without_terminal(files, model, monkeypatch, tmp_path):
    """A line every 30 s, with an estimate from the chunks after the first."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress_bar, "time", clock)
    real = model.n_best

    def n_best(lines, n=1):
        clock.now += 61 if lines[0] == LINES[0] else 12
        return real(lines, n)

    model.n_best = n_best
    arguments = ("-i", files[0], "-o", tmp_path / "out")
    result = run_command("translate", tmp_path / "run", *arguments)
    # Each later chunk of 10 lines takes 12 s.
    assert result.stderr.splitlines() == [
        "translating: 10 of 57 lines",
        "translating: 40 of 57 lines, 0:20 left",
    ]
    assert (
        run_command("translate", tmp_path / "run", *arguments, "--quiet").stderr == ""
    )


SLOW = textwrap.dedent("""
    import importlib, sys, time
    from types import SimpleNamespace
    from keras_transformer import opening as models
    class Model:
        def n_best(self, lines, n):
            time.sleep({seconds})
            shared = dict(score=0, warnings=())
            return [[SimpleNamespace(text=f"{{line}} of {{lines[0]}}", **shared)]
                    for line in lines]
        def fingerprint(self):
            return "weights"
    models.open_model = lambda path, warn, **_: Model()
    importlib.import_module("keras_transformer.cli.translate").CHUNK_SIZE = 3
    sys.argv = ["keras-transformer", "translate", *{arguments!r}]
    from keras_transformer.cli import main
    main()
""")


def test_resume_after_kill_matches_an_uninterrupted_run(files, part, model, tmp_path):
    errors = tmp_path / "errors"

    def start(seconds, output):
        arguments = [str(files[2]), "--input", str(files[0]), "--output", str(output)]
        arguments.append("--resume")
        code = SLOW.format(seconds=seconds, arguments=arguments)
        return prepared.start(code, stdout=os.devnull, stderr=errors)

    process = start(0.3, files[1])
    try:
        wait_until(
            lambda: (
                process.exitcode is not None
                or (part.exists() and part.read_bytes().count(b"\n") >= 6)
            ),
            "six lines",
        )
        assert process.exitcode is None, errors.read_text()
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not files[1].exists()
    kept = part.read_bytes()
    assert 6 <= kept.count(b"\n") < 57
    for output in (files[1], tmp_path / "at_once"):
        process = start(0, output)
        process.join(120)
        assert process.exitcode == 0, errors.read_text()
    assert files[1].read_bytes() == (tmp_path / "at_once").read_bytes()
    assert files[1].read_bytes().startswith(kept)
    assert not part.exists()


MEMORY = textwrap.dedent("""
    import resource, sys
    from types import SimpleNamespace
    from keras_transformer import opening as models
    from keras_transformer.cli import main
    class Model:
        def n_best(self, lines, n):
            shared = dict(score=0.0, warnings=())
            return [[SimpleNamespace(text=line[::-1], **shared)] for line in lines]
    models.open_model = lambda path, warn, **_: Model()
    peaks = []
    model, *paths = sys.argv[1:]
    for path in paths:
        files = ["-i", path, "-o", path + ".o"]
        sys.argv = ["keras-transformer", "translate", model, *files]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(*peaks)
""")


def test_translate_memory_is_bounded(tmp_path):
    # The pattern of spans is fast on these characters, of four bytes each.
    line = "\U00020000" * 50 + "\n"
    (tmp_path / "small").write_text(line * 4_000)
    (tmp_path / "large").write_text(line * 120_000)  # 24 MB
    paths = tmp_path / "small", tmp_path / "large"
    (tmp_path / "model.keras").touch()
    done = prepared.run(MEMORY, tmp_path, *paths, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    print(f"{small} kB, then {large} kB")
    # Peak memory grows by less than 8 MB, a third of the large file.
    assert large - small < 8_000
    assert (tmp_path / "large.o").stat().st_size == (tmp_path / "large").stat().st_size


_IRREGULAR = "must be a regular file. Remove it"
_NO_RECORD = "its record .out.made.json is missing or damaged. Delete both"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda part, other: os.link(other, part), _NO_RECORD),
        (lambda part, other: os.symlink(other, part), _IRREGULAR),
        (lambda part, _: os.symlink("absent", part), _IRREGULAR),
        (lambda part, _: os.mkfifo(part), _IRREGULAR),
        (lambda part, _: os.mkdir(part), _IRREGULAR),
    ],
)
def test_resume_refuses_a_part_that_is_not_a_file(translate, files, part, make, reason):
    other = files[0].with_name("other")
    other.write_text("somebody's\n")
    make(part, other)
    message = f"error: {part}: {reason} to start over\n"
    assert error_of(translate()) == message
    assert other.read_text() == "somebody's\n"
