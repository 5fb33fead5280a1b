"""Runs a guide's commands and Python, in their order, in the current folder.

    python run_guide.py GUIDE.md

In one process, since each would load TensorFlow anew. Training is cut down to a few
steps of a small model, and a server is stopped at the end; everything else runs as it
is written. A pipeline that is not ours goes to bash.
"""

import atexit
import io
import pathlib
import shlex
import subprocess
import sys
import time
import urllib.request

from guides import SHELLS
from guides import blocks

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
TRAINING = {"train", "ablate", "demo"}
SERVERS = []


def smaller(words):
    """The words of a verb that trains, with settings that make it short."""
    if words[0] not in TRAINING or words == ["train"]:
        return words
    settings = dict(SMALL)
    if "--from" in words:
        # The model's own sizes and vocabulary.
        settings = {k: v for k, v in settings.items() if k.startswith("training.")}
    if words[0] == "demo" or "phrases" in words:
        settings |= {"data.size": 700, "data.held_out": 20}
    if words[0] == "ablate":
        # The rows set the model's sizes.
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
    """A server that has answered once, until this process ends; one for a guide."""
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
    raise SystemExit(f"{shlex.join(words)}: no answer")


def run_ours(words, stdin):
    if words[0] == "serve":
        start_server(words)
        return
    # Here, so that Python blocks get only the modules that they import.
    from typer.testing import CliRunner

    from keras_transformer.cli.app import app

    result = CliRunner().invoke(app, smaller(words), input=stdin)
    print(result.output, file=sys.stderr)
    if result.exit_code:
        raise SystemExit(f"{shlex.join(words)}: exit code {result.exit_code}")


def run_line(line):
    """One command line, perhaps a pipe into one of our verbs."""
    *before, last = line.split(" | ")
    words = shlex.split(last)
    if words[0] != "keras-transformer" or any(word in words for word in ("&&", ">")):
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)
        return
    stdin = None
    if before:
        command = ["bash", "-euo", "pipefail", "-c", " | ".join(before)]
        stdin = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    run_ours([expanded(word) for word in words[1:]], stdin)


def expanded(word):
    """A word with the shell's variables filled in, as where it is not quoted."""
    quoted = subprocess.run(
        ["bash", "-c", f'printf %s "{word}"'], check=True, stdout=subprocess.PIPE
    )
    return quoted.stdout.decode()


def main(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    ran = 0
    for block in blocks(text):
        where = f"{pathlib.Path(path).name}:{block.line}"
        for hint in block.hints:
            if hint.startswith("file "):
                pathlib.Path(hint.removeprefix("file ")).write_text(block.code)
        code = block.to_run()
        print(f"== {where}", file=sys.stderr)
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + code, where, "exec"), names)
            ran += 1
        elif block.language in SHELLS:
            for line in code.replace("\\\n", " ").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    print(f"$ {line}", file=sys.stderr)
                    run_line(line)
                    ran += 1
    print(f"\n{ran}")


if __name__ == "__main__":
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    main(sys.argv[1])
