"""Makes and executes the notebooks of docs/tutorials.

    python docs/notebooks.py [NAME ...]     all of them, if no name is given

Each NAME.ipynb is the jupytext pair of NAME.md. Bash blocks become `%%bash` cells, and
comments with hints for tests are removed. Notebooks are executed in a folder with
small text files, as in the tests of the pages (tests/docs/pages.py). Training is
shortened, unless its block has the hint `as written`. After shortened training, the
notebook stores no outputs. Outputs that the page marks as `not compared` are copied
from the page. Pages show pictures of the notebook from the folder outputs.
"""

import base64
import contextlib
import os
import pathlib
import re
import sys
import tempfile

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
sys.path.insert(0, str(ROOT / "tests" / "docs"))

import pages  # noqa: E402 (found through sys.path)

# A cell that starts or calls a server would not end, so these blocks stay text.
SERVER = re.compile(r"keras-transformer serve|127\.0\.0\.1|docker run")
TRAINING = re.compile(r"keras-transformer (train \S|ablate|demo(?! --help))")
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
# A picture that a cell draws. The page shows it, and the notebook draws it.
OUTPUT = re.compile(r"^!\[.*\]\(outputs/.*\)\n", re.MULTILINE)
METADATA = {
    "jupytext": {"formats": "ipynb,md"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Without the header, jupytext would take the notebook's language from the first block.
HEADER = """---
jupyter:
  kernelspec: {display_name: Python 3, language: python, name: python3}
---

"""
# A `keras-transformer` that shortens training, as the tests of the pages do.
COMMAND = """#!{python}
import os, sys
sys.path.insert(0, {tests!r} + "/docs")
from pages import shorten_training
if not os.environ.get("AS_WRITTEN"):
    sys.argv[1:] = shorten_training(sys.argv[1:])
from keras_transformer.cli import main
main()
"""


def read_blocks(text):
    """Returns the blocks that become cells, in their order."""
    return [block for block in pages.blocks(text) if _is_cell(block)]


def expected_outputs(text):
    """Returns each cell's output that must be as on the page, or `None`."""
    return _outputs_on_page(text, "output")


def copied_outputs(text):
    """Returns each cell's output that the notebook copies from the page, or `None`."""
    return _outputs_on_page(text, "not compared")


def _outputs_on_page(text, kind):
    found, is_cell = [], False
    for block in pages.blocks(text):
        if _is_output(block):
            if is_cell and any(hint.startswith(kind) for hint in block.hints):
                found[-1] = block.code
        elif is_cell := _is_cell(block):
            found.append(None)
    return found


def _is_output(block):
    return any(hint.startswith(("output", "not compared")) for hint in block.hints)


def _is_cell(block):
    is_server = block.language == "bash" and SERVER.search(block.code)
    return bool(block.to_run()) and not is_server


def build_notebook(text):
    """Converts a page to a notebook without outputs."""
    parts, end, is_cell = [], 0, False
    matches = pages.FENCE.finditer(text)
    for match, block in zip(matches, pages.blocks(text), strict=True):
        parts.append(_visible(text[end : match.start()]))
        end = match.end()
        if is_cell and _is_output(block):
            # This text is the output of the cell above. The blank lines before it
            # would become a cell.
            parts[-1] = parts[-1].rstrip("\n")
            continue
        is_cell = _is_cell(block)
        fence = match["fence"]
        if block.language in ("python", "bash") and not is_cell:
            fence = fence.replace(block.language, f"{block.language} .noeval", 1)
        parts.append(fence)
    parts.append(_visible(text[end:]))
    notebook = jupytext.reads(f"{HEADER}{''.join(parts)}", fmt="md")
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(" .noeval\n", "\n")
    return notebook


def _visible(text):
    """Removes comments, pictures of outputs, and the blank lines that they leave."""
    return re.sub(r"\n{3,}", "\n\n", OUTPUT.sub("", COMMENT.sub("", text)))


def execute(notebook, blocks, copied, folder):
    """Returns the notebook with its outputs, executed in `folder`.

    Args:
        notebook: Notebook without outputs.
        blocks: The page's blocks, one per code cell.
        copied: For each of them, the output that is copied from the page, or `None`.
        folder: Path of a folder with the files that the page expects.
    """
    executed = nbformat.from_dict(notebook)
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    sources = [cell.source for cell in cells]
    stored, is_short = [], False
    for cell, block in zip(cells, blocks, strict=True):
        changed = [h for h in block.hints if h.startswith(("replace ", "instead, "))]
        code = block.to_run()
        as_written = "as written" in block.hints
        is_short = is_short or (not as_written and bool(TRAINING.search(code)))
        stored.append(not changed and not is_short)
        if block.language != "python":
            setting = "export AS_WRITTEN=1\n" if as_written else ""
            code = f"%%bash\nset -euo pipefail\n{setting}{code}"
        cell.source = code
    with _environment(folder):
        NotebookClient(
            executed,
            timeout=600,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    for number, (cell, source, keep, shown) in enumerate(
        zip(cells, sources, stored, copied, strict=True), 1
    ):
        cell.source, cell.execution_count = source, number
        cell.metadata = nbformat.from_dict({})
        if shown is not None:
            cell.outputs = [_printed(shown)]
        else:
            cell.outputs = list(_clean_outputs(cell.outputs, number)) if keep else []
    executed.metadata = nbformat.from_dict(METADATA)
    return executed


def _printed(text):
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def _clean_outputs(outputs, number):
    """Yields standard output and pictures, without standard error and object names."""
    printed = "".join(o.text for o in outputs if o.get("name") == "stdout")
    if printed:
        yield _printed(printed)
    for output in outputs:
        if output.output_type == "stream":
            continue
        if "image/png" in output.get("data", {}):
            data = {"image/png": output.data["image/png"]}
            yield nbformat.v4.new_output("display_data", data=data)
        elif output.output_type == "execute_result":
            data = {"text/plain": output.data["text/plain"]}
            yield nbformat.v4.new_output(
                "execute_result", data=data, execution_count=number
            )


@contextlib.contextmanager
def _environment(folder):
    """Puts the shortening command and this interpreter first in PATH."""
    programs = folder / ".bin"
    programs.mkdir()
    command = programs / "keras-transformer"
    command.write_text(COMMAND.format(python=sys.executable, tests=str(ROOT / "tests")))
    command.chmod(0o755)
    paths = [str(programs), str(pathlib.Path(sys.executable).parent)]
    changes = {
        "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "tests"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_TRANSFORMER_DATA": str(folder / "data"),
    }
    before = {name: os.environ.get(name) for name in (*changes, "MPLBACKEND")}
    os.environ.update(changes)
    os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make(page, folder):
    """Returns a page's notebook, executed in `folder`."""
    text = page.read_text(encoding="utf-8")
    pages.write_corpus(folder)
    return execute(
        build_notebook(text), read_blocks(text), copied_outputs(text), folder
    )


def outputs_of(notebook):
    """Returns each code cell's outputs as text; a picture as its size in pixels."""
    return [
        [_describe(output) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def pictures_of(notebook, name):
    """Returns the names and contents of the pictures that the page shows."""
    found = [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    return [(f"{name}-{number}.png", each) for number, each in enumerate(found, 1)]


def _describe(output):
    if output.output_type == "stream":
        return output.text
    if "image/png" in output.data:
        header = base64.b64decode(output.data["image/png"])[16:24]
        width, height = (int.from_bytes(header[i : i + 4], "big") for i in (0, 4))
        return f"picture of {width} x {height}"
    return output.data["text/plain"]


def main(names):
    for page in sorted(TUTORIALS.glob("*.md")):
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = make(page, pathlib.Path(folder))
        path = page.with_suffix(".ipynb")
        nbformat.write(notebook, path)
        for name, picture in pictures_of(notebook, page.stem):
            (TUTORIALS / "outputs" / name).write_bytes(picture)
        print(path.relative_to(ROOT), path.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
