"""README's Python runs, and what its commands name is there."""

import os
import subprocess
import sys

import pytest
from guides import LINK
from guides import ROOT
from guides import SHELLS
from guides import blocks
from guides import commands
from guides import problems
from guides import write_corpus


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


def test_readme_has_at_most_150_lines(readme):
    assert len(readme.splitlines()) <= 150
