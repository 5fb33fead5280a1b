"""README's Python runs, and what its commands name is there.

Comments that the rendered page does not show may stand on the lines above a block:

    <!-- test: replace OLD with NEW -->     run it smaller than it reads
    <!-- test: skip, REASON -->             do not run it
"""

import gzip
import importlib.util
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from keras_transformer.pipelines.phrases import phrases

from keras_transformer.recipes import load_recipe
from keras_transformer.recipes import shipped_recipes

ROOT = pathlib.Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
HINT = re.compile(r"<!-- test: (.*?) -->")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SHELLS = {"bash", "console", "sh", "shell"}
# Folders of the project that hold nothing until a command of README fills them.
WRITTEN = {"runs", "saved_models"}


class Block:
    """A fenced block: its language, its text, its first line, the hints above it."""

    def __init__(self, match, text):
        self.language = match[2]
        self.code = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        self.line = text.count("\n", 0, match.start(3)) + 1
        self.hints = []
        for line in reversed(text[: match.start()].splitlines()):
            if line.strip() and not HINT.fullmatch(line.strip()):
                break
            self.hints[:0] = HINT.findall(line)

    def to_run(self):
        """The code with the replacements made, or an empty text if it is skipped."""
        code = self.code
        for hint in self.hints:
            if hint.startswith("skip, "):
                return ""
            assert hint.startswith("replace "), f"line {self.line}: hint {hint!r}"
            old, between, new = hint.removeprefix("replace ").partition(" with ")
            assert between and old in code, f"line {self.line}: no {old!r} to replace"
            code = code.replace(old, new)
        return code


def blocks(text):
    return [Block(match, text) for match in FENCE.finditer(text)]


def commands(code):
    """Commands of a shell block as lists of words; printed results are left out."""
    lines = code.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        command = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def problems(command):
    """What a command names that is not there, one line each."""
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    if not command:
        return
    program, *words = command
    program = pathlib.PurePath(program).name
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        for word in words:
            if "=" not in word and word[:1] != "-" and word not in targets:
                yield f"make {word}: no such target"
    elif program == "keras-transformer":
        yield from verb_problems(words)
    elif program == "pip" or words[:2] == ["-m", "pip"]:
        extras = re.findall(r'^ +"(\w+)": ', (ROOT / "setup.py").read_text(), re.M)
        for word in words:
            ours = re.fullmatch(r"(?:\.|keras-transformer-seq2seq)\[(.*)\]", word)
            for extra in ours[1].split(",") if ours else ():
                if extra not in extras:
                    yield f"pip install: no extra {extra!r}"
    elif words[:1] == ["-m"] and importlib.util.find_spec(words[1]) is None:
        yield f"python -m {words[1]}: no such module"
    tops = {path.name for path in ROOT.iterdir()} - WRITTEN
    for word in command:
        word = word.removeprefix("./")
        if word.split("/")[0] in tops and not (ROOT / word).exists():
            yield f"{word}: no such file in the project"


def verb_problems(words):
    verb = next((word for word in words if word[:1] != "-"), None)
    text = help_of(verb)
    if text is None:
        yield f"keras-transformer {verb}: no such verb"
        return
    for word in words:
        option = word.partition("=")[0]
        if option[:2] == "--" and not re.search(rf"{option}\b", text):
            yield f"keras-transformer {verb}: no option {option}"
    if verb == "train" and len(words) > 1 and words[1][:1] not in "-<":
        recipe = words[1]
        if recipe.endswith((".yaml", ".yml")):
            return
        if recipe not in shipped_recipes():
            yield f"keras-transformer train: no recipe {recipe!r}"
            return
        settings = [b for a, b in itertools.pairwise(words) if a == "--set"]
        try:
            load_recipe(recipe, overrides=settings)
        except ValueError as error:
            yield f"keras-transformer train: {error}"


HELP = {}


def help_of(verb):
    """The verb's `--help`, or None where there is no such verb."""
    if verb not in HELP:
        code = "from keras_transformer.cli import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", code, *filter(None, [verb]), "--help"],
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            capture_output=True,
            text=True,
        )
        HELP[verb] = result.stdout if result.returncode == 0 else None
    return HELP[verb]


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_first_commands(readme):
    """The two commands that need nothing else open the page."""
    code = [block.code for block in blocks(readme) if block.language in SHELLS]
    opening = [" ".join(command) for part in code[:2] for command in commands(part)]
    assert {"make demo", "make test"} <= set(opening)


def test_commands_name_what_is_there(readme):
    checked, found = 0, []
    for block in blocks(readme):
        if block.language in SHELLS:
            for command in commands(block.code):
                checked += 1
                found += [f"README.md:{block.line} {p}" for p in problems(command)]
    assert checked > 5
    assert found == []


@pytest.mark.parametrize(
    "guide", ["distributed", "models", "reliability", "serving"]
)
def test_commands_and_links_of_a_guide(guide):
    path = ROOT / "docs" / f"{guide}.md"
    text = path.read_text(encoding="utf-8")
    found = [
        f"{path.name}:{block.line} {problem}"
        for block in blocks(text)
        if block.language in SHELLS
        for command in commands(block.code)
        for problem in problems(command)
    ]
    for block in blocks(text):
        if block.language == "python":
            compile(block.code, path.name, "exec")
    assert found == []
    links = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    assert links == []


def test_links_lead_somewhere(readme):
    assert [link for link in LINK.findall(readme) if not (ROOT / link).exists()] == []


def test_python_runs(readme, tmp_path):
    """All of README's Python, in its order, in one process and an empty folder."""
    python = [block for block in blocks(readme) if block.language == "python"]
    assert any("model.fit(" in block.to_run() for block in python)
    # Blank lines before each block make a traceback show README's line numbers.
    script = "".join(
        f"exec(compile({chr(10) * (block.line - 1) + block.to_run()!r}, "
        f"{'README.md'!r}, 'exec'), names)\n"
        for block in python
    )
    (tmp_path / "script.py").write_text(
        f"names = {{'__name__': '__main__'}}\n{script}", encoding="utf-8"
    )
    write_corpus(tmp_path)
    result = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]


def write_corpus(folder):
    """Small `train`, `val` and `test` texts, `.en` and `.de`, plain and `.gz`."""
    splits = phrases(size=700, held_out=53)
    for name, pairs in zip(("train", "val", "test"), splits, strict=True):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines).encode()
            (folder / f"{name}.{language}").write_bytes(text)
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text))


EXAMPLE = """Text.

```bash
make tset          # no such target
$nothing
```

<!-- test: replace 1000 with 3 -->
<!-- test: replace x with y -->
```python
x = 1000
```

- a list

  ```console
  $ make test && keras-transformer train \\
        no_recipe --nonsense 3 | cat
  a result
  $ pytest tests/no_such_file.py
  ```
"""


def test_blocks_and_hints():
    bash, python, console = blocks(EXAMPLE)
    assert (bash.language, bash.line, bash.hints) == ("bash", 4, [])
    assert (python.line, python.to_run()) == (11, "y = 3\n")
    assert list(commands(console.code)) == [
        ["make", "test"],
        ["keras-transformer", "train", "no_recipe", "--nonsense", "3"],
        ["cat"],
        ["pytest", "tests/no_such_file.py"],
    ]


def test_wrong_commands_are_found():
    bash, _, console = blocks(EXAMPLE)
    found = [p for b in (bash, console) for c in commands(b.code) for p in problems(c)]
    assert found == [
        "make tset: no such target",
        "keras-transformer train: no option --nonsense",
        "keras-transformer train: no recipe 'no_recipe'",
        "tests/no_such_file.py: no such file in the project",
    ]
    assert list(problems(["keras-transformer", "bake"])) == [
        "keras-transformer bake: no such verb"
    ]
    assert list(problems(["pip", "install", "-e", ".[no_extra]"])) == [
        "pip install: no extra 'no_extra'"
    ]
    right = "keras-transformer train phrases --output runs/a --set training.steps=10"
    assert list(problems(right.split())) == []
    assert list(problems([*right.split(), "--set", "training.stepz=1"]))
    assert list(problems(["pip", "install", ".[test,dev]"])) == []
