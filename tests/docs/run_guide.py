"""Runs the commands and Python blocks of a page, in order, in the current folder.

    python run_guide.py PAGE.md

The script prints the number of commands and Python blocks that it ran. Python blocks
and this package's commands run in one process, so that TensorFlow is loaded once. All
other commands run in bash. A server keeps running until the end.

A hint is a comment above a block, such as `<!-- test: as written -->`; guides.py lists
all hints. Training is shortened to a few steps of a small model unless a block has the
hint `as written`. A `text` block with the hint `output` must match the standard output
of the block before it.
"""

import atexit
import contextlib
import io
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request

from guides import SHELLS, blocks, is_code, matches_output

# Settings that shorten a training.
SMALL = {
    "training.steps": 4,
    "training.warmup_steps": 2,
    "training.cooldown_steps": 0,
    "training.checkpoint_minutes": "null",
    "training.checkpoint_steps": 2,
    "training.validation_steps": 4,
    "training.batch_tokens": 400,
    "model.preset": "tiny",
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.key_dim": 16,
    "model.value_dim": 16,
    "tokenizer.vocabulary_size": 400,
}
# Commands that train. `train` without arguments only lists recipes.
TRAINING = {"train", "ablate", "demo"}
SERVERS = []


def shorten_training(words):
    """Returns the words of a command, with settings that shorten its training."""
    if words[0] not in TRAINING or words == ["train"]:
        return words
    settings = dict(SMALL)
    if "--from" in words:
        # The initial model determines sizes and vocabulary.
        settings = {k: v for k, v in settings.items() if k.startswith("training.")}
    if words[0] == "demo" or "phrases" in words:
        settings |= {"data.size": 700, "data.held_out": 20}
    if words[0] == "ablate":
        # The rows of Table 3 determine the sizes.
        settings = {k: v for k, v in settings.items() if not k.startswith("model.")}
    return [
        *words,
        *(
            part
            for key, value in settings.items()
            for part in ("--set", f"{key}={value}")
        ),
    ]


def start_server(words):
    """Starts the page's server, unless one is running, and waits for its response."""
    if SERVERS:
        return
    server = subprocess.Popen(["keras-transformer", *words])
    SERVERS.append(server)
    atexit.register(server.kill)
    for _ in range(240):
        try:
            with urllib.request.urlopen("http://127.0.0.1:8501/health"):
                return
        except OSError:
            time.sleep(0.5)
            if server.poll() is not None:
                break
    raise SystemExit(f"{shlex.join(words)}: no response")


def run_command(words, stdin, as_written):
    """Runs a command of this package and prints its standard output."""
    if words[0] == "serve":
        start_server(words)
        return
    # Imported here, so that Python blocks cannot use modules that they did not import.
    from typer.testing import CliRunner

    from keras_transformer.cli.app import app

    words = words if as_written else shorten_training(words)
    result = CliRunner().invoke(app, words, input=stdin)
    print(result.stdout, end="")
    print(result.stderr, file=sys.stderr)
    if result.exit_code:
        raise SystemExit(f"{shlex.join(words)}: exit code {result.exit_code}")


def run_line(line, as_written):
    """Runs one command line, possibly a pipe into a command of this package."""
    *before, last = line.split(" | ")
    words = shlex.split(last)
    if words[0] != "keras-transformer" or any(word in words for word in ("&&", ">")):
        print(run_in_bash(line), end="")
        return
    stdin = run_in_bash(" | ".join(before)).encode() if before else None
    run_command([expand_variables(word) for word in words[1:]], stdin, as_written)


def run_in_bash(line):
    """Runs a command line in bash and returns its standard output."""
    # If the output were a pipe, `run` would also wait for background processes.
    with tempfile.TemporaryFile() as output:
        command = ["bash", "-euo", "pipefail", "-c", line]
        subprocess.run(command, check=True, stdout=output)
        output.seek(0)
        return output.read().decode()


def expand_variables(word):
    """Returns a word with its shell variables expanded."""
    quoted = subprocess.run(
        ["bash", "-c", f'printf %s "{word}"'], check=True, stdout=subprocess.PIPE
    )
    return quoted.stdout.decode()


def run_block(block, where, names):
    """Runs a block and returns the number of its commands, or 1 for Python.

    Args:
        block: A `guides.Block`.
        where: File and line of the block, for errors.
        names: Dict of the Python names that the page's blocks share.
    """
    code = block.to_run()
    if block.language == "python":
        exec(compile("\n" * (block.line - 1) + code, where, "exec"), names)
        return 1
    lines = [
        line
        for line in code.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    for line in lines:
        print(f"$ {line}", file=sys.stderr)
        run_line(line, "as written" in block.hints)
    return len(lines)


def check_output(block, printed, where):
    if not matches_output(block.code, printed):
        raise SystemExit(
            f"{where}: the page shows\n\n{block.code}\n"
            f"but the block printed\n\n{printed}"
        )


def main(path, languages=("python", *SHELLS)):
    """Runs a page's blocks in these languages, and prints how many it ran.

    A Python block counts as one, and a shell block as the number of its commands.
    """
    path = pathlib.Path(path)
    names = {"__name__": "__main__"}
    ran, printed = 0, None
    for block in blocks(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{block.line}"
        for hint in block.hints:
            if hint.startswith("file "):
                pathlib.Path(hint.removeprefix("file ")).write_text(block.code)
        print(f"== {where}", file=sys.stderr)
        if block.language in languages:
            output = io.StringIO()
            try:
                with contextlib.redirect_stdout(output):
                    ran += run_block(block, where, names)
            finally:
                printed = output.getvalue()
                print(printed, file=sys.stderr)
        elif "output" in block.hints:
            assert printed is not None, f"{where}: no block ran before this output"
            check_output(block, printed, where)
        elif is_code(block):
            printed = None
    print(ran)


if __name__ == "__main__":
    # An empty standard input, so that no command waits for the terminal.
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    main(sys.argv[1])
