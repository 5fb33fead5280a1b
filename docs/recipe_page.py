"""The reference page of recipe keys.

Keys are described by comments in `files.yaml` and in the modules of the schema, and by
the docstrings of `Transformer` and `Variations`.
"""

import ast
import inspect
import pathlib
import re
import typing

import api
import yaml

import keras_transformer as kt
from keras_transformer.recipes import data_sections, load_recipe, schema
from keras_transformer.recipes.automatic import AUTOMATIC_KEYS
from keras_transformer.saving.info import markdown_table

RECIPES = pathlib.Path(schema.__file__).parent


def yaml_comments(path):
    """Returns the comments of a recipe as a dict of dotted key to text."""
    found, section, key = {}, "", None
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"( *)(\w+):", line)
        comment = re.search(r"(?:^| )# (.*)", line)
        if match:
            if not match[1]:
                section = match[2]
            key = f"{section}.{match[2]}" if match[1] else section
            found[key] = comment[1] if comment else ""
        elif comment and key and line.startswith(" " * 20):
            found[key] += f" {comment[1]}"
    return found


def field_comments(path):
    """Returns the comments after or above fields of classes, by class and field."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    return {
        (node.name, each.target.id): lines[each.end_lineno - 1].partition("  # ")[2]
        or lines[each.lineno - 2].partition("    # ")[2]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.AnnAssign)
    }


def bounds(metadata):
    """Returns the range of a number, such as ` in [0, 1)`, or an empty string."""
    found = {}
    for each in metadata:
        for one in getattr(each, "metadata", [each]):
            for name in ("gt", "ge", "lt", "le"):
                if hasattr(one, name):
                    found[name] = getattr(one, name)
    low, high = found.get("ge", found.get("gt")), found.get("le", found.get("lt"))
    if low is None or high is None or high >= 2**30:
        sign = "≥" if "ge" in found else ">"
        return "" if low is None else f" {sign} {low}"
    first, last = "[" if "ge" in found else "(", "]" if "le" in found else ")"
    return f" in {first}{low}, {high:,}{last}"


def value_text(annotation, metadata=()):
    """Returns the values that a key may have, such as `number > 0`."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        if any(
            getattr(each, "func", None) == data_sections.absolute_path for each in more
        ):
            return "path"
        return value_text(inner, (*metadata, *more))
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{yaml_value(each)}`" for each in annotation.__args__)
    if typing.get_origin(annotation) is list:
        name = value_text(annotation.__args__[0])
        if name == "path":
            return "path, or list of paths"
        return "list of " + re.sub("^([a-z]+)", r"\1s", name)
    if options := typing.get_args(annotation):
        return ", ".join(dict.fromkeys(map(value_text, options)))
    if annotation is type(None):
        return "`null`"
    if isinstance(annotation, type) and issubclass(annotation, schema.Section):
        return "section"
    kinds = {int: "integer", float: "number", str: "string", bool: "`true`, `false`"}
    return kinds[annotation] + bounds(metadata)


def yaml_value(value):
    text = yaml.safe_dump(value, default_flow_style=True).strip()
    return text.removesuffix("...").strip()


# Sections in which a stage looks up keys that it does not set.
STAGE_DEFAULTS = {
    "bidirectional": "data.train",
    "bpe_dropout": "tokenizer",
    "num_segmentations": "tokenizer",
}


# Keys of a stage that are described by those of `training`.
STAGE_KEYS = [
    name
    for name in schema.StageSettings.model_fields
    if name in schema.TrainingSettings.model_fields and name != "steps"
]


def default_text(key, field):
    if field.is_required():
        return "required"
    if key.startswith("training.stages."):
        return f"as in `{STAGE_DEFAULTS[key.rpartition('.')[2]]}`"
    return f"`{yaml_value(field.default)}`"


def values_of(key, field):
    """Returns the values that a key may have."""
    text = value_text(field.annotation, field.metadata)
    is_more = key in AUTOMATIC_KEYS and "`auto`" not in text
    return f"{text}, `auto`" if is_more else text


def flattened(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# Keys whose value the paper states. The values are read from the WMT14 recipes.
PAPER_KEYS = {
    *("tokenizer.kind", "tokenizer.vocabulary_size", "tokenizer.shared"),
    *(f"model.{name}" for name in schema.ARCHITECTURE),
    *("model.dropout", "model.attention_dropout"),
    *("training.steps", "training.batch_tokens", "training.schedule"),
    *("training.warmup_steps", "training.label_smoothing"),
    *("training.beta_1", "training.beta_2", "training.epsilon"),
    *("training.checkpoint_minutes", "training.average_checkpoints"),
    *("decoding.beam_size", "decoding.length_penalty"),
    *("decoding.length_penalty_kind", "decoding.extra_length"),
} - {"model.max_length", "model.attention_window", "model.variations"}
PAPER_RECIPES = {
    "base": "wmt14_en_de_base",
    "big": "wmt14_en_de_big",
    "En-Fr": "wmt14_en_fr_base",
    "En-Fr big": "wmt14_en_fr_big",
}


def paper_values():
    """Returns texts on the paper's values that are no defaults, by dotted key."""
    defaults = dict(flattened(schema.Recipe(data={"kind": "phrases"}).model_dump()))
    recipes = {
        name: dict(flattened(load_recipe(recipe).model_dump()))
        for name, recipe in PAPER_RECIPES.items()
    }
    found = {}
    for key in PAPER_KEYS:
        base, big, french, french_big = (each[key] for each in recipes.values())
        parts = [("", base)] if base != defaults[key] else []
        parts += [("big ", big)] if big != base else []
        parts += [("En-Fr ", french)] if french != base else []
        if french_big != (big if big != base else french):
            parts.append(("En-Fr big ", french_big))
        if parts:
            text = ", ".join(f"{name}`{yaml_value(value)}`" for name, value in parts)
            found[key] = f" Paper: {text}."
    return found


# Keys in comments, and words that a colon follows.
NAMES = (
    r"\[\{.*\}\]|(?:\w+\.)?[a-z]\w*_\w+"
    r"|(?:null|auto|true|false)(?=:)|\{[a-z]+(?:: .*?)?\}"
)


def as_code(text, field):
    """Marks names, values and braces in a comment as code."""
    values = re.findall("`(.*?)`", value_text(field.annotation))
    words = "|".join([NAMES, *map(re.escape, values)])
    pattern = rf"(`[^`]*`|\"\w+\")|(?<![\w./-])({words})(?![\w/-])"
    return re.sub(pattern, lambda found: found[1] or f"`{found[2]}`", text)


def yaml_notation(match):
    return f"`{match[1]}: {match[2]}`" if match[1] else f"`{match[2]}`"


class Descriptions:
    """Descriptions of recipe keys, from the places where they are written."""

    def __init__(self):
        self.template = yaml_comments(RECIPES / "files.yaml")
        self.fields = field_comments(RECIPES / "schema.py")
        self.fields |= field_comments(RECIPES / "data_sections.py")
        self.arguments = {}
        for value in (kt.Transformer, kt.Variations):
            _, sections = api.docstring(value)
            self.arguments |= api.items(sections["Args"])

    def of(self, section, name, key):
        candidates = [
            next(
                (
                    self.fields[base.__name__, name]
                    for base in section.__mro__
                    if (base.__name__, name) in self.fields
                ),
                "",
            ),
            self.arguments.get(name, "") if key.startswith("model.") else "",
            self.template.get(key, ""),
        ]
        text = next(filter(None, candidates), None)
        assert text, f"{key}: no description"
        # Docstrings have values in Python's notation.
        text = re.sub(r"`(?:(\w+)=)?\"(\w+)\"`", yaml_notation, text)
        text = as_code(text.replace("`None`", "`null`"), section.model_fields[name])
        if text.partition(" ")[0].strip(",").isalpha():
            text = text[0].upper() + text[1:]
        if key == "model.size":
            text += ". [What they set](model.md)"
        if name == "source_vocabulary_size" and key.startswith("model."):
            text = (
                "`null`, except to separate the embedding matrices of a shared "
                "vocabulary: `tokenizer.vocabulary_size`. Separate vocabularies have "
                "separate matrices"
            )
        if key == "training.stages":
            text += f". A stage may also set {listing(STAGE_KEYS)}"
        return text.rstrip(".") + "."


def listing(names):
    return ", ".join(f"`{name}`" for name in names)


def key_rows(section, prefix, descriptions, paper, seen):
    """Yields the rows of a section's table, and those of the sections inside it.

    `seen` collects the field names of inner sections. Repeated ones are skipped.
    """
    fields = dict(section.model_fields)
    if prefix == "model.":
        size, variations = fields.pop("size"), fields.pop("variations")
        fields = {"size": size, **fields, "variations": variations}
    for name, field in fields.items():
        key = f"{prefix}{name}"
        is_inner = prefix.count(".") > 1
        if (name == "kind" and prefix == "data.") or (is_inner and name in seen):
            continue
        if prefix == "training.stages." and name in STAGE_KEYS:
            continue
        if is_inner:
            seen.add(name)
        yield [
            f"`{key.partition('.')[2]}`",
            values_of(key, field),
            default_text(key, field),
            descriptions.of(section, name, key) + paper.get(key, ""),
        ]
        inner = inner_section(field.annotation)
        if inner is not None:
            yield from key_rows(inner, f"{key}.", descriptions, paper, seen)


def inner_section(annotation):
    """Returns the class of a nested section, or `None`."""
    if isinstance(annotation, type) and issubclass(annotation, schema.Section):
        # The other keys of a mixture's corpora are those of their kinds.
        options = data_sections.CorpusOptions
        return options if issubclass(annotation, options) else annotation
    found = map(inner_section, typing.get_args(annotation))
    return next(filter(None, found), None)


# The first keys of the tables into which long sections are divided, and their headings.
HEADINGS = {
    "model.size": "Size",
    "model.dropout": "Other arguments",
    "model.variations": "Variations",
    "training.initial_model": "Initial weights",
    "training.steps": "Steps and learning rate",
    "training.label_smoothing": "Losses and regularization",
    "training.optimizer": "Optimizer",
    "training.gradient_accumulation_steps": "Memory, faults and speed",
    "training.checkpoint_minutes": "Checkpoints",
    "training.validation_steps": "Validation",
    "training.seed": "Reproducibility",
    "training.stages": "Stages",
}

# Kinds of data in the order of the page, and an example of each.
DATA_EXAMPLES = {
    "files": """
data:
  train: {source: [news.en, web.en], target: [news.de, web.de]}
  validation: {source: val.en, target: val.de}
  noise: {typos: 0.1, capitals: 0.02}
""",
    "tsv": """
data:
  kind: tsv
  train: memory.tsv
  source: 2
  target: 3
""",
    "csv": """
data:
  kind: csv
  train: terms.csv
  source: English
  target: German
""",
    "jsonl": """
data:
  kind: jsonl
  train: [part-1.jsonl.gz, part-2.jsonl.gz]
  source: translation.en
  target: translation.de
""",
    "tmx": """
data:
  kind: tmx
  train: memory.tmx
  source: en
  target: de
""",
    "hf": """
data:
  kind: hf
  name: Helsinki-NLP/opus-100
  config: de-en
""",
    "tfds": """
data:
  kind: tfds
  name: wmt14_translate/de-en
  source_language: en
  target_language: de
""",
    "mixed": """
data:
  train:
    - {source: web.en, target: web.de, weight: 0.5}
    - kind: tmx
      train: memory.tmx
      validation: held-out.tmx
      source: en
      target: de
      tag: ">>memory<<"
""",
    "records": """
data:
  kind: records
  train: encoded
  validation: {source: val.en, target: val.de}
""",
    "trees": """
data:
  kind: trees
  train: {trees: wsj/train, weights: [1]}
  validation: {trees: wsj/dev.trees}
""",
    "phrases": """
data:
  kind: phrases
  target_locale: fr
""",
    "none": "",
}
EXAMPLES = {
    "tokenizer": """
tokenizer:
  vocabulary_size: 8000
  bpe_dropout: 0.05
""",
    "model": """
model:
  size: small
  num_layers: 6
  dropout: 0.2
""",
    "training": """
training:
  steps: 20000
  batch_tokens: 4096
  warmup_steps: 1000
  early_stopping: {patience: 10}
""",
    "evaluation": """
evaluation:
  tokenize: flores200
""",
    "decoding": """
decoding:
  beam_size: 6
  length_penalty: 1.0
  no_repeat_ngram_size: 4
""",
}


def page():
    descriptions, paper = Descriptions(), paper_values()
    introduction = (
        "All training settings, for those who [write a "
        "recipe](../how-to/train-on-your-data.md#write-a-recipe) or pass `--set`: most "
        "need only `data`. A recipe is a YAML file with the sections below; "
        "`--set training.steps=500` sets the key `steps` of the section `training`. "
        "`keras-transformer init` writes a "
        "[template](../../keras_transformer/recipes/files.yaml).\n\n"
        "A recipe for text without a section `model` takes all missing keys of "
        "`tokenizer`, `model` and `training` from the recipe `files` instead of the "
        "defaults below: `normalization: pre`, `schedule: inverse_sqrt`, and `auto` "
        "for the keys that may be `auto`. For these, `train` chooses a value that fits "
        "the text and the machine, and prints it. The kinds of data `tfds`, `phrases` "
        "and `trees` have no `auto`.\n\n"
        "Where the paper states a value, the default is that of its base model for "
        "English to German. Its other values follow the word *Paper*: those of the big "
        "model, and of English to French (En-Fr).\n\n"
        "In ranges, `[` and `]` include the number, `(` and `)` exclude it.\n"
    )
    text = f"# Recipe keys\n\n{introduction}{data_text(descriptions)}"
    for name, field in schema.Recipe.model_fields.items():
        if name != "data":
            section = field.annotation
            rows = list(key_rows(section, f"{name}.", descriptions, paper, set()))
            text += section_text(name, section, rows, EXAMPLES[name])
    return text


def section_text(title, section, rows, example=""):
    """Returns a heading, the docstring of a section, an example and tables of keys."""
    text = f"\n## {title}\n\n{inspect.cleandoc(section.__doc__)}\n"
    if example:
        load_recipe({"data": {"kind": "phrases"}, **yaml.safe_load(example)})
        text += f"\n```yaml\n{example.strip()}\n```\n"
    tables = {"": []}
    for row in rows:
        heading = HEADINGS.get(f"{title}.{row[0][1:-1]}")
        tables.setdefault(heading or next(reversed(tables)), []).append(row)
    for heading, part in tables.items():
        text += f"\n### {heading}\n" if heading else ""
        header = ["Key", "Values", "Default", "Description"]
        text += f"\n{markdown_table(header, part)}" if part else ""
    return text


def data_text(descriptions):
    """Returns the text on `data`: the keys of all kinds once, then those of each."""
    rows = {
        kind: list(key_rows(section, "data.", descriptions, {}, set()))
        for kind, section in data_sections.DATA_KINDS.items()
    }
    shared = [
        row for row in rows["files"] if row[0][1:-1].split(".")[0] in SHARED_DATA_KEYS
    ]
    text = section_text("data", DataIntroduction, shared)
    for kind, example in DATA_EXAMPLES.items():
        own = [row for row in rows[kind] if row not in shared and not is_split(row)]
        section = data_sections.DATA_KINDS[kind]
        text += section_text(f"data (kind: {kind})", section, own, example)
    return text


class DataIntroduction:
    """The key `kind` is the format of the data (default: `files`) and decides which
    other keys there are. Every kind has `max_length`. Kinds of text also have `noise`:
    each of its keys is the share of pairs that an epoch contains again with that noise.

    Beside `train`, there are `validation`, for validation and early stopping, and
    `test`, which training does not read, both `null` by default (with `tfds` and `hf`,
    the splits of these names). They have the form of `train`, without `bidirectional`,
    `alignments` or `weights`; with `records`, that of `files`.
    """


def is_split(row):
    """Returns whether a row describes validation or test data, as the text above."""
    name, _, default, _ = row
    return name.split(".")[0].strip("`") in ("validation", "test") and (
        default.startswith(("`null`", "required"))
    )


SHARED_DATA_KEYS = ("max_length", "noise")
