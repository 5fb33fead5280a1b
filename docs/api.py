"""The entries of the Python API on the pages of docs/reference.

A line `<!-- api: kt.NAME -->` is followed by the entry of that class or function: its
signature and its docstring. For a class, its methods follow; for a module, a table of
its classes. An entry ends at the next such line, at a heading of level 2, or at the end
of the page. A line `<!-- contents -->` is followed by a table of the page's entries,
among them constants, whose entries are written by hand.
"""

import ast
import functools
import importlib
import inspect
import pathlib
import re
import textwrap

import keras
import pydantic

from keras_transformer import beam
from keras_transformer.saving.info import markdown_table

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
ENTRY = re.compile(
    r"^<!-- api: (kt\.[\w.]+) -->\n(?:(?!<!-- api: |## ).*\n)*", re.MULTILINE
)
CONTENTS = re.compile(r"^<!-- contents -->\n(?:\|.*\n)*", re.MULTILINE)
# The heading of an entry. Those of constants have no marker: people write them.
HEADING = re.compile(r"^### `(kt\.[\w.]+)`\n\n(.*)", re.MULTILINE)
# A class or constant at the top of a module.
DEFINITION = re.compile(r"^(?:class )?([A-Z]\w+)(?:\(| = |:)", re.MULTILINE)
WIDTH = 88
# Private methods, and those that Keras calls.
HIDDEN = re.compile(
    r"_(?!_call__)|compute_output|(build|get_config|apply|update_step)$"
)
# Methods that only this package calls, and those with entries of their own.
INTERNAL = {
    "BeamSearch": "steering",
    "EncodedCorpus": "check_ids epoch_order lengths numbers padded_batch plan rows "
    "rows_outside",
    "ExportedTranslator": "fingerprint of_signatures",
    "GuidedAlignment": "layer_index loss",
    "ModelInfo": "describe_model summary",
    "Pairs": "id_chunks tokenizer",
    "Recipe": "validation_metric",
    "SeparateTokenizers": "save",
    "SmoothedCrossEntropy": "call",
    "SpecialIds": "excluded_ids",
    "StepDecoder": "of",
    "Term": "warning",
    "Tokenizer": "characters fingerprint join normalized piece_bytes pieces "
    "unknown_characters",
    "Trainer": "begin_stage",
    "TrainingModel": "change_options compile_shapes random_states",
    "Transformer": "check_inputs",
    "Translator": "fingerprint",
    "Variations": "changes of",
    "Workers": "all_reduce_sum broadcast_from_chief convert_worker_errors",
}
# The sections of docstrings, and the headers of their tables.
TABLES = {"Args": "Argument", "Attributes": "Attribute"}
SECTION = re.compile(r"(?:^|\n\n)(Args|Attributes|Returns|Raises|Examples):\n")


def find(name):
    """Returns a public class or function, such as that of `kt.layers.Encoder`."""
    if name.startswith("kt.beam."):
        return without_body(name)
    value = importlib.import_module("keras_transformer")
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def without_body(name):
    """Returns a function without its body, so that Beam need not be installed."""
    name = name.rpartition(".")[2]
    path = ROOT / "keras_transformer" / "beam" / f"{beam._NAMES[name]}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [each for each in tree.body if getattr(each, "name", None) == name]
    del tree.body[0].body[1:]
    names = {}
    exec(compile(tree, path, "exec"), names)
    return names[name]


def items(section):
    """Returns the texts of a docstring's arguments, attributes or errors by name."""
    parts = re.split(r"^(?=[*\w][\w*, ]*: )", section, flags=re.MULTILINE)
    pairs = [part.partition(": ") for part in parts if part.strip()]
    return {name: " ".join(text.split()) for name, _, text in pairs}


def docstring(value):
    """Returns the text of a docstring, and its sections by title."""
    text, *rest = SECTION.split(inspect.getdoc(value))
    sections = map(textwrap.dedent, rest[1::2])
    return text.strip(), dict(zip(rest[::2], sections, strict=True))


class Default(str):
    """The default of an argument, as in the source."""

    def __new__(cls, value):
        kind = type(value)
        if is_ours(kind) and value == kind():
            return super().__new__(cls, f"{kind.__name__}()")
        return super().__new__(cls, getattr(value, "__name__", repr(value)))

    __repr__ = str.__str__


def signature(name, value):
    """Returns a call without `self` and annotations."""
    is_named_tuple = hasattr(value, "_fields")
    if inspect.isclass(value) and not is_named_tuple:
        value = value.__init__
    found = inspect.signature(value)
    empty = inspect.Parameter.empty
    arguments = [
        each.replace(
            annotation=empty,
            default=empty if each.default is empty else Default(each.default),
        )
        for key, each in found.parameters.items()
        if key not in ("self", "cls")
    ]
    text = str(inspect.Signature(arguments))
    if len(name + text) <= WIDTH:
        return name + text
    lines = textwrap.wrap(text[1:-1], WIDTH - 4, break_on_hyphens=False)
    arguments = "".join(f"    {line}\n" for line in lines)
    return f"{name}(\n{arguments})"


def body(value):
    """Returns a docstring in Markdown."""
    text, sections = docstring(value)
    parts = [text]
    for title, section in sections.items():
        if title in TABLES:
            rows = [[f"`{key}`", each] for key, each in items(section).items()]
            parts.append(markdown_table([TABLES[title], "Description"], rows).rstrip())
        elif title == "Returns":
            parts.append(f"**Returns:** {section.strip()}")
        elif title == "Raises":
            errors = [f"- `{key}`: {each}" for key, each in items(section).items()]
            parts.append("**Raises:**\n\n" + "\n".join(errors))
        else:
            parts.append(f"```pycon\n{section.strip()}\n```")
    return "\n\n".join(parts)


def is_ours(value):
    return value.__module__.startswith("keras_transformer.")


def methods(owner):
    """Yields the name and the function of each public method of a class."""
    for name, value in vars(owner).items():
        value = getattr(value, "__func__", value)
        if not inspect.isfunction(value) or not value.__doc__ or HIDDEN.match(name):
            continue
        if name in INTERNAL.get(owner.__name__, "").split():
            continue
        if any(name in vars(base) for base in owner.__mro__[1:] if is_ours(base)):
            continue  # The entry of the base has it.
        is_model = issubclass(owner, keras.Model) and not hasattr(keras.Model, name)
        if name == "call" or is_model or not issubclass(owner, keras.Layer):
            yield name, value


def call(name, value):
    """Returns a signature as code, empty for the settings of a recipe and errors."""
    if inspect.isclass(value) and issubclass(value, (pydantic.BaseModel, Exception)):
        return ""
    return f"```py\n{signature(name, value)}\n```\n\n"


@functools.cache
def targets():
    """Returns the links of names: to their entries, or else to their source.

    An entry must not name what has no entry, so `linked` refuses links to the source.
    """
    found = {}
    for folder in ("keras_transformer", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            link = f"../../{path.relative_to(ROOT)}"
            module = path.relative_to(ROOT / folder).with_suffix("")
            found[".".join(module.parts)] = link
            for name in DEFINITION.findall(path.read_text(encoding="utf-8")):
                # An ambiguous name gets no link.
                found[name] = None if name in found else link
    for path in FOLDER.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^<!-- api: (.*) -->", text, re.MULTILINE)
        for name in dict.fromkeys([*names, *dict(HEADING.findall(text))]):
            value, short = find(name), name.rpartition(".")[2]
            if inspect.ismodule(value):
                found |= dict.fromkeys(value.__all__, f"{path.name}#{short}")
                continue
            parts = name.split(".")
            keys = [".".join(parts[start:]) for start in range(len(parts))]
            found |= dict.fromkeys(keys, f"{path.name}#{anchor(name)}")
            for method, _ in methods(value) if inspect.isclass(value) else ():
                found[f"{short}.{method}"] = (
                    f"{path.name}#{anchor(f'{short}.{method}')}"
                )
    return found


def anchor(heading):
    return heading.replace(".", "").lower()


def linked(text, value):
    """Links the names in an entry, but not those of its own arguments."""
    own = [value.__name__]
    if not inspect.isclass(value) or "__init__" in vars(value):
        own += inspect.signature(getattr(value, "__init__", value)).parameters

    def link(match):
        name = match[1]
        is_word = name.islower() and "_" not in name and "." not in name
        if name in own or is_word:
            return match[0]
        owner, _, last = name.rpartition(".")
        target = targets().get(name) or ""
        if "." in owner:  # possibly a module
            target = target or targets().get(owner) or ""
        is_internal = not target and last in INTERNAL.get(owner, "").split()
        if is_internal or target.endswith(".py"):
            raise ValueError(f"{value.__qualname__}: {match[0]} has no entry")
        return f"[{match[0]}]({target})" if target else match[0]

    parts = re.split(r"(^```(?:.*\n)+?```$)", text, flags=re.MULTILINE)
    parts[::2] = [re.sub(r"(?<!\[)`([\w.]+)`", link, part) for part in parts[::2]]
    parts[::2] = [
        re.sub(r"docs/reference/(\S+\.md)", r"[\1](\1)", each) for each in parts[::2]
    ]
    return "".join(parts)


def entry(match):
    """Returns the line of an entry and its text."""
    value, short = find(match[1]), match[1].rpartition(".")[2]
    if inspect.ismodule(value):
        rows = [[f"`{name}`", body(getattr(value, name))] for name in value.__all__]
        return (
            f"<!-- api: {match[1]} -->\n{markdown_table(['Name', 'Meaning'], rows)}\n"
        )
    path = pathlib.Path(inspect.getfile(inspect.unwrap(value))).relative_to(ROOT)
    text = f"<!-- api: {match[1]} -->\n### `{match[1]}`\n\n"
    text += call(short, value) + linked(body(value), value)
    text += f"\n\n[Source](../../{path})\n\n"
    for name, method in methods(value) if inspect.isclass(value) else ():
        text += f"#### `{short}.{name}`\n\n{call(name, method)}"
        text += f"{linked(body(method), method)}\n\n"
    return text


def contents(text):
    """Returns a table of the entries of a page, with the first line of each."""
    rows = []
    for name, first in HEADING.findall(text):
        if f"<!-- api: {name} -->" in text:
            first, _, _ = docstring(find(name))[0].partition("\n\n")
        rows.append([f"[`{name}`](#{anchor(name)})", first])
    return f"<!-- contents -->\n{markdown_table(['Name', 'Purpose'], rows)}"


def page(path):
    """Returns the text of a page with new entries."""
    text = path.read_text(encoding="utf-8")
    text = ENTRY.sub(entry, text)
    return CONTENTS.sub(lambda _: contents(text), text).rstrip("\n") + "\n"
