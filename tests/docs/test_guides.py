"""The pages of docs/: commands, Python, expected output, links, and the site."""

import dataclasses
import gzip
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pytest
import run_guide
from guides import (
    LINK,
    ROOT,
    SHELLS,
    blocks,
    commands,
    find_problems,
    matches_output,
    unchecked_outputs,
    write_corpus,
)
from tree_samples import random_tree

GUIDES = sorted((ROOT / "docs").rglob("*.md"))
# Valid reasons not to run a block.
NEEDS = re.compile(
    r"needs .*(GPU|network|hours)|the tests themselves|the example of --help"
)


def guide_name(guide):
    return guide.relative_to(ROOT / "docs").with_suffix("").as_posix()


def text_of(guide):
    return guide.read_text(encoding="utf-8")


def test_docs_contain_guides():
    assert len(GUIDES) > 8


@pytest.mark.parametrize("guide", GUIDES, ids=guide_name)
def test_commands_name_existing_options_and_files(guide, monkeypatch):
    # Shipped recipes read paths from this variable.
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "data")
    found = [
        f"{guide.name}:{block.line} {problem}"
        for block in blocks(text_of(guide))
        if block.language in SHELLS
        for command in commands(block.code)
        for problem in find_problems(command)
    ]
    for block in blocks(text_of(guide)):
        if block.language == "python":
            compile(block.code, guide.name, "exec")
    assert found == []


@pytest.mark.parametrize("guide", GUIDES, ids=guide_name)
def test_links_point_to_existing_files(guide):
    links = LINK.findall(text_of(guide))
    assert [link for link in links if not (guide.parent / link).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=guide_name)
def test_skipped_blocks_give_a_valid_reason(guide):
    skipped = [
        hint
        for block in blocks(text_of(guide))
        for hint in block.hints
        if hint.startswith("skip, ")
    ]
    assert [hint for hint in skipped if not NEEDS.search(hint)] == []


@pytest.mark.parametrize("guide", [*GUIDES, ROOT / "README.md"], ids=lambda p: p.stem)
def test_outputs_are_compared_or_give_a_reason(guide):
    assert unchecked_outputs(text_of(guide)) == []


def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs the extra [docs]")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    layers = (tmp_path / "reference" / "layers" / "index.html").read_text("utf-8")
    # mkdocstrings has rendered the docstrings.
    assert "Multi-head attention (section 3.2.2)" in layers
    sources = [page.read_text("utf-8") for page in tmp_path.rglob("*.html")]
    # The site contains all pictures, scripts and styles that it loads.
    loads = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?:[^\"]*)\"")
    assert [url for page in sources for url in loads.findall(page)] == []


def tree_of_words(seed, words):
    """Returns a random tree with words from `words`.

    The few words of `random_tree` itself are not enough to learn a vocabulary.
    """
    tree = random_tree(seed)
    draw = random.Random(seed)
    return dataclasses.replace(
        tree, words=tuple(draw.choice(words) for _ in tree.words)
    )


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Folder of the small run that pages use as `runs/mine`."""
    folder = tmp_path_factory.mktemp("before")
    write_corpus(folder)
    guide = folder / "before.md"
    guide.write_text(
        "```bash\nkeras-transformer train files --output runs/mine "
        "--set data.train.source=train.en --set data.train.target=train.de\n```\n"
    )
    run_guide_in(folder, guide)
    return folder / "runs" / "mine"


@pytest.fixture
def sandbox(tmp_path):
    """Folder with small versions of the files that the pages name."""
    write_corpus(tmp_path)
    data = tmp_path / "data"
    text = (tmp_path / "train.en").read_text("utf-8")
    words = text.replace("(", "").replace(")", "").split()
    for name, number in (("train", 40), ("dev", 4)):
        folder = data / "craft"
        folder.mkdir(parents=True, exist_ok=True)
        trees = "".join(f"{tree_of_words(seed, words)}\n" for seed in range(number))
        (folder / f"{name}.trees.gz").write_bytes(gzip.compress(trees.encode()))
        for other in ("wsj_02_21.mrg", "wsj_22.mrg"):
            (tmp_path / other).write_text(trees)
        (tmp_path / "silver.trees.gz").write_bytes(gzip.compress(trees.encode()))
    (data / "multi30k").mkdir()
    for split, name in (
        ("train", "train"),
        ("val", "val"),
        ("test", "test_2016_flickr"),
    ):
        for language in ("en", "de"):
            text = (tmp_path / f"{split}.{language}.gz").read_bytes()
            (data / "multi30k" / f"{name}.{language}.gz").write_bytes(text)
    for language in ("en", "de"):
        (tmp_path / f"more.{language}.gz").symlink_to(tmp_path / f"val.{language}.gz")
    for folder in ("benchmarks", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide",
    [
        guide
        for guide in GUIDES
        if any(
            block.language in {*SHELLS, "python"} and block.to_run()
            for block in blocks(text_of(guide))
        )
    ],
    ids=guide_name,
)
def test_guide_runs_from_top_to_bottom(guide, sandbox, small_run):
    if "--output runs/mine" not in text_of(guide):
        shutil.copytree(small_run, sandbox / "runs" / "mine")
    assert run_guide_in(sandbox, guide) > 0


def run_guide_in(folder, guide):
    """Runs a guide in a folder and returns its number of Python blocks and commands."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "keras-transformer"
    command.write_text(
        f"#!{sys.executable}\nfrom keras_transformer.cli import main\nmain()\n"
    )
    command.chmod(0o755)
    tests = pathlib.Path(__file__).resolve().parents[1]
    programs = pathlib.Path(sys.executable).parent
    result = subprocess.run(
        [sys.executable, str(tests / "docs" / "run_guide.py"), str(guide)],
        cwd=folder,
        env={
            **os.environ,
            "KERAS_TRANSFORMER_DATA": str(folder / "data"),
            "MPLBACKEND": "Agg",
            # The folder of the interpreter contains TensorBoard.
            "PATH": os.pathsep.join(
                [str(folder / "bin"), str(programs), os.environ["PATH"]]
            ),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(tests), os.environ.get("PYTHONPATH")])
            ),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return int(result.stdout.split()[-1])


PAGE = """
```python
print("score", 1 / 3)
print("last")
```

<!-- test: output -->
```text
score 0.33...
last
```

```bash
echo one
echo two; echo three
```

<!-- test: output -->
```text
...
three
```
"""


def test_run_guide_accepts_matching_output(tmp_path, capsys):
    (tmp_path / "page.md").write_text(PAGE)
    run_guide.main(tmp_path / "page.md")
    # One Python block and two command lines.
    assert capsys.readouterr().out.split()[-1] == "3"


# `line` is the first line of the changed output in PAGE, whose line 1 is empty.
@pytest.mark.parametrize(
    "old, new, line", [("0.33...", "0.34...", 9), ("...\nthree", "one\nthree", 20)]
)
def test_run_guide_rejects_other_output(tmp_path, old, new, line):
    (tmp_path / "page.md").write_text(PAGE.replace(old, new))
    with pytest.raises(SystemExit, match=rf"page.md:{line}: the page shows"):
        run_guide.main(tmp_path / "page.md")


@pytest.mark.parametrize(
    "expected, printed, matches",
    [
        ("a\nb\n", "\na  \nb\n\n", True),
        ("a\n", "a\nb\n", False),
        ("a...c\n", "a (b) c\n", True),
        ("a...c\n", "a\nc\n", False),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "b\n", False),
        ("1.5\n", "125\n", False),
    ],
)
def test_matches_output_expands_wildcards(expected, printed, matches):
    assert matches_output(expected, printed) == matches


def test_unchecked_outputs_finds_text_after_code():
    page = PAGE.replace("<!-- test: output -->\n```text\n...", "```text\n...")
    assert unchecked_outputs(page) == [19]
    reason = "<!-- test: not compared, times differ -->\n```text\n..."
    assert unchecked_outputs(page.replace("```text\n...", reason)) == []


def test_run_guide_trains_as_written(monkeypatch):
    calls = []
    monkeypatch.setattr(run_guide, "run_command", lambda *call: calls.append(call))
    fence = "```bash\nkeras-transformer demo\n```\n"
    for block in blocks(f"{fence}\n<!-- test: as written -->\n{fence}"):
        run_guide.run_block(block, "page", {})
    assert calls == [(["demo"], None, False), (["demo"], None, True)]
    assert run_guide.shorten_training(["demo"])[1:3] == ["--set", "training.steps=4"]
