"""What the site needs of the rest of the project: pictures, results, the package.

Guides link to files outside of docs/, as a reader of the repository needs it. For the
site those links lead to copies.
"""

import pathlib
import re
import shutil

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"(?<=\]\()\.\./(?=(?:benchmarks|keras_transformer|tests)/)")


def on_startup(command, dirty):
    """Makes the package as it is once installed: the pipelines within it."""
    package = ROOT / "build" / "reference" / "keras_transformer"
    shutil.rmtree(package, ignore_errors=True)
    only_code = shutil.ignore_patterns("__pycache__")
    # A copy: links to folders elsewhere are passed over.
    shutil.copytree(ROOT / "keras_transformer", package, ignore=only_code)
    shutil.copytree(
        ROOT / "pipelines", package / "pipelines", ignore=only_code, dirs_exist_ok=True
    )


def on_files(files, config):
    """Adds the files that guides link to."""
    linked = set()
    for page in pathlib.Path(config.docs_dir).rglob("*.md"):
        for match in OUTSIDE.finditer(page.read_text(encoding="utf-8")):
            rest = match.string[match.end() :]
            linked.add(rest[: rest.index(")")])
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    return OUTSIDE.sub("", markdown)
