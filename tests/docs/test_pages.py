"""Commands, code, expected output and links of README and docs, and the site."""

import dataclasses
import gzip
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pages
import pytest
import typer
from pages import ROOT
from tree_samples import random_tree

from keras_transformer.cli.app import app

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?:\]\(|src=\"|srcset=\")(?!https?:|mailto:|#)([^)#\s\"]+)")


def name_of(page):
    return page.relative_to(ROOT).with_suffix("").as_posix()


def parse(command, words):
    """Parses the arguments of a command, without checking their values."""
    context = typer.Context(command)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    if hasattr(command, "resolve_command") and rest:
        _, subcommand, rest = command.resolve_command(context, rest)
        parse(subcommand, rest)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_links_exist(page):
    text = page.read_text("utf-8")
    for block in pages.blocks(text):
        if block.language == "bash":
            for words in pages.package_commands(block.code):
                parse(typer.main.get_command(app), words)
        elif block.language == "python":
            compile(block.code, page.name, "exec")
    links = LINK.findall(text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def run(folder, page, program=(pages.__file__,)):
    """Runs a page in a folder, in a process of its own."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "keras-transformer"
    command.write_text(
        f"#!{sys.executable}\nfrom keras_transformer.cli import main\nmain()\n"
    )
    command.chmod(0o755)
    # The folder of the interpreter contains TensorBoard.
    paths = [command.parent, pathlib.Path(sys.executable).parent, os.environ["PATH"]]
    done = subprocess.run(
        [sys.executable, *program, page],
        cwd=folder,
        env={
            **os.environ,
            "KERAS_TRANSFORMER_DATA": str(folder / "data"),
            "MPLBACKEND": "Agg",
            "PATH": os.pathsep.join(map(str, paths)),
            "PYTHONPATH": str(pathlib.Path(pages.__file__).parent),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_readme_python_runs_and_prints_what_is_shown(tmp_path):
    code = "import sys, pages; pages.run_page(sys.argv[1], ['python'])"
    run(tmp_path, ROOT / "README.md", ("-c", code))


PAGE = """
<!-- test: replace 8 with 3 -->
```python
print("score", 1 / 8)
```

<!-- test: output -->
```text
score 0.33...
```
"""


def test_run_page_compares_output(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    pages.run_page(page)
    page.write_text(PAGE.replace("0.33", "0.34"))
    with pytest.raises(SystemExit, match=r"page.md:9: the page shows"):
        pages.run_page(page)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Folder of the small run that pages use as `runs/mine`."""
    folder = tmp_path_factory.mktemp("before")
    pages.write_corpus(folder)
    page = folder / "before.md"
    page.write_text(
        "```bash\nkeras-transformer train files --output runs/mine "
        "--set data.train.source=train.en --set data.train.target=train.de\n```\n"
    )
    run(folder, page)
    return folder / "runs" / "mine"


def trees(count, words):
    """Returns random trees with these words, enough to learn a vocabulary from."""
    found = []
    for seed in range(count):
        tree, draw = random_tree(seed), random.Random(seed)
        drawn = tuple(draw.choice(words) for _ in tree.words)
        found.append(f"{dataclasses.replace(tree, words=drawn)}\n")
    return "".join(found)


@pytest.fixture
def sandbox(tmp_path):
    """Folder with small versions of the files that the pages name."""
    pages.write_corpus(tmp_path)
    words = (tmp_path / "train.en").read_text("utf-8")
    words = words.replace("(", "").replace(")", "").split()
    (tmp_path / "data" / "craft").mkdir(parents=True)
    for name, count in (("train", 40), ("dev", 4)):
        packed = gzip.compress(trees(count, words).encode())
        (tmp_path / "data" / "craft" / f"{name}.trees.gz").write_bytes(packed)
    (tmp_path / "data" / "multi30k").mkdir()
    splits = {"train": "train", "val": "val", "test": "test_2016_flickr"}
    for language in ("en", "de"):
        for split, name in splits.items():
            link = tmp_path / "data" / "multi30k" / f"{name}.{language}.gz"
            link.symlink_to(tmp_path / f"{split}.{language}.gz")
        (tmp_path / f"more.{language}.gz").symlink_to(tmp_path / f"val.{language}.gz")
    for folder in ("benchmarks", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES[1:]
        # The commands of cli.md are examples of --help.
        if page.name != "cli.md"
        and any(block.to_run() for block in pages.blocks(page.read_text("utf-8")))
    ],
    ids=name_of,
)
def test_page_runs_from_top_to_bottom(page, sandbox, small_run):
    if "--output runs/mine" not in page.read_text("utf-8"):
        shutil.copytree(small_run, sandbox / "runs" / "mine")
    run(sandbox, page)


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra [docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    # The site contains all pictures, scripts and styles that it loads.
    loads = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?:[^\"]*)\"")
    for page in tmp_path.rglob("*.html"):
        assert loads.findall(page.read_text("utf-8")) == []
