"""No command lets TensorFlow print its description of the machine while it loads."""

import json
import subprocess
import sys
import textwrap

import pytest

from keras_transformer.cli.app import COMMANDS, load_command

# Arguments with which each command gets as far as loading TensorFlow, or to its end.
# The fixture `outcomes` writes the files that they name.
PAIR = ["-s", "text", "-t", "text"]
ARGUMENTS = {
    "demo": ["--output", "new", "--export", "exported"],
    "init": ["new.yaml"],
    "train": ["phrases", "--output", "new"],
    "plot": ["run"],
    "evaluate": ["run", "--test-split"],
    "translate": ["run", "-i", "page.html"],
    "score": ["run", *PAIR],
    "average": ["run"],
    "export": ["run", "exported"],
    "info": ["run"],
    "models": [],
    "compare": ["-r", "text", "text", "copy"],
    "distill": [
        *("run", "-s", "text", "--output", "new"),
        *("--set", "data.validation={source: text, target: text}"),
    ],
    "filter": [
        *("run", *PAIR, "--output-source", "x", "--output-target", "y"),
        *("--keep-fraction", "0.5"),
    ],
    "extend-vocabulary": ["run", "--text", "text", "--size", "3", "--output", "new"],
    "serve": ["phrases", "--port", "0"],
    "parse": ["run", "-i", "text"],
    "visualize": ["run", "--source", "ein Hund"],
    "repeat": ["phrases", "--output", "new"],
    "ablate": ["phrases", "--output", "new"],
    "import": ["run", "new"],
    "corpus prepare": ["run", *PAIR, "--output", "new"],
    "corpus translate": ["run", "-s", "text", "--output", "new"],
    "corpus score": ["run", *PAIR, "--output", "new"],
}
# Commands that never load TensorFlow.
WITHOUT_TENSORFLOW = {"init", "plot", "models"}
# Runs all commands, each up to the point at which the libraries' output is discarded.
SCRIPT = textwrap.dedent("""
    import contextlib, json, sys
    sys.argv[0] = "keras-transformer"
    from typer.testing import CliRunner
    from keras_transformer.cli import console
    from keras_transformer.cli.app import app

    class Found(BaseException):
        pass

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name in ("tensorflow", "keras"):
                raise Found("loud")

    @contextlib.contextmanager
    def quiet_libraries():
        raise Found("quiet")
        yield

    sys.meta_path.insert(0, Finder())
    console.quiet_libraries = quiet_libraries
    console.require_extra = lambda *_: None
    outcomes = {}
    for name, arguments in json.loads(sys.argv[1]).items():
        try:
            result = CliRunner().invoke(app, [*name.split(), *arguments])
            outcomes[name] = result.output if result.exit_code else "no TensorFlow"
        except Found as found:
            outcomes[name] = str(found)
    print(json.dumps(outcomes))
""")


def command_names():
    """Yields the names of all commands, also of the hidden ones."""
    for name in COMMANDS:
        command = load_command(name)
        if hasattr(command, "commands"):
            yield from (f"{name} {each}" for each in command.commands)
        else:
            yield name


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Dict of commands to "quiet", "loud", "no TensorFlow", or an error's text."""
    folder = tmp_path_factory.mktemp("commands")
    for name in ("text", "copy", "page.html"):
        (folder / name).write_text("ein Hund\n")
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("data: {kind: phrases}\n")
    row = {"split": "train", "step": 1, "loss": 2.0, "seconds": 1.0}
    (folder / "run" / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(ARGUMENTS)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_load_tensorflow_quietly(outcomes):
    assert sorted(command_names()) == sorted(ARGUMENTS)
    assert outcomes == {
        name: "no TensorFlow" if name in WITHOUT_TENSORFLOW else "quiet"
        for name in ARGUMENTS
    }
