"""Pages in docs/reference/ match the code.

Generated pages match in full. Handwritten pages list the names that the code uses.
"""

import importlib
import importlib.util
import inspect
import re
import signal

import pytest
from guides import ROOT

import keras_transformer as kt
from keras_transformer.cli import console
from keras_transformer.errors import UserError
from keras_transformer.experiments import folder


def page(name):
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


def table_rows(text):
    """Returns the cells of each row of the tables in a page, without headers."""
    lines = re.findall(r"^\| (.*?) ?\|$", text, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    headers = {i - 1 for i, row in enumerate(rows) if row[0] == "---"}
    return [row for i, row in enumerate(rows) if i not in headers and row[0] != "---"]


def error_classes(base):
    """Yields the direct and indirect subclasses of a class."""
    for each in base.__subclasses__():
        yield each
        yield from error_classes(each)


@pytest.fixture(scope="module")
def reference():
    """The script docs/reference.py as a module."""
    path = ROOT / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "recipe.md"])
def test_generated_pages_are_up_to_date(reference, name):
    assert page(name) == reference.PAGES[name](), "run `make reference`"


def test_signatures_match_an_export(tiny_signatures):
    written = {}
    for section in page("signatures.md").split("\n## ")[1:]:
        for tensor, direction, kind, shape, _ in table_rows(section):
            key = (section.split()[0], direction, tensor.strip("`"))
            written[key] = (kind, shape.count(",") + 1)
    found = {}
    for name, function in tiny_signatures.items():
        _, inputs = function.structured_input_signature
        for direction, tensors in (
            ("in", inputs),
            ("out", function.structured_outputs),
        ):
            for tensor, spec in tensors.items():
                found[name, direction, tensor] = (spec.dtype.name, spec.shape.rank)
    assert written == found


def test_exit_codes_match_the_errors():
    classes = [UserError, *error_classes(UserError)]
    expected = {each.exit_code for each in classes}
    expected |= {console.USER_ERROR, console.INTERRUPTED, console.BROKEN_PIPE}
    # Success, an unexpected error, and signals.
    expected |= {0, 1, 128 + signal.SIGTERM, 128 + signal.SIGHUP}
    codes = [int(row[0]) for row in table_rows(page("exit-codes.md"))]
    assert codes == sorted(expected)


def test_environment_variables_match_the_code():
    written = set(re.findall(r"^\| (.*?) \|", page("environment.md"), re.MULTILINE))
    written = set(re.findall(r"`(\w+)`", " ".join(written)))
    found = set()
    for name in ("keras_transformer", "pipelines", "tests", "benchmarks"):
        for path in (ROOT / name).rglob("*.py"):
            found |= variables_read(path.read_text("utf-8"))
    for path in (ROOT / "keras_transformer" / "recipes").glob("*.yaml"):
        found |= set(re.findall(r"\$\{(\w+)\}", path.read_text("utf-8")))
    # Python and the shell read the first two. NAME is an example in a recipe's comment.
    found -= {"PATH", "PYTHONPATH", "NAME"}
    assert written == found


def variables_read(source):
    """Returns the environment variables that a module reads by name."""
    if "environ" not in source:
        return set()
    constants = dict(re.findall(r'^(\w+) = "([A-Z0-9_]+)"$', source, re.MULTILINE))
    names = re.findall(r"environ(?:\.get\(|\[)([\w\"]+)", source)
    names += re.findall(r'("\w+") in os\.environ', source)
    for group in re.findall(r"\{([^{}]*)\} & set\(os\.environ\)", source):
        names += group.split(", ")
    names = [constants.get(name, name) for name in names]
    return {name.strip('"') for name in names if name.strip('"').isupper()}


def test_run_folder_page_names_every_file():
    text = page("run-folder.md")
    names = {*folder._OUTPUT, folder.CONFIG, folder.SAVED, folder._LOCK, "cache"}
    assert [name for name in names if f"`{name}" not in text] == []


def test_glossary_is_sorted():
    terms = [row[0] for row in table_rows(page("glossary.md"))]
    assert terms == sorted(terms, key=str.lower)


def homes_of(module):
    """Yields each public class and function, with the paths that may document it."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            path = f"{value.__module__}.{value.__qualname__}"
            yield f"{module.__name__}.{name}", {value.__module__, path}


@pytest.mark.parametrize("name", kt._MODULES)
def test_reference_documents_every_public_name(name):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(path.read_text("utf-8") for path in pages)
    shown = set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    names = homes_of(importlib.import_module(f"keras_transformer.{name}"))
    assert [name for name, paths in names if not paths & shown] == []
