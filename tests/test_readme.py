"""Tests of the README's Python blocks, commands and links."""

import os
import subprocess
import sys

import pytest
from guides import LINK, ROOT, SHELLS, blocks, commands, find_problems, write_corpus


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_begins_with_make_commands(readme):
    code = [block.code for block in blocks(readme) if block.language in SHELLS]
    opening = [" ".join(command) for part in code[:2] for command in commands(part)]
    assert {"make demo", "make test"} <= set(opening)


def test_readme_commands_name_existing_options_and_files(readme):
    checked, found = 0, []
    for block in blocks(readme):
        if block.language in SHELLS:
            for command in commands(block.code):
                checked += 1
                found += [f"README.md:{block.line} {p}" for p in find_problems(command)]
    assert checked > 5
    assert found == []


def test_readme_links_point_to_existing_files(readme):
    assert [link for link in LINK.findall(readme) if not (ROOT / link).exists()] == []


def test_readme_python_runs_and_prints_what_is_shown(readme, tmp_path):
    python = [block for block in blocks(readme) if block.language == "python"]
    assert any("model.fit(" in block.to_run() for block in python)
    write_corpus(tmp_path)
    tests = ROOT / "tests"
    # The preset has four layers. One layer is traced faster.
    code = """
import sys
import run_guide
from keras_transformer.presets import PRESETS
PRESETS["tiny"] = {**PRESETS["tiny"], "num_layers": 1}
run_guide.main(sys.argv[1], languages=["python"])
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "README.md")],
        cwd=tmp_path,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join([str(tests), str(tests / "docs")]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split()[-1]) == len(python)


# A page with wrong commands. `blocks` and `find_problems` are functions of guides.py.
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


def test_blocks_have_languages_lines_and_test_comments():
    bash, python, console = blocks(EXAMPLE)
    assert (bash.language, bash.line, bash.hints) == ("bash", 4, [])
    assert (python.line, python.to_run()) == (11, "y = 3\n")
    assert list(commands(console.code)) == [
        ["make", "test"],
        ["keras-transformer", "train", "no_recipe", "--nonsense", "3"],
        ["cat"],
        ["pytest", "tests/no_such_file.py"],
    ]


def test_problems_finds_wrong_commands():
    bash, _, console = blocks(EXAMPLE)
    found = [
        p for b in (bash, console) for c in commands(b.code) for p in find_problems(c)
    ]
    assert found == [
        "make tset: no such target",
        "keras-transformer train: no option --nonsense",
        "keras-transformer train: no recipe 'no_recipe'",
        "tests/no_such_file.py: no such file in the project",
    ]
    assert list(find_problems(["keras-transformer", "bake"])) == [
        "keras-transformer bake: no such command"
    ]
    assert list(find_problems(["pip", "install", "-e", ".[no_extra]"])) == [
        "pip install: no extra 'no_extra'"
    ]
    right = "keras-transformer train phrases --output runs/a --set training.steps=10"
    assert list(find_problems(right.split())) == []
    assert list(find_problems([*right.split(), "--set", "training.stepz=1"]))
    assert list(find_problems(["pip", "install", ".[test,dev]"])) == []
