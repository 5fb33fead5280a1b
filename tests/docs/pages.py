"""Runs the Python blocks and commands of a Markdown page in the current folder.

    python pages.py PAGE.md

Python blocks and this package's commands run in one process, so that TensorFlow is
loaded once. All other commands run in bash. A server keeps running until the end.
Training is shortened to a few steps of a small model. Comments on the lines above a
block, which the rendered page does not show, change this:

    <!-- test: replace OLD with NEW -->     run it with OLD replaced
    <!-- test: skip, REASON -->             do not run it
    <!-- test: instead, COMMAND -->         run COMMAND in its place
    <!-- test: file NAME -->                write it to a file, do not run it
    <!-- test: as written -->               do not shorten its training
    <!-- test: output -->                   text that the block above prints
    <!-- test: not compared, REASON -->     text after a block, not compared

In expected output, `...` matches any text.
"""

import atexit
import contextlib
import doctest
import gzip
import io
import itertools
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?P<hints>(?:^ *<!-- test: .* -->\n(?: *\n)*)*)"
    r"(?P<fence>^(?P<indent> *)```(?P<language>\w*)[^\n`]*\n"
    r"(?P<code>(?:.*\n)*?)^(?P=indent)``` *$)",
    re.MULTILINE,
)
# Settings that shorten a training.
STEPS = {
    "training.steps": 4,
    "training.warmup_steps": 2,
    "training.cooldown_steps": 0,
    "training.checkpoint_minutes": "null",
    "training.checkpoint_steps": 2,
    "training.validation_steps": 4,
    "training.batch_tokens": 400,
}
VOCABULARY = {"tokenizer.vocabulary_size": 400}
SIZES = {
    "model.size": "tiny",
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.key_dim": 16,
    "model.value_dim": 16,
}
SERVERS = []


class Block(NamedTuple):
    """A fenced block, the number of its first line, and the hints above it."""

    language: str
    code: str
    line: int
    hints: list

    def find(self, name):
        """Yields the rest of each hint that begins with `name`."""
        for hint in self.hints:
            if hint.startswith(name):
                yield hint.removeprefix(name)

    def to_run(self):
        """Returns the code after replacements, or an empty string if it is skipped."""
        if self.language not in ("python", "bash") or any(self.find("skip, ")):
            return ""
        for command in self.find("instead, "):
            return f"{command}\n"
        code = self.code
        for replacement in self.find("replace "):
            old, _, new = replacement.partition(" with ")
            assert old in code, f"line {self.line}: no {old!r} to replace"
            code = code.replace(old, new)
        return code


def blocks(text):
    """Returns the fenced blocks of a page."""
    return [
        Block(
            match["language"],
            re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
            text.count("\n", 0, match.start("code")) + 1,
            re.findall(r"<!-- test: (.*) -->", match["hints"]),
        )
        for match in FENCE.finditer(text)
    ]


def matches_output(expected, printed):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, options)


def command_lines(code):
    """Returns the lines of a bash block, joined at backslashes, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and line.lstrip()[0] != "#"]


def shorten_training(words):
    """Returns the words of a command, with settings that shorten its training."""
    # `train` without arguments lists the recipes.
    if words[0] not in ("train", "ablate", "demo") or words == ["train"]:
        return words
    settings = dict(STEPS)
    # Table 3 determines the sizes of rows, and the initial model the rest as well.
    if "--from" not in words:
        settings |= VOCABULARY | ({} if words[0] == "ablate" else SIZES)
    if words[0] == "demo" or "phrases" in words:
        settings |= {"data.size": 700, "data.held_out": 20}
    return [*words, *(f"--set={key}={value}" for key, value in settings.items())]


def start_server(words):
    """Starts the page's server, unless one is running, and waits for its response."""
    if SERVERS:
        return
    SERVERS.append(subprocess.Popen(["keras-transformer", *words]))
    atexit.register(SERVERS[0].kill)
    for _ in range(240):
        try:
            urllib.request.urlopen("http://127.0.0.1:8501/health").close()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"{shlex.join(words)}: no response")


def run_line(line, as_written):
    """Runs a command line, possibly a pipe into a command of this package."""
    *before, last = line.split(" | ")
    program, *words = shlex.split(last)
    if program != "keras-transformer" or {"&&", ">"} & {*words}:
        print(run_in_bash(line), end="")
    elif words[0] == "serve":
        start_server(words)
    else:
        # Imported here, so that Python blocks have to import what they use.
        from typer.testing import CliRunner

        from keras_transformer.cli.app import app

        stdin = run_in_bash(" | ".join(before)) if before else None
        words = words if as_written else shorten_training(words)
        result = CliRunner().invoke(app, words, input=stdin)
        print(result.stdout, end="")
        print(result.stderr, file=sys.stderr)
        if result.exit_code:
            raise SystemExit(f"{shlex.join(words)}: exit code {result.exit_code}")


def run_in_bash(line):
    """Runs a command line in bash and returns its standard output."""
    # If the output were a pipe, `run` would also wait for background processes.
    with tempfile.TemporaryFile() as output:
        command = ["bash", "-euo", "pipefail", "-c", line]
        subprocess.run(command, check=True, stdout=output)
        output.seek(0)
        return output.read().decode()


def run_page(path, languages=("python", "bash")):
    """Runs a page's blocks in these languages, and compares their output."""
    path, names, printed = pathlib.Path(path), {"__name__": "__main__"}, io.StringIO()
    for block in blocks(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{block.line}"
        for name in block.find("file "):
            pathlib.Path(name).write_text(block.code)
        code = block.to_run() if block.language in languages else ""
        if code:
            print(f"== {where}", file=sys.stderr)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                if block.language == "python":
                    exec(compile("\n" * (block.line - 1) + code, where, "exec"), names)
                else:
                    for line in command_lines(code):
                        run_line(line, "as written" in block.hints)
        elif "output" in block.hints and not matches_output(
            block.code, printed.getvalue()
        ):
            raise SystemExit(
                f"{where}: the page shows\n\n{block.code}\n"
                f"but the block printed\n\n{printed.getvalue()}"
            )


def package_commands(code):
    """Yields the arguments of each command of this package in a bash block."""
    for line in command_lines(code):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        for _, group in itertools.groupby(lexer, lambda word: set(word) <= {*"|&;<>"}):
            program, *words = group
            if program == "keras-transformer":
                yield words


def write_corpus(folder):
    """Writes small corpora, plain and as `.gz`: `{train,val,test}.{en,de}`."""
    from keras_transformer.pipelines.sources.phrases import phrases

    splits = phrases(size=700, held_out=53)
    for name, pairs in zip(("train", "val", "test"), splits, strict=True):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines).encode()
            (folder / f"{name}.{language}").write_bytes(text)
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text))


if __name__ == "__main__":
    # An empty standard input, so that no command waits for the terminal.
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    run_page(sys.argv[1])
